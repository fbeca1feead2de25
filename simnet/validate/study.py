"""The engine of published sets: fit numbers to some rows of a publication, one after another, and predict others.

A set is data: the rows, the simulation of a row, and the fits, each of one number to some rows by some method. Another
model of the same rows is `replace(study, ...)`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from simnet import numeric
from simnet.validate.outcome import Parameter, Prediction
from simnet.validate.published_rows import PublishedRow
from simnet.validate.shipped import value_of, with_value

Method = Literal["least squares", "meets the row", "mean signed error zero"]
FIRST_GUESS = 0.25
"""The efficiency at which a least-squares fit of a rate begins."""
UNIT_COST = 1e-4
"""The value at which the effect of a linear cost is measured."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The fit of one number.

    Attributes:
        key: dotted key, as in a calibration file.
        rows: rows to fit.
        how: "least squares" of relative errors, for a rate; the other methods find the root of their sum.
        bounds: interval that holds the root.
        text: formats the value.
        part: the shipped file that holds the value.
        name: name in tables; the key if empty.
    """

    key: str
    rows: tuple[PublishedRow, ...]
    how: Method = "meets the row"
    bounds: tuple[float, float] = (0.02, 1.0)
    text: Callable[[float], str] = "{:.4f}".format
    part: str = "this set only"
    name: str = ""

    def parameter(self, fitted: Any) -> Parameter:
        """Return the fitted number."""
        value = value_of(fitted, self.key)
        text = self.text(value)
        return Parameter(
            part=self.part, key=self.name or self.key, value=value, text=text, how=self.how, rows=self.rows
        )


@dataclass(frozen=True, kw_only=True)
class Study:
    """Rows of a publication, a model of them, the fits, and the rows to predict.

    Attributes:
        initial: the calibration (or another struct of numbers) before any fit.
        predict: simulated value of a row under a calibration, in SI units.
        measured: published value of a row, in SI units.
        series: series of a row, which has a mean error of its own.
        label: name of a row in tables.
        fits: made in this order, each with the results of the previous ones; a pair is of two linear costs.
        held_out: rows to predict, which no fit uses.
        known_range: factors between which the model itself says that the value of a row lies, at 90 %.
    """

    initial: Any
    predict: Callable[[Any, PublishedRow], float]
    measured: Callable[[PublishedRow], float]
    series: Callable[[PublishedRow], str]
    label: Callable[[PublishedRow], str]
    fits: tuple[Fit | tuple[Fit, Fit], ...] = ()
    held_out: tuple[PublishedRow, ...] = ()
    known_range: Callable[[PublishedRow], tuple[float, float]] = lambda _: (1.0, 1.0)

    @cached_property
    def fitted(self) -> Any:
        """The calibration after all fits."""
        found = self.initial
        for fit in self.fits:
            found = _fit_two_costs(self, found, *fit) if isinstance(fit, tuple) else _fit_one(self, found, fit)
        return found

    @property
    def train(self) -> tuple[PublishedRow, ...]:
        """Rows that a fit uses."""
        return tuple(row for fit in self._single_fits for row in fit.rows)

    @property
    def _single_fits(self) -> Iterator[Fit]:
        return (one for fit in self.fits for one in (fit if isinstance(fit, tuple) else (fit,)))

    def refitted(self, rows: Iterable[PublishedRow]) -> "Study":
        """Return the study with these rows for each of its fits."""
        known = tuple(rows)
        return replace(self, fits=tuple(replace(fit, rows=known) for fit in self._single_fits))

    def value(self, key: str) -> float:
        """Return a number of the fitted calibration, in SI units."""
        return value_of(self.fitted, key)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All fitted numbers."""
        return tuple(fit.parameter(self.fitted) for fit in self._single_fits)

    @cached_property
    def predictions(self) -> tuple[Prediction, ...]:
        """Predicted against measured, for the held-out rows."""
        return self.compare(self.held_out)

    def compare(self, rows: Iterable[PublishedRow]) -> tuple[Prediction, ...]:
        """Return predicted against measured, for these rows."""
        return tuple(
            Prediction(
                series=self.series(row),
                label=self.label(row),
                row=row,
                predicted=self.predict(self.fitted, row),
                measured=self.measured(row),
                known_range=self.known_range(row),
            )
            for row in rows
        )


def all_predictions(studies: Iterable[Study]) -> tuple[Prediction, ...]:
    """Return the predictions of several studies."""
    return tuple(prediction for study in studies for prediction in study.predictions)


def _errors(study: Study, calibration: Any, rows: Sequence[PublishedRow]) -> list[float]:
    return [study.predict(calibration, row) / study.measured(row) - 1 for row in rows]


def _fit_one(study: Study, calibration: Any, fit: Fit) -> Any:
    def errors(value: float) -> list[float]:
        return _errors(study, with_value(calibration, fit.key, value), fit.rows)

    if fit.how == "least squares":
        # A time is linear in the inverse of a rate, so the solver needs few steps.
        (inverse,) = numeric.least_squares(lambda inverses: errors(1 / inverses[0]), [1 / FIRST_GUESS])
        return with_value(calibration, fit.key, 1 / inverse)
    return with_value(calibration, fit.key, numeric.find_root(lambda value: sum(errors(value)), *fit.bounds))


def _fit_two_costs(study: Study, calibration: Any, rest: Fit, cost: Fit) -> Any:
    """Fit two non-negative costs that act linearly to one row each.

    `cost` explains the difference between the two rows, `rest` what is then still missing in its own row.
    """
    rows = rest.rows[0], cost.rows[0]
    missing = [study.measured(row) - study.predict(calibration, row) for row in rows]

    def effect(fit: Fit, row: PublishedRow) -> float:
        changed = with_value(calibration, fit.key, UNIT_COST)
        return (study.predict(changed, row) - study.predict(calibration, row)) / UNIT_COST

    near, far = (effect(cost, row) for row in rows)
    cost_s = max((missing[1] - missing[0]) / (far - near), 0.0)
    rest_s = max((missing[0] - near * cost_s) / effect(rest, rows[0]), 0.0)
    return with_value(with_value(calibration, cost.key, cost_s), rest.key, rest_s)

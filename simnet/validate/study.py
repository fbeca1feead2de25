"""The engine of published sets: numbers fitted to some rows of a publication, one after another, and rows predicted.

A set is data: which rows, what a simulation says of a row, which number is fitted to which rows and how. Another way to
model the same rows is `replace(study, ...)`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from simnet import numeric
from simnet.validate.outcome import Parameter, Prediction
from simnet.validate.published_rows import PublishedRow
from simnet.validate.shipped import value_of, with_value

How = Literal["least squares", "meets the row", "mean signed error zero"]
FIRST_GUESS = 0.25
UNIT = 1e-4
"""A cost at which its effect is measured, where it acts linearly."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One number that is fitted.

    Attributes:
        key: dotted, as in a calibration file.
        how: "least squares" of relative errors, for a rate (time falls as it grows); else the root of their sum.
        within: where the root is looked for.
        text: shows the value.
        part: the shipped file that holds the value.
        name: what readers know the number by, if that is not the key.
    """

    key: str
    rows: tuple[PublishedRow, ...]
    how: How = "meets the row"
    within: tuple[float, float] = (0.02, 1.0)
    text: Callable[[float], str] = "{:.4f}".format
    part: str = "this set only"
    name: str = ""

    def parameter(self, fitted: Any) -> Parameter:
        """Return the number as found."""
        value = value_of(fitted, self.key)
        text = self.text(value)
        return Parameter(
            part=self.part, key=self.name or self.key, value=value, text=text, how=self.how, rows=self.rows
        )


@dataclass(frozen=True, kw_only=True)
class Study:
    """Rows of a publication, one way to model them, and those of them to predict.

    Attributes:
        start: the calibration (or another struct of numbers) before anything is fitted.
        predict: what the simulator says of a row under a calibration, SI.
        measured: what the row says, SI.
        fits: in this order, each with what those before it found; a pair is of two costs that act linearly, the second
            of which sets their rows apart.
        predicts: rows that nothing was fitted to.
    """

    start: Any
    predict: Callable[[Any, PublishedRow], float]
    measured: Callable[[PublishedRow], float]
    series: Callable[[PublishedRow], str]
    label: Callable[[PublishedRow], str]
    fits: tuple[Fit | tuple[Fit, Fit], ...] = ()
    predicts: tuple[PublishedRow, ...] = ()

    @cached_property
    def fitted(self) -> Any:
        """The calibration with every fit made."""
        found = self.start
        for fit in self.fits:
            found = _pair(self, found, *fit) if isinstance(fit, tuple) else _fitted(self, found, fit)
        return found

    @property
    def known(self) -> tuple[PublishedRow, ...]:
        """The rows that anything is fitted to."""
        return tuple(row for fit in self._each_fit for row in fit.rows)

    @property
    def _each_fit(self) -> Iterator[Fit]:
        return (one for fit in self.fits for one in (fit if isinstance(fit, tuple) else (fit,)))

    def refitted(self, rows: Iterable[PublishedRow]) -> "Study":
        """Return the study with each of its fits made on these rows."""
        known = tuple(rows)
        return replace(self, fits=tuple(replace(fit, rows=known) for fit in self._each_fit))

    def value(self, key: str) -> float:
        """Return a fitted number."""
        return value_of(self.fitted, key)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Every fitted number."""
        return tuple(fit.parameter(self.fitted) for fit in self._each_fit)

    @cached_property
    def predictions(self) -> tuple[Prediction, ...]:
        """Predicted against measured of the rows to predict."""
        return self.of(self.predicts)

    def of(self, rows: Iterable[PublishedRow]) -> tuple[Prediction, ...]:
        """Return predicted against measured of some rows."""
        return tuple(
            Prediction(
                series=self.series(row),
                label=self.label(row),
                row=row,
                predicted=self.predict(self.fitted, row),
                measured=self.measured(row),
            )
            for row in rows
        )


def all_predictions(studies: Iterable[Study]) -> tuple[Prediction, ...]:
    """Return what several studies predict."""
    return tuple(prediction for study in studies for prediction in study.predictions)


def _errors(study: Study, calibration: Any, rows: Sequence[PublishedRow]) -> list[float]:
    return [study.predict(calibration, row) / study.measured(row) - 1 for row in rows]


def _fitted(study: Study, calibration: Any, fit: Fit) -> Any:
    def errors(value: float) -> list[float]:
        return _errors(study, with_value(calibration, fit.key, value), fit.rows)

    if fit.how == "least squares":
        # Times are linear in the inverse of a rate, so that few steps are needed.
        (inverse,) = numeric.least_squares(lambda inverses: errors(1 / inverses[0]), [1 / FIRST_GUESS])
        return with_value(calibration, fit.key, 1 / inverse)
    return with_value(calibration, fit.key, numeric.root(lambda value: sum(errors(value)), *fit.within))


def _pair(study: Study, calibration: Any, rest: Fit, cost: Fit) -> Any:
    """Fit two costs that act linearly, neither below 0: first what sets two rows apart, then what is missing."""
    rows = rest.rows[0], cost.rows[0]
    missing = [study.measured(row) - study.predict(calibration, row) for row in rows]

    def effect(fit: Fit, row: PublishedRow) -> float:
        changed = with_value(calibration, fit.key, UNIT)
        return (study.predict(changed, row) - study.predict(calibration, row)) / UNIT

    near, far = (effect(cost, row) for row in rows)
    cost_s = max((missing[1] - missing[0]) / (far - near), 0.0)
    rest_s = max((missing[0] - near * cost_s) / effect(rest, rows[0]), 0.0)
    return with_value(with_value(calibration, cost.key, cost_s), rest.key, rest_s)

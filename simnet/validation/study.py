"""The engine of published sets: fit numbers to some rows of a publication, one after another, and predict others.

A set is data: the rows, the simulation of a row, and the fits, each of one number to some rows by some method. Another
model of the same rows is `replace(study, ...)`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

from simnet.calibration import solvers
from simnet.cluster.hardware import Calibration
from simnet.core.errors import SimnetError
from simnet.engine import intervals
from simnet.validation.outcome import Parameter, Prediction
from simnet.validation.published_rows import PublishedRow
from simnet.validation.shipped_parts import value_of, with_value

Method = Literal["least squares", "meets the row", "mean signed error zero"]
FIRST_GUESS = 0.25
"""The efficiency at which a least-squares fit of a rate begins."""


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
        fits: made in this order, each with the results of the previous ones.
        held_out: rows to predict, which no fit uses.
        known_range: factors between which the model itself says that the value of a row lies, at 90 %.
    """

    initial: Any
    predict: Callable[[Any, PublishedRow], float]
    measured: Callable[[PublishedRow], float]
    series: Callable[[PublishedRow], str]
    label: Callable[[PublishedRow], str]
    fits: tuple[Fit, ...] = ()
    held_out: tuple[PublishedRow, ...] = ()
    known_range: Callable[[PublishedRow], tuple[float, float]] = lambda _: (1.0, 1.0)

    @cached_property
    def fitted(self) -> Any:
        """The calibration after all fits."""
        found = self.initial
        for fit in self.fits:
            found = _fit_one(self, found, fit)
        return found

    @property
    def train(self) -> tuple[PublishedRow, ...]:
        """Rows that a fit uses."""
        return tuple(row for fit in self.fits for row in fit.rows)

    def refitted(self, rows: Iterable[PublishedRow]) -> "Study":
        """Return the study with these rows for each of its fits."""
        known = tuple(rows)
        return replace(self, fits=tuple(replace(fit, rows=known) for fit in self.fits))

    def value(self, key: str) -> float:
        """Return a number of the fitted calibration, in SI units."""
        return value_of(self.fitted, key)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All fitted numbers."""
        return tuple(fit.parameter(self.fitted) for fit in self.fits)

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
                shipped_range=partial(self.calibrated_range, row),
            )
            for row in rows
        )

    def calibrated_range(
        self, row: PublishedRow, is_wanted: Callable[[str], bool] = lambda _: True
    ) -> tuple[float, float]:
        """Return the factors of a prediction at the ends of each interval of the calibration, added up in squares.

        Args:
            row: what is predicted.
            is_wanted: tells by its dotted key whether an interval counts; all do if not given.
        """
        if not isinstance(self.fitted, Calibration):
            return 1.0, 1.0
        plain = self.fitted.at_nodes(row.nodes)
        usual = self.predict(plain, row)
        squares = [0.0, 0.0]  # independent intervals add up so, as independent draws do
        for key, ends in intervals.calibration_intervals(plain).items():
            if not is_wanted(key):
                continue
            for factor in ends:
                moved = math.log(self._at(plain, key, factor, row) / usual)
                squares[moved > 0] += moved**2
        return math.exp(-math.sqrt(squares[0])), math.exp(math.sqrt(squares[1]))

    def _at(self, plain: Calibration, key: str, factor: float, row: PublishedRow) -> float:
        try:
            changed = intervals.changed_calibration(plain, {key: factor})
        except SimnetError:  # a study fits fewer values than the shipped file holds
            changed = plain
        return self.predict(changed, row)


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
        (inverse,) = solvers.least_squares(lambda inverses: errors(1 / inverses[0]), [1 / FIRST_GUESS])
        return with_value(calibration, fit.key, 1 / inverse)
    return with_value(calibration, fit.key, solvers.find_root(lambda value: sum(errors(value)), *fit.bounds))

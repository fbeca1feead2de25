"""The engine of published sets: fit numbers to some rows of a publication, one after another, and predict others.

A set is data: the rows, the simulation of a row, and the fits, each of one number to some rows by some method. Another
model of the same rows is `replace(study, ...)`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

from simnet.calibration.fit import Fit, Values
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
class FreeNumber:
    """A number of a study that rows tell.

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
        initial: the calibration, or other numbers by name, before any fit.
        predict: simulated value of a row under a calibration, in SI units.
        measured: published value of a row, in SI units.
        series: series of a row, which has a mean error of its own.
        label: name of a row in tables.
        fits: numbers that are fitted in this order, each with the results of the previous ones.
        held_out: rows to predict, which no fit uses.
        known_range: factors between which the model itself says that the value of a row lies, at 90 %.
        grows: whether that range is what a calibration says of rows beyond the numbers of nodes that it was fitted on:
            the growing interval of its bandwidths between nodes.
    """

    initial: Any
    predict: Callable[[Any, PublishedRow], float]
    measured: Callable[[PublishedRow], float]
    series: Callable[[PublishedRow], str]
    label: Callable[[PublishedRow], str]
    fits: tuple[FreeNumber, ...] = ()
    held_out: tuple[PublishedRow, ...] = ()
    known_range: Callable[[PublishedRow], tuple[float, float]] = lambda _: (1.0, 1.0)
    grows: bool = False

    @cached_property
    def fitted(self) -> Any:
        """The calibration after all fits."""
        calibration = self.initial
        for number in self.fits:
            calibration = _fit_one(self, calibration, number)
        return calibration

    @property
    def train(self) -> tuple[PublishedRow, ...]:
        """Rows that a fit uses."""
        return tuple(row for number in self.fits for row in number.rows)

    def refitted(self, rows: Iterable[PublishedRow]) -> "Study":
        """Return the study with these rows for each of its fits."""
        known = tuple(rows)
        return replace(self, fits=tuple(replace(number, rows=known) for number in self.fits))

    def predicting(self, rows: Iterable[PublishedRow]) -> "Study":
        """Return the study that predicts those of these rows that none of its fits uses."""
        # What was fitted is met by construction, and would flatter the mean error.
        return replace(self, held_out=tuple(row for row in rows if row not in self.train))

    def fixed(self, calibration: Any = None, **changes: Any) -> "Study":
        """Return the study with nothing left to fit, under its own fitted calibration or another one."""
        return replace(self, initial=self.fitted if calibration is None else calibration, fits=(), **changes)

    def solved(self, rows: Sequence[PublishedRow], first_guess: Values, make: Callable[[Values], Any]) -> "Study":
        """Return the study whose calibration, made of free values, meets these rows best: all values at once."""
        return self.fixed(make(self.fit_to(rows, first_guess, make).solve()))

    def fit_to(self, rows: Sequence[PublishedRow], free: Values, make: Callable[[Values], Any]) -> Fit[PublishedRow]:
        """Return the fit of free values, of which a calibration is made, to these rows."""
        return Fit(
            rows=rows,
            times=[self.measured(row) for row in rows],
            model=lambda values, some: [self.predict(make(values), row) for row in some],
            free=dict(free),
        )

    def value(self, key: str) -> float:
        """Return a number of the fitted calibration, in SI units."""
        return value_of(self.fitted, key)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All fitted numbers."""
        return tuple(number.parameter(self.fitted) for number in self.fits)

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
                known_range=self.calibrated_range(row, _grows_by_nodes) if self.grows else self.known_range(row),
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


def _grows_by_nodes(key: str) -> bool:
    """Tell whether the key of an interval is of the bandwidth between nodes, plain or of a library."""
    return key.startswith(("inter_node.", "libraries.")) and key.endswith(".efficiency")


def all_predictions(studies: Iterable[Study]) -> tuple[Prediction, ...]:
    """Return the predictions of several studies."""
    return tuple(prediction for study in studies for prediction in study.predictions)


def _fit_one(study: Study, calibration: Any, number: FreeNumber) -> Any:
    # A time is linear in the inverse of a rate, so the solver of least squares needs few steps.
    is_rate = number.how == "least squares"

    def with_number(value: float) -> Any:
        return with_value(calibration, number.key, 1 / value if is_rate else value)

    fit = study.fit_to(number.rows, {number.key: 1 / FIRST_GUESS if is_rate else FIRST_GUESS},
                       lambda values: with_number(values[number.key]))  # fmt: skip
    if is_rate:
        return with_number(fit.solve()[number.key])
    return with_number(replace(fit, bounds={number.key: number.bounds}).zero_mean_error())

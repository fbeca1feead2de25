"""What a validation set comes to: fitted parameters, predicted against measured, and whether that is good enough."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from simnet.validate.measurements import Row

Status = Literal["met", "MISSED", "no target"]
Unit = Literal["ms", "s", "h", "x"]
SCALE: dict[Unit, float] = {"ms": 1e3, "s": 1.0, "h": 1 / 3600, "x": 1.0}
"""From SI (or a plain ratio) to the unit shown."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A fitted value: the key that it has in a calibration file, its value (SI) and text, and the rows behind it."""

    part: str
    key: str
    value: float
    text: str
    how: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One predicted row, in SI units; with `low` and `high` it is a band, and `predicted` its nearest point."""

    series: str
    label: str
    row: Row
    predicted: float
    measured: float
    low: float | None = None
    high: float | None = None

    @property
    def error(self) -> float:
        """Relative error with its sign: predicted / measured - 1; 0 inside a band."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The largest mean and worst absolute relative error allowed; None: not limited."""

    mean: float | None = None
    worst: float | None = None

    def allows(self, mean: float, worst: float) -> bool:
        """Tell whether both are within the limit."""
        return (self.mean is None or mean <= self.mean) and (self.worst is None or worst <= self.worst)


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """Another way to model the same rows, for honesty about choices made after seeing the data."""

    variant: str
    calibrated_on: str
    mean: float
    worst: float


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line of a figure that is not a scatter plot."""

    panel: str
    label: str
    points: tuple[tuple[float, float], ...]
    level: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One set, done.

    Attributes:
        target: what was to be reached, if anything was.
        bound: what the set must stay within from now on; the target itself where that is met.
        about: set-up and what was fitted, for a reader.
        misses: what misses, and why.
        caveat: what a reader of the bare verdict must know, a phrase; empty if nothing.
        speedups: how well the set predicts a speedup, a phrase; empty if it predicts none.
    """

    name: str
    title: str
    unit: Unit
    parameters: tuple[Parameter, ...]
    predictions: tuple[Prediction, ...]
    bound: Limit
    target: Limit | None
    about: str
    misses: str
    alternatives: tuple[Alternative, ...] = ()
    curves: tuple[Curve, ...] = field(default=())
    caveat: str = ""
    speedups: str = ""

    @property
    def calibration_rows(self) -> tuple[Row, ...]:
        """The rows that any parameter was fitted to, each once, in the order of the file."""
        rows = {row.key: row for parameter in self.parameters for row in parameter.rows}
        return tuple(sorted(rows.values(), key=lambda row: (row.key.split(":")[0], int(row.key.split(":")[1]))))

    @property
    def mean(self) -> float:
        """Mean of the absolute relative errors."""
        return mean_error(self.predictions)

    @property
    def worst(self) -> float:
        """Largest absolute relative error."""
        return worst_error(self.predictions)

    @property
    def status(self) -> Status:
        """Whether the target is met."""
        if self.target is None:
            return "no target"
        return "met" if self.target.allows(self.mean, self.worst) else "MISSED"

    @property
    def holds(self) -> bool:
        """Tell whether the errors are within the bound."""
        return self.bound.allows(self.mean, self.worst)


class HasError(Protocol):
    """Something predicted, with its relative error."""

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""


def mean_error(predictions: Sequence[HasError]) -> float:
    """Return the mean of the absolute relative errors."""
    return sum(abs(prediction.error) for prediction in predictions) / len(predictions)


def worst_error(predictions: Sequence[HasError]) -> float:
    """Return the largest absolute relative error."""
    return max(abs(prediction.error) for prediction in predictions)


def alternative(variant: str, calibrated_on: str, predictions: tuple[Prediction, ...]) -> Alternative:
    """Return the line of a table for another way to predict the same rows."""
    return Alternative(
        variant=variant, calibrated_on=calibrated_on, mean=mean_error(predictions), worst=worst_error(predictions)
    )

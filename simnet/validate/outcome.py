"""What a validation set comes to: fitted parameters, predicted against measured, and whether that is good enough."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from simnet import templates
from simnet.comparison import Comparison, mean_error, worst_error
from simnet.validate.published_rows import PublishedRow

Status = Literal["met", "MISSED", "no target"]
Unit = Literal["ms", "s", "h", "x"]
SCALE: dict[Unit, float] = {"ms": 1e3, "s": 1.0, "h": 1 / 3600, "x": 1.0}
"""From SI (or a plain ratio) to the unit shown."""
Block = Literal["about", "misses", "caveat", "speedups"]


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A fitted value: the key that it has in a calibration file, its value (SI) and text, and the rows behind it."""

    part: str
    key: str
    value: float
    text: str
    how: str
    rows: tuple[PublishedRow, ...]


def compute_parameter(
    key: str, compute_s: float, how: str, rows: tuple[PublishedRow, ...], digits: int = 1
) -> Parameter:
    """Return a compute time as it stands in a publication, shown in ms with so many digits behind the point."""
    text = f"{1e3 * compute_s:.{digits}f} ms"
    return Parameter(part="workload", key=key, value=compute_s, text=text, how=how, rows=rows)


@dataclass(frozen=True, kw_only=True)
class Prediction(Comparison):
    """A published row, predicted; its `interval`, if any, is a band of all that the publication leaves open."""

    row: PublishedRow

    def fits(self, wanted: Mapping[str, object]) -> bool:
        """Tell whether the series or columns of the row have (or are among) these values."""
        return self.row.fits({key: value for key, value in wanted.items() if key != "series"}) and (
            "series" not in wanted or wanted["series"] == self.series
        )


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The largest mean and worst absolute relative error allowed; None: not limited."""

    mean: float | None = None
    worst: float | None = None

    def allows(self, mean: float, worst: float) -> bool:
        """Tell whether both are within the limit."""
        return (self.mean is None or mean <= self.mean) and (self.worst is None or worst <= self.worst)


@dataclass(frozen=True)
class Alternative:
    """Another way to model the same rows, for honesty about choices made after seeing the data."""

    variant: str
    calibrated_on: str
    predictions: Sequence[Prediction]


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
        parameters: what was fitted by this set, and what it takes from others.
        bound: what the set must stay within from now on; the target itself where that is met.
        target: what was to be reached, if anything was.
        facts: what the set's text needs beside the predictions; text that needs a function calls it.
        others: gives the other ways to model the same rows, which takes longer.
        name: of the set's file.
    """

    title: str
    unit: Unit
    parameters: tuple[Parameter, ...]
    predictions: tuple[Prediction, ...]
    bound: Limit
    target: Limit | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    others: Callable[[], Iterable[Alternative]] = tuple
    curves: tuple[Curve, ...] = ()
    name: str = ""

    @cached_property
    def alternatives(self) -> tuple[Alternative, ...]:
        """Other ways to model the same rows."""
        return tuple(self.others())

    def words(self, block: Block) -> str:
        """Return a block of the set's text as paragraphs of one line each; "" if there is none.

        "about" tells the set-up and what was fitted, "misses" what misses and why, "caveat", a phrase, what a reader of
        the bare verdict must know, "speedups", a phrase, how well the set predicts one. The set's template knows
        `predictions`, their `errors()` and `shorts()` (how much is missing: errors with the other sign), of some by
        series or by columns of the row, and the facts: `{{ errors(model="ResNet-50") | max | f(".1%") }}`.
        """

        def errors(**wanted: object) -> list[float]:
            return [one.error for one in self.predictions if one.fits(wanted)]

        def shorts(**wanted: object) -> list[float]:
            return [-error for error in errors(**wanted)]

        given = {"predictions": self.predictions, "errors": errors, "shorts": shorts, **self.facts}
        return templates.paragraphs(f"sets/{self.name}.md", block, given)

    @property
    def calibration_rows(self) -> tuple[PublishedRow, ...]:
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

"""The outcome of a validation set: fitted parameters, predictions against measurements, and whether they suffice."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from simnet.calibration.comparison import Comparison, mean_error, worst_error
from simnet.core import templates
from simnet.validation.published_rows import PublishedRow

Status = Literal["met", "MISSED", "no target"]
Unit = Literal["ms", "s", "h", "x"]
SCALE: dict[Unit, float] = {"ms": 1e3, "s": 1.0, "h": 1 / 3600, "x": 1.0}
"""Factor from SI units (or a plain ratio) to the shown unit."""
Block = Literal["about", "misses", "caveat", "speedups"]


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A fitted value.

    Attributes:
        part: the shipped file that holds the value.
        key: key in that file, or a description.
        value: value in SI units.
        text: value with its unit.
        how: the method of the fit.
        rows: rows that the value was fitted to.
    """

    part: str
    key: str
    value: float
    text: str
    how: str
    rows: tuple[PublishedRow, ...]


def compute_parameter(
    key: str, compute_s: float, how: str, rows: tuple[PublishedRow, ...], digits: int = 1
) -> Parameter:
    """Return a published compute time as a parameter, in ms with this number of decimals."""
    text = f"{1e3 * compute_s:.{digits}f} ms"
    return Parameter(part="workload", key=key, value=compute_s, text=text, how=how, rows=rows)


@dataclass(frozen=True, kw_only=True)
class Prediction(Comparison):
    """A predicted row.

    Attributes:
        band: range of predictions over everything that the publication leaves open; `predicted` is then the point of it
            next to the measured value.
        known_range: factors between which the model itself says that the value lies, at 90 %.
        shipped_range: returns the factors between which it lies by the intervals of the shipped calibration, at 90 %.
    """

    row: PublishedRow
    band: tuple[float, float] | None = None
    known_range: tuple[float, float] = (1.0, 1.0)
    shipped_range: Callable[[], tuple[float, float]] = field(default=lambda: (1.0, 1.0), compare=False)

    def fits(self, wanted: Mapping[str, object]) -> bool:
        """Return whether series and columns of the row have the values, or one of a tuple of values."""
        return self.row.fits({key: value for key, value in wanted.items() if key != "series"}) and (
            "series" not in wanted or wanted["series"] == self.series
        )


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The largest allowed mean and worst absolute relative error; None does not limit."""

    mean: float | None = None
    worst: float | None = None

    def allows(self, mean: float, worst: float) -> bool:
        """Return whether both errors are within the limit."""
        return (self.mean is None or mean <= self.mean) and (self.worst is None or worst <= self.worst)


@dataclass(frozen=True)
class Alternative:
    """Another model of the same rows, since the chosen one was chosen by people who had seen the data."""

    variant: str
    calibrated_on: str
    predictions: Sequence[Prediction]


@dataclass(frozen=True, kw_only=True)
class FigureLine:
    """A line of a figure that is no scatter plot, with the published value as a horizontal level."""

    panel: str
    label: str
    points: tuple[tuple[float, float], ...]
    level: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A set with its fits and predictions.

    Attributes:
        parameters: values that this set fits, and values that it takes from other sets.
        predictions: every predicted row.
        bound: errors that the set must not exceed from now on; equal to the target where the target is met.
        target: errors that were to be reached, if a target was set.
        facts: further values for the set's template; a function among them is called by the template.
        tells_of_others: whether its errors say how far predictions of other publications may be off; those of single
            messages, and of compute at another batch, say nothing of steps.
        make_alternatives: makes the other models of the same rows, which takes longer.
        curves: lines of the set's figure, if it is no scatter plot.
        name: name of the set's module and template.
    """

    title: str
    unit: Unit
    parameters: tuple[Parameter, ...]
    predictions: tuple[Prediction, ...]
    bound: Limit
    target: Limit | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    tells_of_others: bool = True
    make_alternatives: Callable[[], Iterable[Alternative]] = tuple
    curves: tuple[FigureLine, ...] = ()
    name: str = ""

    @cached_property
    def alternatives(self) -> tuple[Alternative, ...]:
        """Other models of the same rows."""
        return tuple(self.make_alternatives())

    def text(self, block: Block) -> str:
        """Return a block of the set's template as paragraphs of one line each; "" if the template lacks the block.

        The blocks are "about" (the setup and the fits), "misses" (what is predicted badly, and why), "caveat" (a phrase
        that the reader of the result must know) and "speedups" (a phrase on the error of a predicted speedup). The
        template is given `predictions`, `errors()` and `shortfalls()` (errors with the opposite sign) of predictions by
        series or columns, and the facts: `{{ errors(model="ResNet-50") | max | f(".1%") }}`.
        """

        def errors(**wanted: object) -> list[float]:
            return [prediction.error for prediction in self.predictions if prediction.fits(wanted)]

        def shortfalls(**wanted: object) -> list[float]:
            return [-error for error in errors(**wanted)]

        values = {"predictions": self.predictions, "errors": errors, "shortfalls": shortfalls, **self.facts}
        return templates.paragraphs(f"sets/{self.name}.md", block, values)

    @property
    def calibration_rows(self) -> tuple[PublishedRow, ...]:
        """Rows that a parameter was fitted to, each once, in the order of the file."""
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
        """Whether the errors are within the bound."""
        return self.bound.allows(self.mean, self.worst)

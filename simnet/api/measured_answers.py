"""The answers that measurements give: a fitted calibration, and predictions beside what was measured."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simnet.api.answer import Answer
from simnet.core.arguments import File, checked
from simnet.core.errors import SimnetError
from simnet.report.page import Page

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

    from simnet.calibration.comparison import Comparison
    from simnet.calibration.fit import FittedPart
    from simnet.traces.kineto import Trace
    from simnet.validation.coverage import Evidence
    from simnet.validation.outcome import Outcome


@dataclass(frozen=True, kw_only=True, repr=False)
class CalibrationAnswer(Answer):
    """A calibration fitted to measurements.

    Attributes:
        parts: what was fitted, with residuals.
        traces: traces of torch.profiler, each with the name of its file.
        notes: sentences on the whole.
        toml: the calibration as a file; None where the files tell neither links nor kernels.
        workload_toml: compute times of a workload as a file; None if they were not asked for.
    """

    parts: "tuple[FittedPart, ...]"
    traces: "tuple[tuple[Trace, str], ...]" = ()
    notes: tuple[str, ...] = ()
    toml: str | None = None
    workload_toml: str | None = None

    @property
    def residuals(self) -> "tuple[Comparison, ...]":
        """Measured and fitted value of every row."""
        return tuple(residual for part in self.parts for residual in part.residuals)

    @checked
    def write(self, path: File) -> None:
        """Write the calibration to a TOML file.

        Raises:
            SimnetError: there is none, or it cannot be written.
        """
        _write(self.toml, path, "the files tell neither links nor kernels")

    @checked
    def write_workload(self, path: File) -> None:
        """Write the compute times to a TOML file.

        Raises:
            SimnetError: they were not asked for, or the file cannot be written.
        """
        _write(self.workload_toml, path, "no compute times; give calibrate(..., workload=True)")

    @checked
    def page(self, *, all_rows: bool = False) -> Page:
        """Return what `simnet calibrate` prints, with `all_rows` every residual."""
        from simnet.report.calibration import calibration_page

        return calibration_page(self.traces, self.parts, self.residuals if all_rows else (), self.notes)

    def to_json(self) -> str:
        """Return what `simnet calibrate --format json` prints."""
        from simnet.report.calibration import to_object

        return json.dumps(to_object(self.traces, self.parts, self.notes), indent=2)

    def to_frame(self) -> "pandas.DataFrame":
        """Return one row a residual."""
        return _comparisons_frame(self.residuals)

    @checked
    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the residuals over measured time."""
        from simnet.api.drawing import draw_residuals

        return draw_residuals(self.residuals, ax)

    def __repr__(self) -> str:
        """Return the number of rows and their errors in one line."""
        from simnet.report.answer_line import errors_line

        return f"CalibrationAnswer({len(self.parts)} parts, {errors_line(self.residuals)})"


@dataclass(frozen=True, kw_only=True, repr=False)
class ValidationAnswer(Answer):
    """Predictions beside measurements.

    Attributes:
        comparisons: each measured value with its prediction and interval.
        outcomes: published sets, each with the verdict on its bound; none for measurements of one's own.
        evidence: what the intervals of all published sets rest on; None for some sets, or measurements of one's own.
        proof: why own measurements are held out; "" for published sets.
    """

    comparisons: "tuple[Comparison, ...]"
    outcomes: "tuple[Outcome, ...]" = ()
    evidence: "Evidence | None" = None
    proof: str = ""

    @property
    def mean_error(self) -> float:
        """Mean of the absolute relative errors."""
        from simnet.calibration.comparison import mean_error

        return mean_error(self.comparisons)

    @property
    def worst_error(self) -> float:
        """Largest absolute relative error."""
        from simnet.calibration.comparison import worst_error

        return worst_error(self.comparisons)

    def page(self) -> Page:
        """Return what `simnet validate` prints."""
        if self.outcomes:
            from simnet.report.validation import validation_page

            return validation_page(self.outcomes)
        from simnet.report.measured_steps import steps_page

        return steps_page(self.comparisons, [self.proof])  # type: ignore[arg-type]  # points, where no set is

    def to_json(self) -> str:
        """Return the comparisons, of published sets what `simnet validate --published --format json` prints."""
        if self.outcomes:
            from simnet.report.validation import to_object

            return json.dumps(to_object(self.outcomes), indent=2)
        return str(self.to_frame().to_json(orient="records", indent=2))

    def to_frame(self) -> "pandas.DataFrame":
        """Return one row a measured value."""
        return _comparisons_frame(self.comparisons)

    @checked
    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw predicted over measured values with their intervals.

        Raises:
            SimnetError: there are none, or published sets of several units.
        """
        from simnet.api.drawing import draw_comparisons

        units = {outcome.unit for outcome in self.outcomes} or {"ms"}
        if len(units) > 1:
            rule = "one figure holds one; validate sets of one unit"
            raise SimnetError(f"plot: published sets in {', '.join(sorted(units))}: {rule}")
        return draw_comparisons(self.comparisons, units.pop(), ax)

    def __repr__(self) -> str:
        """Return the number of values and their errors in one line."""
        from simnet.report.answer_line import errors_line

        return f"ValidationAnswer({errors_line(self.comparisons)})"


def _write(text: str | None, path: Path | str, reason: str) -> None:
    from simnet.core.files import write_file

    if text is None:
        raise SimnetError(f"{path}: nothing to write: {reason}")
    write_file(Path(path), text.encode())


def _comparisons_frame(comparisons: "Sequence[Comparison]") -> "pandas.DataFrame":
    from simnet.report.frame import frame_of

    return frame_of(
        [
            {
                "series": one.series,
                "label": one.label,
                "role": one.role,
                "measured": one.measured,
                "predicted": one.predicted,
                "predicted_low": one.interval and one.interval[0],
                "predicted_high": one.interval and one.interval[1],
                "error": one.error,
                "is_inside": one.is_inside,
            }
            for one in comparisons
        ]
    )

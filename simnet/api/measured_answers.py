"""The answers that measurements give: a fitted calibration, and predictions beside what was measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from simnet.api.answer import Answer, Shown
from simnet.core.arguments import File, checked
from simnet.core.errors import SimnetError
from simnet.report.table import Page

if TYPE_CHECKING:
    from simnet.calibration.comparison import Comparison
    from simnet.calibration.fit import FittedPart
    from simnet.report.chart import Chart
    from simnet.traces.kineto import Trace
    from simnet.validation.coverage import Evidence
    from simnet.validation.outcome import Outcome
    from simnet.validation.proof_verdict import Verdict


class CalibrationAnswer(Answer, Struct, frozen=True, kw_only=True):
    """A calibration fitted to measurements.

    It prints what `simnet calibrate` prints; its data frame has one row a residual; drawn are the residuals over
    measured time.

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

    def _shown(self) -> Shown:
        from simnet.report import calibration, comparison_charts, rows

        return Shown(
            line=lambda fit: f"{len(fit.parts)} parts, {calibration.errors_line(fit.residuals)}",
            page=CalibrationAnswer.page,
            rows=lambda fit: [rows.row_of(rows.COMPARISON, row) for row in fit.residuals],
            chart=lambda fit: comparison_charts.residuals(_some(fit.residuals)),
            fields=calibration.FIELDS,
        )


class ValidationAnswer(Answer, Struct, frozen=True, kw_only=True):
    """Predictions beside measurements.

    It prints what `simnet validate` prints; its data frame has one row a measured value; drawn are predicted over
    measured values with their intervals.

    Attributes:
        comparisons: each measured value with its prediction and interval.
        outcomes: published sets, each with the verdict on its bound; none for measurements of one's own.
        evidence: what the intervals of all published sets rest on; None for some sets, or measurements of one's own.
        proof: why own measurements are held out; "" for published sets.
        verdict: of the folder of a proof, which parts of its scenario were off, and what to set so that they are not.
    """

    comparisons: "tuple[Comparison, ...]"
    outcomes: "tuple[Outcome, ...]" = ()
    evidence: "Evidence | None" = None
    proof: str = ""
    verdict: "Verdict | None" = None

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

    def _shown(self) -> Shown:
        from simnet.report import calibration, comparison_charts, measured_steps, proof_page, rows, validation
        from simnet.validation.outcome import SCALE

        units = {outcome.unit for outcome in self.outcomes} or {"ms"}

        def chart(answer: ValidationAnswer) -> "Chart":
            if len(units) > 1:
                rule = "one figure holds one; validate sets of one unit"
                raise SimnetError(f"plot: published sets in {', '.join(sorted(units))}: {rule}")
            (unit,) = units
            noun = comparison_charts.NOUNS[unit]
            return comparison_charts.predicted_over_measured(_some(answer.comparisons), noun, SCALE[unit])

        def page(answer: ValidationAnswer) -> Page:
            if answer.outcomes:
                return validation.validation_page(answer.outcomes)
            if answer.verdict is not None:
                return proof_page.proof_page(answer.verdict)
            return measured_steps.steps_page(answer.comparisons, [answer.proof])  # type: ignore[arg-type]  # points

        return Shown(
            line=lambda answer: calibration.errors_line(answer.comparisons),
            page=page,
            rows=lambda answer: [rows.row_of(rows.COMPARISON, row) for row in answer.comparisons],
            chart=chart,
            fields=validation.FIELDS,
        )

    def to_json(self) -> str:
        """Return the comparisons, of published sets what `simnet validate --published --format json` prints."""
        return super().to_json() if self.outcomes else str(self.to_frame().to_json(orient="records", indent=2))


def _some(comparisons: "Sequence[Comparison]") -> "Sequence[Comparison]":
    if not comparisons:
        raise SimnetError("plot: there is nothing to draw: the answer holds no measured values")
    return comparisons


def _write(text: str | None, path: Path | str, reason: str) -> None:
    from simnet.core.files import write_file

    if text is None:
        raise SimnetError(f"{path}: nothing to write: {reason}")
    write_file(Path(path), text.encode())

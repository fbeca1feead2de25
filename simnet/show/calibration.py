"""A calibration for people: what was fitted, how well, and where a traced step went."""

from collections.abc import Iterable, Sequence

from simnet.calibrate.fit import Fitted
from simnet.calibrate.kineto import Trace
from simnet.comparison import Comparison, mean_error
from simnet.show.table import Table
from simnet.show.text import hanging
from simnet.units import format_bytes, format_seconds

PHASES = {
    "step_s": "step", "forward_s": "forward", "backward_s": "backward", "optimizer_s": "optimizer",
    "compute_s": "compute", "communication_s": "communication", "overlapped_s": "of it beside compute",
}  # fmt: skip


def report(parts: Sequence[Fitted]) -> str:
    """Return the fitted numbers, the residuals by group, the worst rows and the notes, as text."""
    residuals = [residual for part in parts for residual in part.residuals]
    blocks = [
        [f"{name:<26} {text}" for part in parts for name, text in part.shown.items()],
        _table(residuals),
        [line for part in parts for note in part.notes for line in hanging("note: ", note)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def rows(residuals: Iterable[Comparison]) -> str:
    """Return every residual as a line of a table."""
    cells = [
        (
            _series(one.series, one.role),
            one.label,
            format_seconds(one.measured),
            format_seconds(one.predicted),
            f"{one.error:+.1%}",
        )
        for one in residuals
    ]
    return Table(("group", "row", "measured", "fitted", "error"), cells).terminal()


def step_times(trace: Trace, name: str) -> str:
    """Return where the steps of a trace went, medians over its steps, and its messages."""
    where = f"{trace.world_size} ranks, {trace.backend or 'no'} backend" + (f", {trace.gpu}" if trace.gpu else "")
    lines = [f"{name}: {len(trace.steps)} steps of one rank, {where}; medians"]
    lines += [f"  {text:<26} {format_seconds(trace.median_s(field))}" for field, text in PHASES.items()]
    last = trace.steps[-1]
    lines += [f"  {one.name}, {format_bytes(one.num_bytes)}: {format_seconds(one.seconds)}" for one in last.messages]
    return "\n".join(lines)


def _table(residuals: Sequence[Comparison]) -> list[str]:
    """Return mean and worst error of every group, fitted ones first."""
    if not residuals:
        return []
    keys = dict.fromkeys((one.role, one.series) for one in residuals)
    lines = (_line(residuals, *key) for key in sorted(keys, key=lambda key: key[0]))
    return [Table(("residuals", "rows", "mean", "worst", "worst row"), lines).terminal()]


def _line(residuals: Sequence[Comparison], role: str, series: str) -> tuple[str, ...]:
    mine = [one for one in residuals if (one.role, one.series) == (role, series)]
    worst = max(mine, key=lambda one: abs(one.error))
    return _series(series, role), str(len(mine)), f"{mean_error(mine):.1%}", f"{worst.error:+.1%}", worst.label


def _series(series: str, role: str) -> str:
    return f"{series} (held out)" if role == "held out" else series

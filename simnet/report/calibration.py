"""A calibration for people: what was fitted, how well, where a traced step went, and every rank beside the others."""

from collections.abc import Iterable, Mapping, Sequence

from simnet.calibration.comparison import Comparison, coverage, mean_error, worst_error, worst_row
from simnet.calibration.fit import FittedPart
from simnet.calibration.variation import RunVariation, VariedRank
from simnet.core.units import format_bytes, format_seconds
from simnet.report.rows import Field
from simnet.report.table import Column, Page, Table
from simnet.report.text import count_text, hanging, nodes_text
from simnet.traces.kineto import Trace

PHASES = {
    "step_s": "step", "forward_s": "forward", "backward_s": "backward", "optimizer_s": "optimizer",
    "compute_s": "compute", "communication_s": "communication", "overlapped_s": "overlapped with compute",
}  # fmt: skip
MOST_RANKS = 32
"""Of a table of ranks, unless all are asked for."""


def calibration_page(
    traces: Iterable[tuple[Trace, str]],
    parts: Sequence[FittedPart],
    listed: Sequence[Comparison] = (),
    notes: Sequence[str] = (),
) -> Page:
    """Return what `simnet calibrate` prints.

    Args:
        traces: each with its name; the page shows the phases of their steps.
        parts: fitted parts; the page shows their numbers, the residuals by group and the notes.
        listed: residuals that are shown one by one.
        notes: sentences on the whole.
    """
    residuals = [residual for part in parts for residual in part.residuals]
    blocks: list[list[str | Table]] = [[*step_times(trace, name)] for trace, name in traces]
    blocks += [
        _numbers({name: text for part in parts for name, text in part.shown.items()}),
        [_groups(residuals)] if residuals else [],
        [line for note in _all_notes(parts, notes) for line in hanging("note: ", note)],
        [Table.of(ROWS, listed)] if listed else [],
    ]
    return Page([piece for block in blocks if block for piece in (*block, "")])


def errors_line(comparisons: Sequence[Comparison]) -> str:
    """Return how far predictions are off in one line."""
    inside, judged = coverage(comparisons)
    known = f", {inside} of {judged} inside their intervals" if judged else ""
    errors = f"mean error {mean_error(comparisons):.1%}, worst {worst_error(comparisons):.1%}"
    return f"{len(comparisons)} values, {errors}{known}" if comparisons else "no values"


def _numbers(shown: Mapping[str, str]) -> list[str | Table]:
    width = max([26, *map(len, shown)])
    return [f"{name:<{width}} {text}" for name, text in shown.items()]


def _all_notes(parts: Iterable[FittedPart], notes: Iterable[str]) -> list[str]:
    return [*(note for part in parts for note in part.notes), *notes]


RESIDUAL = (
    Field("group", "", str, "group", of="series"),
    Field("row", "", str, "row", of="label"),
    Field("role", "", str, "whether the fit saw it"),
    Field("measured_s", "s", float, "measured", of="measured"),
    Field("predicted_s", "s", float, "fitted", of="predicted"),
    Field("error", "fraction", float, "error"),
)
ROWS = (
    Column("group", cell=lambda row: _series(row.series, row.role)),
    *(field.column for field in RESIDUAL if field.name in {"row", "measured_s", "predicted_s"}),
    Column("error", cell=lambda row: f"{row.error:+.1%}"),
)
"""Of every residual."""


def step_times(trace: Trace, name: str) -> list[str]:
    """Return where the steps of a trace went, medians over its steps, and its messages."""
    where = f"{trace.world_size} ranks, {trace.backend or 'no'} backend" + (f", {trace.gpu}" if trace.gpu else "")
    lines = [f"{name}: {len(trace.steps)} steps of one rank, {where}; medians"]
    lines += [f"  {text:<26} {format_seconds(trace.median_s(field))}" for field, text in PHASES.items()]
    last = trace.steps[-1]
    for call in last.collectives:
        sent = call.collective
        assert sent is not None
        size = format_bytes(sent.in_bytes or 0)
        size = "of unknown size" if sent.in_bytes is None and sent.kind != "barrier" else size
        lines.append(f"  {sent.name}, {size}: {format_seconds(call.end_s - call.start_s)}")
    return lines


FIELDS = (
    Field(
        "traces", "", dict, "medians of the phases of a step by trace",
        of=lambda fit: {name: {phase: trace.median_s(phase) for phase in PHASES} for trace, name in fit.traces},
    ),
    Field(
        "fitted", "", dict, "fitted numbers",
        of=lambda fit: {name: text for part in fit.parts for name, text in part.shown.items()},
    ),
    Field("rows", "", list, "residuals", of="residuals", parts=RESIDUAL),
    Field("notes", "", list, "notes", of=lambda fit: _all_notes(fit.parts, fit.notes)),
)  # fmt: skip
"""Of a calibration; see docs/how-to/calibrate.md."""


def _groups(residuals: Sequence[Comparison]) -> Table:
    """Return mean and worst error of every group, fitted ones first."""
    keys = sorted(dict.fromkeys((row.role, row.series) for row in residuals), key=lambda key: key[0])
    return Table(("residuals", "rows", "mean", "worst", "worst row"), (_line(residuals, *key) for key in keys))


def _line(residuals: Sequence[Comparison], role: str, series: str) -> tuple[str, ...]:
    rows = [row for row in residuals if (row.role, row.series) == (role, series)]
    worst = worst_row(rows)
    return _series(series, role), str(len(rows)), f"{mean_error(rows):.1%}", f"{worst.error:+.1%}", worst.label


def _series(series: str, role: str) -> str:
    return f"{series} (held out)" if role == "held out" else series


def variation_page(fitted: RunVariation, snippet: str = "", *, all_rows: bool = False) -> Page:
    """Return what `simnet calibrate --variation` prints.

    Args:
        fitted: what was fitted.
        snippet: faults as TOML, shown below; "" if they are written to a file.
        all_rows: show every rank, not only the slowest of many.
    """
    shown = fitted.ranks if all_rows else _slowest(fitted.ranks)
    ranks = f"{count_text(len(fitted.ranks), 'rank')} on {nodes_text(len(fitted.ranks) // fitted.ranks_per_node)}"
    hidden = len(fitted.ranks) - len(shown)
    notes = [*([f"{hidden} faster ranks are not shown: --all-rows"] if hidden else []), *fitted.notes]
    return Page(
        [
            f"{fitted.where}: {ranks}, {fitted.num_steps} steps; mean compute {format_seconds(fitted.compute_s)}, "
            + (f"cv {fitted.cv:.3g}" if fitted.cv else "which hardly varies"),
            "",
            Table.of(RANK_COLUMNS, shown),
            *(["", *(line for note in notes for line in hanging("note: ", note))] if notes else []),
            *(["", *snippet.splitlines()] if snippet else []),
        ]
    )


def _slowest(ranks: Sequence[VariedRank]) -> tuple[VariedRank, ...]:
    """Return the ranks that are slowest, or hold up others most, in order; all where they are few."""
    if len(ranks) <= MOST_RANKS:
        return tuple(ranks)
    chosen = sorted(ranks, key=lambda rank: (rank.is_slow, rank.held_s or 0.0, rank.factor), reverse=True)[:MOST_RANKS]
    return tuple(sorted(chosen, key=lambda rank: rank.rank))


RANK_COLUMNS = (
    Column("rank", "right", cell=lambda rank: str(rank.rank)),
    Column("node", "right", cell=lambda rank: f"{rank.node}.{rank.local_rank}"),
    Column("compute", "right", cell=lambda rank: format_seconds(rank.compute_s)),
    Column("x others", "right", cell=lambda rank: f"{rank.factor:.3f}"),
    Column("interval", "right", cell=lambda rank: f"{rank.low:.3f} to {rank.high:.3f}"),
    Column("came last", "right", cell=lambda rank: "-" if rank.came_last is None else f"{rank.came_last:.0%}"),
    Column("holds up by", "right", cell=lambda rank: "-" if rank.held_s is None else format_seconds(rank.held_s)),
    Column(
        "pauses", "right", cell=lambda rank: f"{rank.pauses}, {format_seconds(rank.paused_s)}" if rank.pauses else "-"
    ),
    Column("", cell=lambda rank: "slow" if rank.is_slow else ""),
)

"""Fitted variation for people: every rank beside the others, who came last, and what it cost."""

from collections.abc import Mapping, Sequence

from msgspec import to_builtins

from simnet.calibration.variation import RunVariation, VariedRank
from simnet.core.units import format_seconds
from simnet.report.page import Page
from simnet.report.table import Column, Table
from simnet.report.text import count_text, hanging, nodes_text

MOST_ROWS = 32


def variation_page(found: RunVariation, snippet: str = "", *, all_rows: bool = False) -> Page:
    """Return what `simnet calibrate --variation` prints.

    Args:
        found: what was fitted.
        snippet: faults as TOML, shown below; "" if they are written to a file.
        all_rows: show every rank, not only the slowest of many.
    """
    shown = found.ranks if all_rows else _slowest(found.ranks)
    ranks = f"{count_text(len(found.ranks), 'rank')} on {nodes_text(len(found.ranks) // found.ranks_per_node)}"
    hidden = len(found.ranks) - len(shown)
    notes = [*([f"{hidden} faster ranks are not shown: --all-rows"] if hidden else []), *found.notes]
    return Page(
        [
            f"{found.where}: {ranks}, {found.num_steps} steps; mean compute {format_seconds(found.compute_s)}, "
            + (f"cv {found.cv:.3g}" if found.cv else "which hardly varies"),
            "",
            Table.of(COLUMNS, shown),
            *(["", *(line for note in notes for line in hanging("note: ", note))] if notes else []),
            *(["", *snippet.splitlines()] if snippet else []),
        ]
    )


def variation_object(found: RunVariation) -> Mapping[str, object]:
    """Return what `simnet calibrate --variation --format json` prints."""
    whole: Mapping[str, object] = to_builtins(found)
    return whole


def _slowest(ranks: Sequence[VariedRank]) -> tuple[VariedRank, ...]:
    """Return the ranks that are slowest, or hold up others most, in order; all where they are few."""
    if len(ranks) <= MOST_ROWS:
        return tuple(ranks)
    chosen = sorted(ranks, key=lambda one: (one.is_slow, one.held_s or 0.0, one.factor), reverse=True)[:MOST_ROWS]
    return tuple(sorted(chosen, key=lambda one: one.rank))


COLUMNS = (
    Column("rank", "right", cell=lambda one: str(one.rank)),
    Column("node", "right", cell=lambda one: f"{one.node}.{one.local_rank}"),
    Column("compute", "right", cell=lambda one: format_seconds(one.compute_s)),
    Column("x others", "right", cell=lambda one: f"{one.factor:.3f}"),
    Column("interval", "right", cell=lambda one: f"{one.low:.3f} to {one.high:.3f}"),
    Column("came last", "right", cell=lambda one: "-" if one.came_last is None else f"{one.came_last:.0%}"),
    Column("holds up by", "right", cell=lambda one: "-" if one.held_s is None else format_seconds(one.held_s)),
    Column("pauses", "right", cell=lambda one: f"{one.pauses}, {format_seconds(one.paused_s)}" if one.pauses else "-"),
    Column("", cell=lambda one: "slow" if one.is_slow else ""),
)

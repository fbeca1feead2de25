"""Draw the table of a sweep: a speedup matrix for each workload, or a list of points, and the headlines."""

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import takewhile

from simnet.result import PointResult, StrategyResult, SweepResult
from simnet.show.labels import names, panels
from simnet.show.notes import notes_lines
from simnet.show.page import Page
from simnet.show.table import Column, Table
from simnet.show.text import (
    bandwidth_text,
    gpus_text,
    hanging,
    nodes_text,
    speedup_text,
    throughput_text,
    value_text,
)
from simnet.units import format_seconds

MAX_COLUMNS = 11
RATE_WIDTH, CELL_WIDTH = 14, 7
MAX_HEADLINE_PANELS = 3
Matrix = dict[tuple[float, int], PointResult]


def sweep_page(sweep: SweepResult) -> Page:
    """Return what `simnet sweep` prints."""
    heading = [sweep.question, ""] if sweep.question else []
    tables = _matrices(sweep) if _fits_matrices(sweep) else (_list(sweep), "")
    notes = [line for key in sweep.varied for line in _without_effect(sweep, key)]
    notes += notes_lines([point.notes for point in sweep.points])
    return Page([*heading, *tables, *_headlines(sweep), *([""] if notes else []), *notes])


def matrix(points: list[PointResult]) -> Matrix:
    """Return the points of a panel by NIC bandwidth [Gbit/s] and number of nodes."""
    return {(point.nic_gbit_per_s, point.num_nodes): point for point in points}


def _fits_matrices(sweep: SweepResult) -> bool:
    """Return whether rows of bandwidth and columns of nodes show every point and its speedup."""
    cells = [matrix(points) for points in panels(sweep.points).values()]
    nodes = {num_nodes for cell in cells for _, num_nodes in cell}
    return (
        all(point.speedup is not None for point in sweep.points)
        and sum(len(cell) for cell in cells) == len(sweep.points)
        and len({key for cell in cells for key in cell}) > 1
        and len(nodes) <= MAX_COLUMNS
    )


def _matrices(sweep: SweepResult) -> Iterator[str | Table]:
    for label, points in panels(sweep.points).items():
        gpus = gpus_text(*(point.ranks_per_node for point in points))
        yield f"{label}: speedup of {' over '.join(names(points))}, by NIC bandwidth and nodes of {gpus}"
        yield _matrix_table(matrix(points))
        yield ""


def _matrix_table(cells: Matrix) -> Table:
    nodes = sorted({num_nodes for _, num_nodes in cells})
    columns = [Column(str(num_nodes), "right", width=CELL_WIDTH, gap=0) for num_nodes in nodes]
    rows = []
    for rate in sorted({rate for rate, _ in cells}):
        shown = (cells[rate, num_nodes].speedup if (rate, num_nodes) in cells else None for num_nodes in nodes)
        rows.append([bandwidth_text(rate), *map(speedup_text, shown)])
    return Table([Column("nodes", "right", width=RATE_WIDTH), *columns], rows)


def _list(sweep: SweepResult) -> Table:
    """Return a row for each point."""
    keys = list(dict.fromkeys(key for point in sweep.points for key in point.set))
    rows = [[*(value_text(point.set.get(key, "")) for key in keys), *_metrics(point)] for point in sweep.points]
    return Table([Column(title, "right") for title in (*keys, "iteration", "throughput", "speedup")], rows)


def _metrics(point: PointResult) -> tuple[str, str, str]:
    result = point.result
    return format_seconds(result.iteration_s), throughput_text(result.samples_per_s), speedup_text(point.speedup)


def _without_effect(sweep: SweepResult, key: str) -> list[str]:
    """Return a note if the time of an iteration is the same at all values of a key."""
    rows: dict[str, list[PointResult]] = defaultdict(list)
    for point in sweep.points:
        rows[repr({other: value for other, value in point.set.items() if other != key})].append(point)
    if any(not _same_times(point, row[0]) for row in rows.values() for point in row):
        return []
    others = [
        text
        for text, metric in (("samples/s", _samples_per_s), ("the end-to-end time", _total_s))
        if any(metric(point) != metric(row[0]) for row in rows.values() for point in row)
    ]
    but = f" but {' and '.join(others)}" if others else ""
    return hanging("note: ", f"{key} changes nothing{but}: all its values give the same iteration times here")


def _samples_per_s(point: PointResult) -> float:
    return point.result.samples_per_s


def _total_s(point: PointResult) -> float | None:
    return point.result.total_s


def _same_times(one: PointResult, other: PointResult) -> bool:
    """Return whether two results have the same iteration time, and their baselines, but for rounding."""
    if one.baseline is not None and other.baseline is not None:
        return _close(one.result, other.result) and _close(one.baseline, other.baseline)
    return _close(one.result, other.result) and one.baseline is other.baseline


def _close(one: StrategyResult, other: StrategyResult) -> bool:
    return math.isclose(one.iteration_s, other.iteration_s, rel_tol=1e-9)


def _headlines(sweep: SweepResult) -> Iterator[str]:
    """Yield the largest speedup and where the strategy is slower, of each panel, or of all at once if they are many."""
    by_panel = panels(sweep.points)
    for label, points in (by_panel if len(by_panel) <= MAX_HEADLINE_PANELS else {"all": list(sweep.points)}).items():
        compared = [point for point in points if point.speedup is not None]
        if compared:
            best = max(compared, key=_speedup)
            yield f"{label}: largest speedup {speedup_text(best.speedup)}, {_place(best)}."
            if len(compared) > 1:
                yield f"{label}: {_slower(compared)}."


def _speedup(point: PointResult) -> float:
    return point.speedup or 0.0


def _place(point: PointResult) -> str:
    return f"on {nodes_text(point.num_nodes)} at {bandwidth_text(point.nic_gbit_per_s)}"


def _is_slower(point: PointResult) -> bool:
    """Return whether the speedup, as it is shown, is below 1."""
    return round(_speedup(point), 2) < 1


def _slower(points: list[PointResult]) -> str:
    """Return where the strategy is slower than its baseline, as a sentence without its end."""
    least = min(points, key=_speedup)
    least_text = f"least {speedup_text(least.speedup)}, {_place(least)}"
    slower = [point for point in points if _is_slower(point)]
    if not slower:
        return f"never slower at the points simulated; {least_text}"
    places = [f"{since}, on {nodes_text(*counts)}" for since, counts in _slower_since(points).items()]
    return f"slower at {len(slower)} of {len(points)} points: {'; '.join([*places, least_text])}"


def _slower_since(points: list[PointResult]) -> dict[str, list[int]]:
    """Return the node counts by the bandwidth from which on every faster network leaves the strategy slower."""
    counts: dict[str, list[int]] = defaultdict(list)
    for num_nodes in sorted({point.num_nodes for point in points}):
        row = sorted((p for p in points if p.num_nodes == num_nodes), key=lambda p: p.nic_gbit_per_s, reverse=True)
        tail = list(takewhile(_is_slower, row))
        if tail and len(row) > 1:
            every = len(tail) == len(row)
            since = "at every bandwidth" if every else f"from {bandwidth_text(tail[-1].nic_gbit_per_s)} on"
            counts[since].append(num_nodes)
    return counts

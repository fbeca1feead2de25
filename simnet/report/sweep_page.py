"""Draw the table of a sweep: a speedup matrix for each workload, or a list of points, and the headlines."""

import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile, zip_longest

from simnet.core.units import format_seconds
from simnet.engine.result import PointResult, SweepResult
from simnet.report.labels import (
    BANDWIDTH_KEYS,
    NODES_KEYS,
    WORKLOAD_KEYS,
    names,
    panels,
    short_key,
    sides,
    tuned_title,
    value_label,
    varies,
)
from simnet.report.result_page import reference_sentence
from simnet.report.rows import BY_NAME
from simnet.report.table import Column, Page, Table
from simnet.report.text import (
    WIDTH,
    bandwidth_text,
    capitalized,
    gpus_text,
    hanging,
    nodes_text,
    notes_lines,
    printable,
    speedup_text,
    value_text,
)

MAX_COLUMNS = 11
RATE_WIDTH, CELL_WIDTH = 14, 7
MAX_HEADLINE_PANELS = 3
MAX_REFUSED = 10
Matrix = dict[tuple[float, int], PointResult]


def sweep_page(sweep: SweepResult) -> Page:
    """Return what `simnet sweep` prints."""
    heading = [*textwrap.wrap(sweep.question, WIDTH), ""] if sweep.question else []
    tables = _matrices(sweep) if _fits_matrices(sweep) else (_list(sweep), "")
    notes = [*_accumulations(sweep), *(line for key in sweep.varied for line in _without_effect(sweep, key))]
    notes += notes_lines([point.notes for point in sweep.points])
    refused = refused_lines(sweep)
    ends = [line for lines in (notes, refused) if lines for line in ("", *lines)]
    return Page([*heading, *tables, *headlines(sweep), *ends])


def sweep_line(sweep: SweepResult) -> str:
    """Return points, keys and speedups of a sweep in one line."""
    refused = f", {len(sweep.refused)} refused" if sweep.refused else ""
    speedups = [point.speedup for point in sweep.points if point.speedup is not None]
    between = f", {speedup_text(min(speedups))} to {speedup_text(max(speedups))}" if speedups else ""
    over = " and ".join(sweep.varied) or "one point"
    return f"{printable(sweep.name)}: {len(sweep.points)} points{refused} over {printable(over)}{between}"


def refused_lines(sweep: SweepResult, others: str = "'refused' in results.json (-o DIR)") -> list[str]:
    """Return the points that were not simulated, each with the reason; nothing where there is none.

    Args:
        sweep: with its refused points.
        others: where those stand that are too many to be listed.
    """
    num_refused = len(sweep.refused)
    if not num_refused:
        return []
    lines = [f"refused: {num_refused} of {len(sweep.points) + num_refused} points, which are left out:"]
    for point in sweep.refused[:MAX_REFUSED]:
        lines += hanging("  ", f"{_set_text(point.set)}: {point.reason}")
    more = num_refused - MAX_REFUSED
    return [*lines, *([f"  and {more} more: see {others}"] if more > 0 else [])]


def _accumulations(sweep: SweepResult) -> Iterator[str]:
    """Yield how many micro-batches fixed global batches take, where the table does not say it."""
    counts: dict[int, set[int]] = defaultdict(set)
    for point in sweep.points:
        if point.scenario.run.global_batch is not None:
            counts[point.scenario.run.global_batch].add(point.scenario.grad_accumulation)
    for batch, numbers in counts.items():
        between = f"{min(numbers)} to {max(numbers)}" if len(numbers) > 1 else str(min(numbers))
        yield f"note: run.global_batch = {batch}: gradients are accumulated over {between} micro-batches"


def _set_text(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key} = {value_text(value)}" for key, value in values.items())


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
        and max(len(cell) for cell in cells) > 1
        and len(nodes) <= MAX_COLUMNS
    )


def _matrices(sweep: SweepResult) -> Iterator[str | Table]:
    for label, points in panels(sweep.points).items():
        gpus = gpus_text(*(point.ranks_per_node for point in points))
        yield f"{label}: speedup of {' over '.join(names(points))}, by NIC bandwidth and nodes of {gpus}"
        cells = matrix(points)
        yield _matrix_table(cells, lambda point: speedup_text(point.speedup))
        flat = {point.references.flat for point in points if point.references}
        if flat and any(point.speedup_over_flat for point in points):
            yield f"speedup of {names(points)[0]} over {printable(min(flat))}:"
            yield _matrix_table(cells, lambda point: speedup_text(point.speedup_over_flat))
        yield f"step time of {names(points)[-1]}:"
        yield _matrix_table(cells, BY_NAME["baseline_iteration_s"].cell)
        if any(map(varies, points)):
            yield "speedup of medians / of 95th percentiles of the steps:"
            yield _matrix_table(cells, _speedups_of_tails)
        yield ""


def _matrix_table(cells: Matrix, written: Callable[[PointResult], str]) -> Table:
    nodes = sorted({num_nodes for _, num_nodes in cells})
    rows = [
        [bandwidth_text(rate), *(written(cells[rate, count]) if (rate, count) in cells else "-" for count in nodes)]
        for rate in sorted({rate for rate, _ in cells})
    ]
    longest = max(len(cell) for row in rows for cell in row[1:])
    width = max(CELL_WIDTH, longest + 2)
    columns = [Column(str(num_nodes), "right", width=width, gap=0) for num_nodes in nodes]
    return Table([Column("nodes", "right", width=RATE_WIDTH), *columns], rows)


def _speedups_of_tails(point: PointResult) -> str:
    if point.baseline is None:
        return "-"
    ratios = (point.baseline.percentile_s(percent) / point.result.percentile_s(percent) for percent in (50, 95))
    return " / ".join(map(speedup_text, ratios))


def _list(sweep: SweepResult) -> Table:
    """Return a row for each point."""
    keys = list(dict.fromkeys(key for point in sweep.points for key in point.set))
    columns = {
        title: partial(BY_NAME[name].cell, missing="-")
        for title, name in _METRICS.items()
        if (title not in _OF_BASELINE or any(point.baseline for point in sweep.points))
        and (name != "speedup_over_flat" or any(point.speedup_over_flat for point in sweep.points))
        and (name != "speedup_over_named" or any(point.speedup_over_named for point in sweep.points))
        and (title not in _OF_VARIED or any(map(varies, sweep.points)))
    }
    if any(point.scenario.run.global_batch is not None for point in sweep.points):
        columns = {"accumulation": partial(BY_NAME["grad_accumulation"].cell), **columns}
    rows = [
        [*(value_text(point.set.get(key, "")) for key in keys), *(written(point) for written in columns.values())]
        for point in sweep.points
    ]
    tuned = tuned_title(sweep.points)
    titles = [title.replace("baseline", tuned) if tuned and title in _OF_BASELINE else title for title in columns]
    return Table([Column(title, "right") for title in (*keys, *titles)], rows)


_METRICS = {
    "step": "iteration_s",
    "p50": "p50_s",
    "p95": "p95_s",
    "baseline": "baseline_iteration_s",
    "baseline p95": "baseline_p95_s",
    "throughput": "samples_per_s",
    "speedup": "speedup",
    "over flat": "speedup_over_flat",
    "over baseline": "speedup_over_named",
}
"""Columns of a list of points, and the field of each."""
_OF_BASELINE = ("baseline", "baseline p95", "speedup")
_OF_VARIED = ("p50", "p95", "baseline p95")


def _without_effect(sweep: SweepResult, key: str) -> list[str]:
    """Return a note if the time of an iteration is the same at all values of a key."""
    if key.partition(".")[0] == "baseline":  # it stands beside, and is in a column of its own
        return []
    rows: dict[str, list[PointResult]] = defaultdict(list)
    for point in sweep.points:
        rows[repr({other: value for other, value in point.set.items() if other != key})].append(point)
    if all(len(row) == 1 for row in rows.values()):  # of a list of points: no two differ in this key alone
        return []
    pairs = [(point, row[0]) for row in rows.values() for point in row]
    if not all(_same_times(*pair) for pair in pairs):
        return []
    others = [
        text
        for text, metric in (("samples/s", "samples_per_s"), ("the end-to-end time", "total_s"))
        if any(getattr(point.result, metric) != getattr(first.result, metric) for point, first in pairs)
    ]
    but = f" but {' and '.join(others)}" if others else ""
    return hanging("note: ", f"{key} changes nothing{but}: all its values give the same step times here")


def _same_times(first: PointResult, second: PointResult) -> bool:
    """Return whether two results have the same iteration time, and their baselines, but for rounding."""
    pairs = zip_longest(sides(first), sides(second))
    return all(a and b and math.isclose(a.iteration_s, b.iteration_s, rel_tol=1e-9) for a, b in pairs)


def headlines(sweep: SweepResult) -> Iterator[str]:
    """Yield the largest speedup and where the strategy is slower, of each panel, or of all at once if they are many."""
    yield from _fastest(sweep)
    by_panel = panels(sweep.points)
    # Panels of one point each have nothing to compare: the swept keys are named at the best and the worst instead.
    is_apart = len(by_panel) <= MAX_HEADLINE_PANELS and any(len(points) > 1 for points in by_panel.values())
    for label, points in (by_panel if is_apart else {"": list(sweep.points)}).items():
        compared = [point for point in points if point.speedup is not None]
        if compared:
            keys = [] if is_apart else _named_keys(sweep)
            best = max(compared, key=_speedup)
            yield f"{label or _swept_text(best, keys)}: largest speedup {speedup_text(best.speedup)}, {_place(best)}."
            yield from (f"{capitalized(text)}." for text in filter(None, [reference_sentence(best)]))
            if len(compared) > 1:
                yield f"{label or 'all points'}: {_slower(compared, keys)}."


def _fastest(sweep: SweepResult) -> Iterator[str]:
    """Yield the fastest point, where all points take one global batch: only then do their iterations do the same."""
    batches = {point.scenario.run.global_batch for point in sweep.points}
    is_one_task = len(batches) == 1 and None not in batches and not set(WORKLOAD_KEYS) & set(sweep.varied)
    if is_one_task and len(sweep.points) > 1:
        best, keys = min(sweep.points, key=lambda point: point.result.iteration_s), _named_keys(sweep)
        where = ", ".join([_place(best), *([_swept_text(best, keys)] if keys else [])])
        strategy = names(list(sweep.points))[0]
        yield f"fastest with {strategy}: {format_seconds(best.result.iteration_s)} a step, {where}."


def _named_keys(sweep: SweepResult) -> list[str]:
    """Return the swept keys that the place of a point does not tell: neither nodes nor bandwidth."""
    return [key for key in sweep.varied if key not in (*BANDWIDTH_KEYS, *NODES_KEYS)]


def _swept_text(point: PointResult, keys: Sequence[str]) -> str:
    """Return the values of swept keys at a point: "grad_accumulation = 8", of workloads their names."""
    texts = [
        value_label(point, key) if key in WORKLOAD_KEYS else f"{short_key(point, key)} = {value_label(point, key)}"
        for key in keys
        if key in point.set
    ]
    return ", ".join(texts) or "all points"


def _speedup(point: PointResult) -> float:
    return point.speedup or 0.0


def _place(point: PointResult) -> str:
    return f"on {nodes_text(point.num_nodes)} at {bandwidth_text(point.nic_gbit_per_s)}"


def is_slower(point: PointResult) -> bool:
    """Return whether the speedup, as it is shown, is below 1."""
    return round(_speedup(point), 2) < 1


def _slower(points: list[PointResult], keys: Sequence[str]) -> str:
    """Return where the strategy is slower than its baseline, as a sentence without its end."""
    least = min(points, key=_speedup)
    at = f", {_swept_text(least, keys)}" if keys else ""
    least_text = f"least {speedup_text(least.speedup)}{at}, {_place(least)}"
    slower = [point for point in points if is_slower(point)]
    if not slower:
        return f"never slower at the points simulated; {least_text}"
    places = [f"{since}, on {nodes_text(*counts)}" for since, counts in _slower_since(points).items()]
    return f"slower at {len(slower)} of {len(points)} points: {'; '.join([*places, least_text])}"


def _slower_since(points: list[PointResult]) -> dict[str, list[int]]:
    """Return the node counts by the bandwidth from which on every faster network leaves the strategy slower."""
    counts: dict[str, list[int]] = defaultdict(list)
    for num_nodes in sorted({point.num_nodes for point in points}):
        row: dict[float, bool] = {}
        for point in points:
            if point.num_nodes == num_nodes:
                row[point.nic_gbit_per_s] = row.get(point.nic_gbit_per_s, True) and is_slower(point)
        tail = list(takewhile(row.get, sorted(row, reverse=True)))
        if tail and len(row) > 1:
            every = len(tail) == len(row)
            since = "at every bandwidth" if every else f"from {bandwidth_text(tail[-1])} on"
            counts[since].append(num_nodes)
    return counts

"""The figures that a sweep can have: what each needs, and how its panels are drawn."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

from matplotlib.axes import Axes
from msgspec import structs

from simnet.engine.result import PointResult, SweepResult
from simnet.report import figures, heat_map_figure, labels, tail_figure
from simnet.report.labels import BANDWIDTH_KEYS, NODES_KEYS, Panels
from simnet.report.text import bandwidth_text, nodes_text

Draw = Callable[[Axes, Sequence[PointResult]], None]

# How many times as tall the baseline's bars must be for the strategy's to be drawn once more alone.
MUCH_TALLER = 2.0
ALONE = "without the baseline"
FAULT_KEYS = ("cluster.faults.", "cluster.slow_nodes.")


class Drawing(NamedTuple):
    """One figure: its title, its needs, and how a panel of it is drawn.

    Attributes:
        title: with fields for the names of strategy and baseline, and for what stays fixed over nodes.
        draw: draws the points of one panel.
        drawn: swept keys that a panel has an axis for; every value of the other keys makes a panel.
        rows: whether each point is a row of bars.
        bars: whether the legend explains the parts of bars instead of lines.
        needs_nodes: whether the results must have several numbers of nodes.
        needs_bandwidth: whether the results must have several bandwidths.
        needs_baseline: whether every point must have a baseline.
        share_y: whether panels share the y axis, all of them or those of a row.
        only_asked: whether it is drawn only where its name is given.
        split: makes the panels that are drawn from those of the results.
        curves: a panel's points by curve, of drawings whose curves may get a panel each.
        at: where the points of one curve stand on the x axis, to draw it faintly behind the others.
    """

    title: str
    draw: Draw
    drawn: tuple[str, ...] = (*BANDWIDTH_KEYS, *NODES_KEYS)
    rows: bool = False
    bars: bool = False
    needs_nodes: bool = False
    needs_bandwidth: bool = False
    needs_baseline: bool = False
    share_y: bool | Literal["row"] = False
    only_asked: bool = False
    split: Callable[[Panels], Panels] = lambda panels: panels
    curves: Callable[[Sequence[PointResult]], Panels] | None = None
    at: Callable[[PointResult], float] | None = None

    @property
    def has_intervals(self) -> bool:
        """Whether it shows intervals: lines and bars of speedups do, parts of a step and cells of a map do not."""
        return not self.bars and (self.rows or self.curves is not None)


def possible(sweep: SweepResult) -> dict[str, Drawing]:
    """Return the figures whose axes vary in these results."""
    missing = left_out(sweep)
    return {name: drawing for name, drawing in _drawings(sweep).items() if name not in missing}


def left_out(sweep: SweepResult) -> dict[str, str]:
    """Return why a figure cannot be drawn from these results, by its name."""
    num_nodes, num_rates = _num_varied(sweep)
    compared = all(point.speedup is not None and point.baseline is not None for point in sweep.points)
    needs = (
        ("needs_nodes", num_nodes > 1, "needs two or more numbers of nodes"),
        ("needs_bandwidth", num_rates > 1, "needs two or more bandwidths"),
        ("needs_baseline", compared, "needs a baseline at every point"),
    )
    reasons = {
        name: [reason for field, is_met, reason in needs if getattr(drawing, field) and not is_met]
        for name, drawing in (NETWORK_DRAWINGS | _drawings(sweep)).items()
    }
    return {name: " and ".join(found) for name, found in reasons.items() if found}


def narrowed(sweep: SweepResult) -> dict[str, str]:
    """Return what a drawn figure does not show, by its name."""
    shows_part = {"breakdown", "breakdown_of_all"} <= possible(sweep).keys()
    most = max(figures.node_counts(sweep.points))
    told = f"shows {nodes_text(most)} alone; draw the others with --figure breakdown_of_all"
    return {"breakdown": told} if shows_part else {}


def _drawings(sweep: SweepResult) -> dict[str, Drawing]:
    num_nodes, num_rates = _num_varied(sweep)
    drawings = NETWORK_DRAWINGS if num_nodes > 1 or num_rates > 1 else _key_drawings(sweep)
    return drawings | _tail_drawings(sweep)


def _tail_drawings(sweep: SweepResult) -> dict[str, Drawing]:
    """Return the figures of a sweep over a number of a fault, or of one whose iterations vary."""
    numeric = [key for key in sweep.varied if labels.numbers(sweep.points, key) is not None]
    of_faults = [key for key in numeric if key.startswith(FAULT_KEYS)]
    sides = [side for point in sweep.points for side in (point.result, point.baseline) if side is not None]
    if not numeric or not (of_faults or any(side.varies for side in sides)):
        return {}
    key = of_faults[-1] if of_faults else labels.main_key(sweep)
    others = [other for other in sweep.varied if other != key]
    lines = partial(tail_figure.speedups_over, key=key, others=others)
    return {
        "iteration_time": Drawing(
            "Time of an iteration: median, shaded up to the 95th percentile",
            partial(tail_figure.times_over, key=key),
            (key,),
        ),
        "speedup_of_tails": Drawing(
            "Speedup of {strategy} over {baseline}, of medians and of 95th percentiles",
            lines,
            tuple(sweep.varied),
            needs_baseline=True,
        ),
    }


def _num_varied(sweep: SweepResult) -> tuple[int, int]:
    """Return the largest numbers of node counts and of bandwidths that one panel has."""
    panels = labels.panels(sweep.points).values()
    return (
        max(len(figures.node_counts(points)) for points in panels),
        max(len(figures.rates(points)) for points in panels),
    )


def _key_drawings(sweep: SweepResult) -> dict[str, Drawing]:
    """Return the figures of a sweep over neither nodes nor bandwidth: lines over numbers, else bars."""
    key = labels.main_key(sweep)
    others = [other for other in sweep.varied if other != key]
    title, breakdown_title = "Speedup of {strategy} over {baseline}", NETWORK_DRAWINGS["breakdown"].title
    # A line needs two points that differ in its key alone, which listed points often have not.
    is_scattered = bool(others) and all(len(line) == 1 for line in labels.grouped(sweep.points, others).values())
    if is_scattered or labels.numbers(sweep.points, key) is None:
        keys = tuple(sweep.varied) if is_scattered else (key,)
        bars, stacks = partial(figures.speedup_of_each, keys=keys), partial(figures.breakdown_of_each, keys=keys)
        return {
            "speedup": Drawing(title, bars, keys, rows=True, needs_baseline=True, share_y="row"),
            "breakdown": Drawing(breakdown_title, stacks, keys, rows=True, bars=True, share_y="row", split=_with_alone),
        }
    lines = partial(figures.speedup_over, key=key, others=others)
    columns = partial(figures.breakdown_over, key=key)
    return {
        "speedup": Drawing(
            title,
            lines,
            tuple(sweep.varied),
            needs_baseline=True,
            curves=lambda points: labels.grouped(points, others),
            at=lambda point: (labels.numbers([point], key) or [0.0])[0],
        ),
        "breakdown": Drawing(breakdown_title, columns, (key,), bars=True, split=_with_alone),
        **_key_heat_map(sweep, key, others),
    }


def _key_heat_map(sweep: SweepResult, key: str, others: Sequence[str]) -> dict[str, Drawing]:
    """Return the heat map over a key and the last one of the others with numbers, if there is one."""
    rows = [other for other in others if labels.numbers(sweep.points, other) is not None]
    if not rows:
        return {}
    cells = partial(heat_map_figure.heat_map_over, row_key=rows[-1], column_key=key)
    return {"heat_map": Drawing(NETWORK_DRAWINGS["heat_map"].title, cells, (key, rows[-1]), needs_baseline=True)}


def _by_rate(points: Sequence[PointResult]) -> Panels:
    """Return the points of each bandwidth, ascending, as the figures name it."""
    rates = figures.rates(points)
    return {bandwidth_text(rate): [point for point in points if point.nic_gbit_per_s == rate] for rate in rates}


def _by_nodes(points: Sequence[PointResult]) -> Panels:
    """Return the points of each number of nodes, ascending, as the figures name it."""
    counts = figures.node_counts(points)
    return {nodes_text(count): [point for point in points if point.num_nodes == count] for count in counts}


def _with_alone(panels: Panels) -> Panels:
    """Add to each panel one without the baseline, if its bars make those of the strategy too short to read."""
    if all(_tallest(points) < MUCH_TALLER * max(p.result.iteration_s for p in points) for points in panels.values()):
        return panels
    doubled: Panels = {}
    for label, points in panels.items():
        join = ", " if "\n" in label else "\n"
        doubled[label] = points
        doubled[f"{label}{join}{ALONE}"] = [structs.replace(point, baseline=None) for point in points]
    return doubled


def _tallest(points: Sequence[PointResult]) -> float:
    return max(one.iteration_s for point in points for one in (point.result, point.baseline or point.result))


def _largest_cluster(panels: Panels) -> Panels:
    """Keep of each panel the points that differ in bandwidth alone, or else in nodes alone."""
    return _with_alone(dict(_one_dimension(label, points) for label, points in panels.items()))


def _every_cluster(panels: Panels) -> Panels:
    """Return a panel for each number of nodes of each panel."""
    return {
        f"{label}\n{name}" if label else name: there
        for label, points in panels.items()
        for name, there in _by_nodes(points).items()
    }


def _one_dimension(label: str, points: list[PointResult]) -> tuple[str, list[PointResult]]:
    if len(figures.rates(points)) < 2:
        return f"{label}\n{bandwidth_text(points[0].nic_gbit_per_s)}", points
    most = max(figures.node_counts(points))
    return f"{label}\n{nodes_text(most)}", [point for point in points if point.num_nodes == most]


NETWORK_DRAWINGS = {
    "speedup_over_nodes": Drawing(
        "Speedup of {strategy} over {baseline}, by nodes",
        figures.speedup_over_nodes,
        curves=_by_rate,
        at=lambda point: float(point.num_nodes),
        needs_nodes=True,
        needs_baseline=True,
        share_y=True,
    ),
    "speedup_over_bandwidth": Drawing(
        "Speedup of {strategy} over {baseline}, by NIC bandwidth",
        figures.speedup_over_bandwidth,
        curves=_by_nodes,
        at=lambda point: point.nic_gbit_per_s,
        needs_bandwidth=True,
        needs_baseline=True,
        share_y=True,
    ),
    "throughput": Drawing(
        "Throughput against linear scaling, {scaling}",
        figures.throughput,
        curves=_by_rate,
        needs_nodes=True,
        share_y="row",
    ),
    "breakdown": Drawing(
        "Time of one iteration by part, on the slowest rank",
        figures.breakdown,
        bars=True,
        split=_largest_cluster,
    ),
    "breakdown_of_all": Drawing(
        "Time of one iteration by part, on the slowest rank",
        figures.breakdown,
        bars=True,
        needs_nodes=True,
        needs_bandwidth=True,
        only_asked=True,
        split=_every_cluster,
    ),
    "heat_map": Drawing(
        "Speedup of {strategy} over {baseline}; the line separates faster from slower",
        heat_map_figure.heat_map,
        needs_nodes=True,
        needs_bandwidth=True,
        needs_baseline=True,
    ),
}

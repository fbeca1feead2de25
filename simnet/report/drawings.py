"""The figures of a sweep: what each needs, the charts of its panels, and how they are laid out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from simnet.core.errors import SimnetError
from simnet.engine.result import PointResult, SweepResult
from simnet.report import charts, labels
from simnet.report.chart import FAINT, Chart, Curve
from simnet.report.chart_matplotlib import Shared, figure_of
from simnet.report.charts import BANDWIDTH, NODES, along, lines_of
from simnet.report.figure import current
from simnet.report.labels import BANDWIDTH_KEYS, NODES_KEYS, Panels
from simnet.report.text import bandwidth_text, nodes_text, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MUCH_TALLER = 2.0
"""Times as tall that the baseline's bars must be for the strategy's to be drawn once more alone."""
ALONE = "without the baseline"
FAULT_KEYS = ("cluster.faults.", "cluster.slow_nodes.")
MAX_PANELS, MAX_ROWS = 12, 40
MOST_CURVES, MOST_MULTIPLES, MULTIPLES_IN_ROW, MULTIPLE_IN = 4, 24, 4, 1.4
"""Curves that one panel holds; more get a panel each, as far as that many panels fit one figure; their height [in]."""
MANY_COLUMNS = 7
"""Columns of cells from which on they are as wide as the page."""
OWN_CURVE, OTHER_CURVES = "this panel", "the other panels"


class Drawing(NamedTuple):
    """One figure: its title, its needs, and the chart of a panel.

    Attributes:
        title: with fields for the names of strategy and baseline, and for what stays fixed over nodes.
        chart: of the points of one panel; its `roles` are what strategy and baseline are called in all of them.
        drawn: swept keys that a panel has an axis for; every value of the other keys makes a panel.
        needs_nodes: whether the results must have several numbers of nodes.
        needs_bandwidth: whether the results must have several bandwidths.
        needs_baseline: whether every point must have a baseline.
        shared: which scales panels share.
        only_asked: whether it is drawn only where its name is given.
        split: makes the panels that are drawn from those of the results.
        lines: a panel's points by line, of drawings whose lines may get a panel each.
    """

    title: str
    chart: Callable[..., Chart]
    drawn: tuple[str, ...] = (*BANDWIDTH_KEYS, *NODES_KEYS)
    needs_nodes: bool = False
    needs_bandwidth: bool = False
    needs_baseline: bool = False
    shared: Shared = ""
    only_asked: bool = False
    split: Callable[[Panels], Panels] = lambda panels: panels
    lines: Callable[[Sequence[PointResult]], Panels] | None = None


def draw(sweep: SweepResult, *, where: str, names: Sequence[str] = ()) -> "dict[str, Figure]":
    """Return every figure for which the results have the axes, by name, or those that are named.

    Each figure's label is its caption: the title, the calibration and the version that it rests on.

    Raises:
        SimnetError: there are more panels or rows of bars than fit one figure, or a named one cannot be drawn.
    """
    drawings = possible(sweep)
    _check_names(names, drawings, left_out(sweep), where=where)
    chosen = names or [name for name, drawing in drawings.items() if not drawing.only_asked]
    panels = {name: _charts(sweep, drawing, where) for name, drawing in drawings.items() if name in chosen}
    return {name: _figure(sweep, drawings[name], found) for name, found in panels.items()}


def _check_names(
    names: Iterable[str], drawings: Mapping[str, Drawing], reasons: Mapping[str, str], *, where: str
) -> None:
    for name in names:
        if name not in drawings:
            reason = reasons.get(name, "no figure of these results")
            raise SimnetError(f"{where}: --figure: {name!r}: {reason}; there are {', '.join(drawings)}")


def _charts(sweep: SweepResult, drawing: Drawing, where: str) -> dict[str, Chart]:
    """Return the chart of each panel: by the values of the keys that it has no axis for, in file order."""
    keys = [key for key in sweep.varied if key not in drawing.drawn]
    panels = labels.grouped(sweep.points, keys)
    panels = drawing.split(panels) if drawing.only_asked else panels
    _check_number(len(panels), MAX_PANELS, "panels", where)
    if not drawing.only_asked:
        panels = drawing.split(panels)
    roles = labels.titles(sweep.points)
    found = {label: drawing.chart(points, roles=roles) for label, points in panels.items()}
    for chart in found.values():
        _check_number(len(chart.y.ticks) if chart.is_of_rows else 0, MAX_ROWS, "rows of bars", where)
    return _multiples(panels, found, drawing, roles) or found


def _check_number(number: int, most: int, noun: str, where: str) -> None:
    if number > most:
        raise SimnetError(f"{where}: {number} {noun}: at most {most} fit one figure; sweep fewer values")


def _multiples(panels: Panels, found: Mapping[str, Chart], drawing: Drawing, roles: Sequence[str]) -> dict[str, Chart]:
    """Return a panel for each line, the others faintly behind it, where one panel would hold too many; else nothing."""
    if drawing.lines is None:
        return {}
    lines = {label: drawing.lines(points) for label, points in panels.items()}
    numbers = list(map(len, lines.values()))
    if max(numbers) <= MOST_CURVES or sum(numbers) > MOST_MULTIPLES:
        return {}
    single: dict[str, Chart] = {}
    for label, of_panel in lines.items():
        whole = found[label]
        for name, points in of_panel.items():
            alone = drawing.chart(points, roles=roles)
            own = replace(next(curve for curve in alone.curves if curve.x), name=OWN_CURVE)
            others = [
                Curve(name=OTHER_CURVES, x=curve.x, y=curve.y, colour=FAINT, width=0.8)
                for curve in whole.curves
                if curve.name != name and curve.x
            ]
            title = "\n".join(filter(None, (label, name)))
            single[title] = replace(whole, curves=[*others, own])
    return single


def _figure(sweep: SweepResult, drawing: Drawing, panels: Mapping[str, Chart]) -> "Figure":
    has_intervals = any(chart.has_intervals for chart in panels.values())
    title, footer = _title(sweep, drawing), _footer(sweep, drawing, has_intervals=has_intervals)
    is_of_multiples = any(curve.name == OWN_CURVE for chart in panels.values() for curve in chart.curves)
    if is_of_multiples:
        return figure_of(
            panels, title=title, footer=footer, columns=MULTIPLES_IN_ROW, panel_in=MULTIPLE_IN,
            width_in=current().page_in, shared="both",
        )  # fmt: skip
    most_cells = max(len(chart.cells.speedups[0]) if chart.cells else 0 for chart in panels.values())
    width = current().page_in if most_cells > MANY_COLUMNS else None
    shared = drawing.shared if len(panels) > 1 else ""
    return figure_of(panels, title=title, footer=footer, width_in=width, shared=shared)


def _title(sweep: SweepResult, drawing: Drawing) -> str:
    strategy, baseline = [*labels.titles(sweep.points), ""][:2]
    is_weak = all(point.scenario.run.global_batch is None for point in sweep.points)
    scaling = "samples per rank fixed (weak scaling)" if is_weak else "global batch fixed (strong scaling)"
    shown = drawing.title.format(strategy=strategy, baseline=baseline, scaling=scaling)
    return f"{printable(sweep.question)}\n{shown}\n{labels.context(sweep.points)}"


def _footer(sweep: SweepResult, drawing: Drawing, *, has_intervals: bool) -> str:
    calibrations = ", ".join(dict.fromkeys(labels.calibration_name(point) for point in sweep.points))
    versions = ", ".join(dict.fromkeys(printable(point.version) for point in sweep.points))
    shown = sweep.points if has_intervals else ()
    draws = max((point.scenario.run.draws or 0 for point in shown if point.intervals), default=0)
    bands = f" Bands: 90 % intervals over {draws} draws of calibration and model error." if draws else ""
    references = f" {text}" if drawing.needs_baseline and (text := labels.against_flat(sweep.points)) else ""
    return f"Simulated by simnet {versions}. Calibration: {calibrations}.{bands}{references}"


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
    most = max(_node_counts(sweep.points))
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
    if not numeric or not (of_faults or any(map(labels.varies, sweep.points))):
        return {}
    key = of_faults[-1] if of_faults else labels.main_key(sweep)
    others = [other for other in sweep.varied if other != key]
    return {
        "iteration_time": Drawing(
            "Time of a step: median, shaded up to the 95th percentile",
            partial(charts.times_over, key=key),
            (key,),
        ),
        "speedup_of_tails": Drawing(
            "Speedup of {strategy} over {baseline}, of medians and of 95th percentiles",
            partial(charts.speedups_of_tails, key=key, others=others),
            tuple(sweep.varied),
            needs_baseline=True,
        ),
    }


def _num_varied(sweep: SweepResult) -> tuple[int, int]:
    """Return the largest numbers of node counts and of bandwidths that one panel has."""
    panels = labels.panels(sweep.points).values()
    return (
        max(len(_node_counts(points)) for points in panels),
        max(len(_rates(points)) for points in panels),
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
        bars, stacks = partial(charts.speedup_of_each, keys=keys), partial(charts.breakdown_of_each, keys=keys)
        return {
            "speedup": Drawing(title, bars, keys, needs_baseline=True, shared="row"),
            "breakdown": Drawing(breakdown_title, stacks, keys, shared="row", split=_with_alone),
        }
    rows = [other for other in others if labels.numbers(sweep.points, other) is not None]
    drawings = {
        "speedup": Drawing(
            title,
            partial(charts.speedups, key=key, others=others),
            tuple(sweep.varied),
            needs_baseline=True,
            lines=partial(lines_of, key=key, others=others),
        ),
        "breakdown": Drawing(breakdown_title, partial(charts.breakdown_over, key=key), (key,), split=_with_alone),
    }
    if rows:
        cells = partial(charts.heat_map, row_key=rows[-1], column_key=key)
        title = NETWORK_DRAWINGS["heat_map"].title
        drawings["heat_map"] = Drawing(title, cells, (key, rows[-1]), needs_baseline=True)
    return drawings


def _with_alone(panels: Panels) -> Panels:
    """Add to each panel one without the baseline, if its bars make those of the strategy too short to read."""
    tallest = [max(side.iteration_s for point in points for side in labels.sides(point)) for points in panels.values()]
    own = [max(point.result.iteration_s for point in points) for points in panels.values()]
    if all(most < MUCH_TALLER * own_s for most, own_s in zip(tallest, own, strict=True)):
        return panels
    doubled: Panels = {}
    for label, points in panels.items():
        join = ", " if "\n" in label else "\n"
        doubled[label] = points
        doubled[f"{label}{join}{ALONE}"] = [structs.replace(point, baseline=None) for point in points]
    return doubled


def _largest_cluster(panels: Panels) -> Panels:
    """Keep of each panel the points that differ in bandwidth alone, or else in nodes alone."""
    return _with_alone(dict(_one_dimension(label, points) for label, points in panels.items()))


def _every_cluster(panels: Panels) -> Panels:
    """Return a panel for each number of nodes of each panel."""
    return {
        f"{label}\n{name}" if label else name: there
        for label, points in panels.items()
        for name, there in along(NODES, points).panels(points).items()
    }


def _one_dimension(label: str, points: list[PointResult]) -> tuple[str, list[PointResult]]:
    if len(_rates(points)) < 2:
        return f"{label}\n{bandwidth_text(points[0].nic_gbit_per_s)}", points
    most = max(_node_counts(points))
    return f"{label}\n{nodes_text(most)}", [point for point in points if point.num_nodes == most]


def _breakdown(points: Sequence[PointResult], roles: Sequence[str]) -> Chart:
    return charts.breakdown_over(points, BANDWIDTH if len(_rates(points)) > 1 else NODES, roles=roles)


def _rates(points: Sequence[PointResult]) -> set[float]:
    return {point.nic_gbit_per_s for point in points}


def _node_counts(points: Sequence[PointResult]) -> set[int]:
    return {point.num_nodes for point in points}


NETWORK_DRAWINGS = {
    "speedup_over_nodes": Drawing(
        "Speedup of {strategy} over {baseline}, by nodes",
        partial(charts.speedups, key=NODES),
        lines=partial(lines_of, key=NODES),
        needs_nodes=True,
        needs_baseline=True,
        shared="y",
    ),
    "speedup_over_bandwidth": Drawing(
        "Speedup of {strategy} over {baseline}, by NIC bandwidth",
        partial(charts.speedups, key=BANDWIDTH),
        lines=partial(lines_of, key=BANDWIDTH),
        needs_bandwidth=True,
        needs_baseline=True,
        shared="y",
    ),
    "throughput": Drawing(
        "Throughput against linear scaling, {scaling}",
        charts.throughput,
        needs_nodes=True,
        shared="row",
    ),
    "breakdown": Drawing("Time of one step by part, on the slowest rank", _breakdown, split=_largest_cluster),
    "breakdown_of_all": Drawing(
        "Time of one step by part, on the slowest rank",
        _breakdown,
        needs_nodes=True,
        needs_bandwidth=True,
        only_asked=True,
        split=_every_cluster,
    ),
    "heat_map": Drawing(
        "Speedup of {strategy} over {baseline}; the line separates faster from slower",
        charts.heat_map,
        needs_nodes=True,
        needs_bandwidth=True,
        needs_baseline=True,
    ),
}

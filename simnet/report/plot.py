"""The figures of results, of a sweep or of one run: what each needs, the charts of its panels, and their files."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import structs

from simnet.analysis import results_file
from simnet.core.errors import SimnetError
from simnet.core.files import write_file
from simnet.engine.result import PointResult, RunResult, SweepResult, point_result
from simnet.report import charts, step_charts
from simnet.report.chart import FAINT, Chart, Curve
from simnet.report.chart_matplotlib import Shared, figure_of
from simnet.report.charts import BANDWIDTH, NODES, along, lines_of
from simnet.report.figure import SCREEN, FigureStyle, Format, current, image, styled
from simnet.report.text import (
    BANDWIDTH_KEYS,
    NODES_KEYS,
    Panels,
    against_flat,
    bandwidth_text,
    calibration_name,
    context,
    count_text,
    grouped,
    main_key,
    nodes_text,
    numbers,
    panels,
    printable,
    sides,
    titles,
    varies,
)

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
Need = Literal["nodes", "bandwidths", "baseline"]
NEEDS: dict[Need, str] = {
    "nodes": "needs two or more numbers of nodes",
    "bandwidths": "needs two or more bandwidths",
    "baseline": "needs a baseline at every point",
}


def plot(
    results: Path,
    directory: Path,
    file_format: Format = "png",
    style: FigureStyle = SCREEN,
    names: Sequence[str] = (),
) -> dict[Path, str]:
    """Draw every figure for which the results have the axes; of one run those of `OF_ONE_RUN` that it has data for.

    Args:
        results: The `results.json` of a sweep, or the sweep's folder, or the JSON of one run.
        directory: Where the figures go; made if it is not there.
        file_format: What the figures are written as.
        style: How they look.
        names: The figures to draw; all that are possible where none is named.

    Returns:
        The caption of each file written.

    Raises:
        SimnetError: the results are damaged, empty, of another format, or of one point; or a named figure cannot be
            drawn; or a figure cannot be written.
    """
    run = results_file.read_run(results)
    with styled(style):
        if run is not None:
            drawn = draw_run(run, where=str(results), names=names)
        else:
            sweep = results_file.read(results)
            if not sweep.varied:
                points = f"{len(sweep.points)} point"
                raise SimnetError(f"{results}: {points}: figures need at least two values of some key")
            drawn = draw(sweep, where=str(results), names=names)
        images = {directory / f"{name}.{file_format}": image(figure, file_format) for name, figure in drawn.items()}
    for path, contents in images.items():
        write_file(path, contents, inside=directory)
    return dict(zip(images, (str(figure.get_label()) for figure in drawn.values()), strict=True))


def notes(results: Path) -> list[str]:
    """Return what the figures of results do not show: why one cannot be drawn, and of which points one is."""
    run = results_file.read_run(results)
    if run is not None:
        missing = _missing(run)
        if not run.scenario.cluster.all_faults:  # nobody expects what only a cluster with faults has
            missing = {name: reason for name, reason in missing.items() if not OF_ONE_RUN[name].is_of_faults}
        return [f"{name} is not drawn: {reason}" for name, reason in missing.items()]
    sweep = results_file.read(results)
    drawings, missing = _drawings(sweep)
    texts = [f"{name} is not drawn: {reason}" for name, reason in missing.items()]
    if {"breakdown", "breakdown_of_all"} <= drawings.keys():
        shown = nodes_text(max(_node_counts(sweep.points)))
        texts.append(f"breakdown shows {shown} alone; draw the others with --figure breakdown_of_all")
    return texts


# ---- of one run


class RunFigure(NamedTuple):
    """A figure of one run.

    Attributes:
        title: what its charts show; the start of the caption.
        charts: side by side.
        missing: why it cannot be drawn of a run without the data.
        has_data: whether a run has the data.
        is_of_faults: whether only a cluster with faults has it.
    """

    title: Callable[[RunResult], str]
    charts: Callable[[RunResult], list[Chart]]
    missing: str = ""
    has_data: Callable[[RunResult], bool] = lambda _: True
    is_of_faults: bool = False


OF_ONE_RUN = {
    "breakdown": RunFigure(
        lambda _: "Time of a step by part, on the slowest rank",
        lambda run: [step_charts.breakdown([run])],
    ),
    "hangs_on": RunFigure(
        lambda _: "What the result is sensitive to",
        lambda run: [step_charts.tornado(run)],
        "needs intervals; simulate with a baseline, or with --draws 200",
        lambda run: bool(run.sensitive_to),
    ),
    "iterations": RunFigure(
        lambda run: f"Times of {count_text(run.result.num_iterations, 'iteration')}",
        lambda run: [step_charts.distribution(run, over_median=over_median) for over_median in (False, True)],
        "all iterations take as long; give the cluster faults that vary or come and go",
        varies,
        is_of_faults=True,
    ),
    "lost_time": RunFigure(
        lambda _: "Time lost by cause",
        lambda run: [step_charts.lost_time(run, relative=relative) for relative in (False, True)],
        "needs the time lost to each fault; simulate with --lost-time",
        lambda run: run.result.lost_time is not None,
        is_of_faults=True,
    ),
}


def of_run(run: RunResult, name: str) -> "Figure":
    """Return one of the figures `OF_ONE_RUN` of a run that has the data."""
    drawing = OF_ONE_RUN[name]
    title = f"{drawing.title(run)}: {context([point_result({}, run)])}"
    source = f"Simulated by simnet {printable(run.version)}. Calibration: {calibration_name(run)}."
    source = f"{source} {against_flat([run])}".strip()
    panels = {" " * place: chart for place, chart in enumerate(drawing.charts(run))}
    return figure_of(panels, title=title, footer=source, width_in=current().page_in, shared="y")


def draw_run(run: RunResult, *, where: str, names: Sequence[str] = ()) -> "dict[str, Figure]":
    """Draw where the time of a step goes and, where a run has the data, the others of `OF_ONE_RUN`."""
    missing = _missing(run)
    possible = [name for name in OF_ONE_RUN if name not in missing]
    for name in names:
        if name not in OF_ONE_RUN:
            raise SimnetError(f"{where}: --figure: {name!r}: no figure of one run; there are {', '.join(OF_ONE_RUN)}")
        if name in missing:
            raise SimnetError(f"{where}: --figure: {name!r}: {missing[name]}; there is {', '.join(possible)}")
    return {name: of_run(run, name) for name in possible if not names or name in names}


def _missing(run: RunResult) -> dict[str, str]:
    return {name: drawing.missing for name, drawing in OF_ONE_RUN.items() if not drawing.has_data(run)}


# ---- of a sweep


class Drawing(NamedTuple):
    """A figure of a sweep: its title, the chart of a panel, and its needs.

    Attributes:
        title: with fields for the names of strategy and baseline, and for what stays fixed over nodes.
        chart: of the points of one panel; its `roles` are what strategy and baseline are called in all of them.
        needs: what the results must have.
        drawn: swept keys that a panel has an axis for; every value of the other keys makes a panel.
        shared: which scales panels share.
        only_asked: whether it is drawn only where its name is given.
        split: makes the panels that are drawn from those of the results.
        lines: a panel's points by line, of drawings whose lines may get a panel each.
    """

    title: str
    chart: Callable[..., Chart]
    needs: tuple[Need, ...] = ()
    drawn: tuple[str, ...] = (*BANDWIDTH_KEYS, *NODES_KEYS)
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
    drawings, missing = _drawings(sweep)
    for name in names:
        if name not in drawings:
            reason = missing.get(name, "no figure of these results")
            raise SimnetError(f"{where}: --figure: {name!r}: {reason}; there are {', '.join(drawings)}")
    chosen = {
        name: drawing for name, drawing in drawings.items() if (name in names if names else not drawing.only_asked)
    }
    # All charts before the first figure, so that what is refused is refused at once.
    panels = {name: _charts(sweep, drawing, where) for name, drawing in chosen.items()}
    return {name: _figure(sweep, drawing, panels[name]) for name, drawing in chosen.items()}


def _charts(sweep: SweepResult, drawing: Drawing, where: str) -> dict[str, Chart]:
    """Return the chart of each panel: by the values of the keys that it has no axis for, in file order."""
    groups = grouped(sweep.points, [key for key in sweep.varied if key not in drawing.drawn])
    split = drawing.split(groups)
    # Panels without the baseline, which `split` may add, do not count.
    _check_number(len(split if drawing.only_asked else groups), MAX_PANELS, "panels", where)
    roles = titles(sweep.points)
    whole = {label: drawing.chart(points, roles=roles) for label, points in split.items()}
    for chart in whole.values():
        _check_number(len(chart.y.ticks) if chart.is_of_rows else 0, MAX_ROWS, "rows of bars", where)
    # Many lines in one panel cannot be told apart: each gets a panel, the others faintly behind it.
    lines = {label: drawing.lines(points) for label, points in split.items()} if drawing.lines else {}
    counts = list(map(len, lines.values()))
    if not lines or max(counts) <= MOST_CURVES or sum(counts) > MOST_MULTIPLES:
        return whole
    return {
        "\n".join(filter(None, (label, name))): _multiple(whole[label], name, drawing.chart(points, roles=roles))
        for label, of_panel in lines.items()
        for name, points in of_panel.items()
    }


def _check_number(number: int, most: int, noun: str, where: str) -> None:
    if number > most:
        raise SimnetError(f"{where}: {number} {noun}: at most {most} fit one figure; sweep fewer values")


def _multiple(whole: Chart, name: str, alone: Chart) -> Chart:
    """Return a panel for one line of a chart, the others faintly behind it."""
    line = replace(next(curve for curve in alone.curves if curve.x), name=OWN_CURVE)
    others = [
        Curve(name=OTHER_CURVES, x=curve.x, y=curve.y, colour=FAINT, width=0.8)
        for curve in whole.curves
        if curve.name != name and curve.x
    ]
    return replace(whole, curves=[*others, line])


def _figure(sweep: SweepResult, drawing: Drawing, panels: Mapping[str, Chart]) -> "Figure":
    title = _title(sweep, drawing)
    footer = _footer(sweep, drawing, has_intervals=any(chart.has_intervals for chart in panels.values()))
    if any(curve.name == OWN_CURVE for chart in panels.values() for curve in chart.curves):
        return figure_of(
            panels, title=title, footer=footer, columns=MULTIPLES_IN_ROW, panel_in=MULTIPLE_IN,
            width_in=current().page_in, shared="both",
        )  # fmt: skip
    most_cells = max(len(chart.cells.speedups[0]) if chart.cells else 0 for chart in panels.values())
    width = current().page_in if most_cells > MANY_COLUMNS else None
    shared = drawing.shared if len(panels) > 1 else ""
    return figure_of(panels, title=title, footer=footer, width_in=width, shared=shared)


def _title(sweep: SweepResult, drawing: Drawing) -> str:
    strategy, baseline = [*titles(sweep.points), ""][:2]
    # Over nodes the same word, scaling, means two questions: the title says which was asked.
    is_weak = all(point.scenario.run.global_batch is None for point in sweep.points)
    scaling = "samples per rank fixed (weak scaling)" if is_weak else "global batch fixed (strong scaling)"
    shown = drawing.title.format(strategy=strategy, baseline=baseline, scaling=scaling)
    return f"{printable(sweep.question)}\n{shown}\n{context(sweep.points)}"


def _footer(sweep: SweepResult, drawing: Drawing, *, has_intervals: bool) -> str:
    calibrations = ", ".join(dict.fromkeys(calibration_name(point) for point in sweep.points))
    versions = ", ".join(dict.fromkeys(printable(point.version) for point in sweep.points))
    shown = sweep.points if has_intervals else ()
    # A caption speaks of bands only where some are drawn.
    draws = max((point.scenario.run.draws or 0 for point in shown if point.intervals), default=0)
    bands = f" Bands: 90 % intervals over {draws} draws of calibration and model error." if draws else ""
    over_flat = against_flat(sweep.points) if "baseline" in drawing.needs else ""
    references = f" {over_flat}" if over_flat else ""
    return f"Simulated by simnet {versions}. Calibration: {calibrations}.{bands}{references}"


def _drawings(sweep: SweepResult) -> tuple[dict[str, Drawing], dict[str, str]]:
    """Return the figures whose axes vary in these results, and why others cannot be drawn, by their names."""
    by_panel = panels(sweep.points).values()
    has: dict[Need, bool] = {
        "nodes": any(len(_node_counts(points)) > 1 for points in by_panel),
        "bandwidths": any(len(_rates(points)) > 1 for points in by_panel),
        "baseline": all(point.speedup is not None and point.baseline is not None for point in sweep.points),
    }
    # Nodes and bandwidth have figures of their own; sweeps of other keys have those of any key.
    drawings = NETWORK_DRAWINGS if has["nodes"] or has["bandwidths"] else _key_drawings(sweep)
    drawings = drawings | _tail_drawings(sweep)
    missing = {
        name: " and ".join(NEEDS[need] for need in drawing.needs if not has[need])
        for name, drawing in (NETWORK_DRAWINGS | drawings).items()
        if not all(has[need] for need in drawing.needs)
    }
    return {name: drawing for name, drawing in drawings.items() if name not in missing}, missing


def _rates(points: Iterable[PointResult]) -> set[float]:
    return {point.nic_gbit_per_s for point in points}


def _node_counts(points: Iterable[PointResult]) -> set[int]:
    return {point.num_nodes for point in points}


def _tail_drawings(sweep: SweepResult) -> dict[str, Drawing]:
    """Return the figures of a sweep over a number of a fault, or of one whose iterations vary."""
    numeric = [key for key in sweep.varied if numbers(sweep.points, key) is not None]
    of_faults = [key for key in numeric if key.startswith(FAULT_KEYS)]
    # Without a spread, the tails of iterations are their medians.
    if not numeric or not (of_faults or any(map(varies, sweep.points))):
        return {}
    key = of_faults[-1] if of_faults else main_key(sweep)
    others = [other for other in sweep.varied if other != key]
    return {
        "iteration_time": Drawing(
            "Time of a step: median, shaded up to the 95th percentile",
            partial(charts.times_over, key=key),
            drawn=(key,),
        ),
        "speedup_of_tails": Drawing(
            "Speedup of {strategy} over {baseline}, of medians and of 95th percentiles",
            partial(charts.speedups_of_tails, key=key, others=others),
            ("baseline",),
            tuple(sweep.varied),
        ),
    }


def _key_drawings(sweep: SweepResult) -> dict[str, Drawing]:
    """Return the figures of a sweep over neither nodes nor bandwidth: lines over numbers, else bars."""
    key = main_key(sweep)
    others = [other for other in sweep.varied if other != key]
    title = "Speedup of {strategy} over {baseline}"
    breakdown = NETWORK_DRAWINGS["breakdown"]._replace(split=_with_alone)
    # A line needs two points that differ in its key alone, which listed points often have not.
    is_scattered = bool(others) and all(len(line) == 1 for line in grouped(sweep.points, others).values())
    if is_scattered or numbers(sweep.points, key) is None:
        keys = tuple(sweep.varied) if is_scattered else (key,)
        bars, stacks = partial(charts.speedup_of_each, keys=keys), partial(charts.breakdown_of_each, keys=keys)
        return {
            "speedup": Drawing(title, bars, ("baseline",), keys, shared="row"),
            "breakdown": breakdown._replace(chart=stacks, drawn=keys, shared="row"),
        }
    drawings = {
        "speedup": Drawing(
            title,
            partial(charts.speedups, key=key, others=others),
            ("baseline",),
            tuple(sweep.varied),
            lines=partial(lines_of, key=key, others=others),
        ),
        "breakdown": breakdown._replace(chart=partial(charts.breakdown_over, key=key), drawn=(key,)),
    }
    if rows := [other for other in others if numbers(sweep.points, other) is not None]:
        cells = partial(charts.heat_map, row_key=rows[-1], column_key=key)
        drawings["heat_map"] = Drawing(NETWORK_DRAWINGS["heat_map"].title, cells, ("baseline",), (key, rows[-1]))
    return drawings


def _with_alone(panels: Panels) -> Panels:
    """Add to each panel one without the baseline, if its bars make those of the strategy too short to read."""

    def is_short(points: Sequence[PointResult]) -> bool:
        tallest = max(side.iteration_s for point in points for side in sides(point))
        return tallest >= MUCH_TALLER * max(point.result.iteration_s for point in points)

    if not any(map(is_short, panels.values())):
        return panels
    doubled: Panels = {}
    for label, points in panels.items():
        # The titles of panels have two lines at most.
        join = ", " if "\n" in label else "\n"
        doubled[label] = points
        doubled[f"{label}{join}{ALONE}"] = [structs.replace(point, baseline=None) for point in points]
    return doubled


def _largest_cluster(panels: Panels) -> Panels:
    """Keep of each panel the points that differ in bandwidth alone, or else in nodes alone."""
    kept: Panels = {}
    for label, points in panels.items():
        # Stacks have one axis: where both vary, that of bandwidth, on the largest cluster.
        if len(_rates(points)) < 2:
            kept[f"{label}\n{bandwidth_text(points[0].nic_gbit_per_s)}"] = points
        else:
            most = max(_node_counts(points))
            kept[f"{label}\n{nodes_text(most)}"] = [point for point in points if point.num_nodes == most]
    return _with_alone(kept)


def _every_cluster(panels: Panels) -> Panels:
    """Return a panel for each number of nodes of each panel."""
    return {
        f"{label}\n{name}" if label else name: there
        for label, points in panels.items()
        for name, there in along(NODES, points).panels(points).items()
    }


def _breakdown(points: Sequence[PointResult], roles: Sequence[str]) -> Chart:
    return charts.breakdown_over(points, BANDWIDTH if len(_rates(points)) > 1 else NODES, roles=roles)


NETWORK_DRAWINGS = {
    "speedup_over_nodes": Drawing(
        "Speedup of {strategy} over {baseline}, by nodes",
        partial(charts.speedups, key=NODES),
        ("nodes", "baseline"),
        lines=partial(lines_of, key=NODES),
        shared="y",
    ),
    "speedup_over_bandwidth": Drawing(
        "Speedup of {strategy} over {baseline}, by NIC bandwidth",
        partial(charts.speedups, key=BANDWIDTH),
        ("bandwidths", "baseline"),
        lines=partial(lines_of, key=BANDWIDTH),
        shared="y",
    ),
    "throughput": Drawing("Throughput against linear scaling, {scaling}", charts.throughput, ("nodes",), shared="row"),
    "breakdown": Drawing("Time of one step by part, on the slowest rank", _breakdown, split=_largest_cluster),
    "breakdown_of_all": Drawing(
        "Time of one step by part, on the slowest rank",
        _breakdown,
        ("nodes", "bandwidths"),
        only_asked=True,
        split=_every_cluster,
    ),
    "heat_map": Drawing(
        "Speedup of {strategy} over {baseline}; the line separates faster from slower",
        charts.heat_map,
        ("nodes", "bandwidths", "baseline"),
    ),
}

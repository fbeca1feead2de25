"""Lay the figures of a sweep out for print."""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from msgspec import structs

from simnet.errors import SimnetError
from simnet.result import PointResult, SweepResult
from simnet.show import figures, labels
from simnet.show.figure import COLUMN_IN, PAGE_IN, STEP_PARTS
from simnet.show.labels import BANDWIDTH_KEYS, NODES_KEYS, Panels
from simnet.show.text import bandwidth_text, clipped, nodes_text, printable

Draw = Callable[[Axes, Sequence[PointResult]], None]

MAX_PANELS, MAX_ROWS = 12, 40
COLUMN_WIDTH_IN = {1: COLUMN_IN, 2: PAGE_IN}
PANEL_HEIGHT_IN = 2.2
# Height of a row of bars, and of the title and axis of a panel of rows.
ROW_HEIGHT_IN, ROWS_FRAME_IN = 0.36, 0.75
# How many times as tall the baseline's bars must be for the strategy's to be drawn once more alone.
MUCH_TALLER = 2.0
ALONE = "without the baseline"
# An average character of a title and of a legend, a legend's marker, and a line.
CHARACTER_IN, LEGEND_CHARACTER_IN, LEGEND_HANDLE_IN, LINE_IN = 0.07, 0.058, 0.42, 0.17
TITLE_CHARACTERS = 38
LEGEND_CHARACTERS = 60
# Of one text.
MAX_LINES = 6


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
        split: makes the panels that are drawn from those of the results.
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
    split: Callable[[Panels], Panels] = lambda panels: panels


def draw(sweep: SweepResult, *, where: str) -> dict[str, Figure]:
    """Return every figure for which the results have the axes, by name.

    Raises:
        SimnetError: there are more panels or rows of bars than fit one figure.
    """
    drawings = _possible(sweep)
    _check_size(sweep, drawings.values(), where=where)
    return {name: _figure(sweep, drawing) for name, drawing in drawings.items()}


def _check_size(sweep: SweepResult, drawings: Iterable[Drawing], *, where: str) -> None:
    """Refuse what does not fit one figure.

    Raises:
        SimnetError: there are too many panels, or rows of bars.
    """
    for drawing in drawings:
        panels = _panels(sweep, drawing)
        most_rows = max(len(points) for points in panels.values()) if drawing.rows else 0
        for number, most, noun in ((len(panels), MAX_PANELS, "panels"), (most_rows, MAX_ROWS, "rows of bars")):
            if number > most:
                raise SimnetError(f"{where}: {number} {noun}: at most {most} fit one figure; sweep fewer values")


def _possible(sweep: SweepResult) -> dict[str, Drawing]:
    """Return the figures whose axes vary in these results."""
    panels = labels.panels(sweep.points).values()
    num_nodes = max(len(figures.node_counts(points)) for points in panels)
    num_rates = max(len(figures.rates(points)) for points in panels)
    drawings = NETWORK_DRAWINGS if num_nodes > 1 or num_rates > 1 else _key_drawings(sweep)
    compared = all(point.speedup is not None and point.baseline is not None for point in sweep.points)
    return {
        name: drawing
        for name, drawing in drawings.items()
        if num_nodes >= 2 or not drawing.needs_nodes
        if num_rates >= 2 or not drawing.needs_bandwidth
        if compared or not drawing.needs_baseline
    }


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
        "speedup": Drawing(title, lines, tuple(sweep.varied), needs_baseline=True),
        "breakdown": Drawing(breakdown_title, columns, (key,), bars=True, split=_with_alone),
    }


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


def _one_dimension(label: str, points: list[PointResult]) -> tuple[str, list[PointResult]]:
    if len(figures.rates(points)) < 2:
        return f"{label}\n{bandwidth_text(points[0].nic_gbit_per_s)}", points
    most = max(figures.node_counts(points))
    return f"{label}\n{nodes_text(most)}", [point for point in points if point.num_nodes == most]


def _figure(sweep: SweepResult, drawing: Drawing) -> Figure:
    panels = drawing.split(_panels(sweep, drawing))
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    tallest = max(len(points) for points in panels.values())
    height = tallest * ROW_HEIGHT_IN + ROWS_FRAME_IN if drawing.rows else PANEL_HEIGHT_IN
    figure = Figure(figsize=(COLUMN_WIDTH_IN[columns], rows * height), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False, sharey=drawing.share_y).flat)
    for axes, (label, points) in zip(grid, panels.items(), strict=False):
        drawing.draw(axes, points)
        axes.set_title(_wrapped(label, TITLE_CHARACTERS))
        if drawing.share_y and grid.index(axes) % columns:
            axes.set_ylabel("")
    for axes in grid[len(panels) :]:
        axes.remove()
    _frame(figure, drawing, sweep)
    return figure


def _panels(sweep: SweepResult, drawing: Drawing) -> Panels:
    """Return the points by the values of the keys that a drawing has no axis for, in file order."""
    keys = [key for key in sweep.varied if key not in drawing.drawn]
    return labels.grouped(sweep.points, keys)


def _frame(figure: Figure, drawing: Drawing, sweep: SweepResult) -> None:
    """Write the title on top, and the legend of all panels and their sources below; the figure grows by these."""
    width, panels_height = figure.get_size_inches()
    title = _wrapped(_title(sweep, drawing), int(width / CHARACTER_IN))
    footer = _wrapped(_footer(sweep), int(width / CHARACTER_IN))
    role_names = labels.titles(sweep.points)
    handles = _breakdown_handles(role_names, drawing) if drawing.bars else _line_handles(figure.axes, role_names)
    for handle in handles:
        handle.set_label(clipped(str(handle.get_label()), LEGEND_CHARACTERS))
    legend_rows = _legend_rows(handles, width)
    footer_in = LINE_IN * (footer.count("\n") + 1) + 0.05
    strip_in = footer_in + LINE_IN * legend_rows + 0.1
    height = panels_height + strip_in + LINE_IN * (title.count("\n") + 1)
    figure.set_size_inches(width, height)
    figure.suptitle(title, x=0.01, ha="left")
    figure.text(0.01, footer_in / height / 2, footer, ha="left", va="center", color="#333333")
    if handles:
        columns = -(-len(handles) // legend_rows)
        figure.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, footer_in / height), ncols=columns)
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=(0, strip_in / height, 1, 1 - strip_in / height))


def _wrapped(text: str, characters: int) -> str:
    """Break each line of a text where it is too long, and cut it where it is far too long."""
    lines = (clipped(line, MAX_LINES * characters) for line in text.splitlines() if line)
    return "\n".join(textwrap.fill(line, characters) for line in lines)


def _title(sweep: SweepResult, drawing: Drawing) -> str:
    strategy, baseline = [*labels.titles(sweep.points), ""][:2]
    is_weak = all(point.scenario.run.global_batch is None for point in sweep.points)
    scaling = "samples per rank fixed (weak scaling)" if is_weak else "global batch fixed (strong scaling)"
    shown = drawing.title.format(strategy=strategy, baseline=baseline, scaling=scaling)
    return f"{printable(sweep.question)}\n{shown}\n{labels.context(sweep.points)}"


def _footer(sweep: SweepResult) -> str:
    calibrations = ", ".join(dict.fromkeys(labels.calibration_name(point) for point in sweep.points))
    versions = ", ".join(dict.fromkeys(printable(point.version) for point in sweep.points))
    draws = max((point.scenario.run.draws or 0 for point in sweep.points if point.intervals), default=0)
    bands = f" Bands: 90 % intervals over {draws} draws of calibration and model error." if draws else ""
    return f"Simulated by simnet {versions}. Calibration: {calibrations}.{bands}"


def _legend_rows(handles: Sequence[Artist], width: float) -> int:
    """Return how many rows a legend of these entries needs in a figure of this width [in]."""
    longest = max((len(str(handle.get_label())) for handle in handles), default=0)
    fitting = int((width - 0.2) / (longest * LEGEND_CHARACTER_IN + LEGEND_HANDLE_IN))
    return -(-len(handles) // max(1, fitting))


def _line_handles(grid: Iterable[Axes], role_names: Sequence[str]) -> list[Artist]:
    """Return a legend entry for each label of any panel; strategy and baseline get their names."""
    by_label = {label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    for role, name in zip(labels.ROLES, role_names, strict=False):
        if role in by_label:
            by_label[role].set_label(name)
    return list(by_label.values())


def _breakdown_handles(role_names: Sequence[str], drawing: Drawing) -> list[Artist]:
    """Return a legend entry for each part, top of the stack first, and for the bars of strategy and baseline."""
    handles: list[Artist] = [Patch(color=colour, label=label) for label, colour in reversed(STEP_PARTS.values())]
    if len(role_names) > 1:
        first, second = ("upper", "lower") if drawing.rows else ("left", "right")
        bar: dict[str, Any] = {"facecolor": "#aaaaaa", "edgecolor": "white", "linewidth": 0}
        handles.append(Patch(label=f"{first}: {role_names[0]}", **bar))
        handles.append(Patch(label=f"{second}: {role_names[1]}", hatch=figures.BASELINE_HATCH, **bar))
    return handles


NETWORK_DRAWINGS = {
    "speedup_over_nodes": Drawing(
        "Speedup of {strategy} over {baseline}, by nodes",
        figures.speedup_over_nodes,
        needs_nodes=True,
        needs_baseline=True,
        share_y=True,
    ),
    "speedup_over_bandwidth": Drawing(
        "Speedup of {strategy} over {baseline}, by NIC bandwidth",
        figures.speedup_over_bandwidth,
        needs_bandwidth=True,
        needs_baseline=True,
        share_y=True,
    ),
    "throughput": Drawing(
        "Throughput against linear scaling, {scaling}",
        figures.throughput,
        needs_nodes=True,
        share_y="row",
    ),
    "breakdown": Drawing(
        "Time of one iteration by part, on the slowest rank",
        figures.breakdown,
        bars=True,
        split=_largest_cluster,
    ),
    "heat_map": Drawing(
        "Speedup of {strategy} over {baseline}; the line separates faster from slower",
        figures.heat_map,
        needs_nodes=True,
        needs_bandwidth=True,
        needs_baseline=True,
    ),
}

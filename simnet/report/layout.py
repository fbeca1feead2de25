"""Lay the figures of a sweep out for print."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch

from simnet.core.errors import SimnetError
from simnet.engine.result import PointResult, SweepResult
from simnet.report import figures, heat_map_figure, labels
from simnet.report.drawings import Drawing, left_out, possible
from simnet.report.figure import PAGE_IN, STEP_PARTS, current, new, part_patch, thin
from simnet.report.labels import Panels
from simnet.report.text import clipped, printable

MAX_PANELS, MAX_ROWS = 12, 40
# Curves that one panel holds; more get a panel each, as far as that many panels fit one figure.
MOST_CURVES, MOST_MULTIPLES, MULTIPLES_IN_ROW = 4, 24, 4
# Columns of a heat map from which on it is as wide as the page.
MANY_COLUMNS = 7
PANEL_HEIGHT_IN, MULTIPLE_HEIGHT_IN = 2.2, 1.3
OWN_CURVE, OTHER_CURVES = "this panel", "the other panels"
# Height of a row of bars, and of the title and axis of a panel of rows.
ROW_HEIGHT_IN, ROWS_FRAME_IN = 0.36, 0.75
# An average character of a title and of a legend, a legend's marker, and a line.
CHARACTER_IN, LEGEND_CHARACTER_IN, LEGEND_HANDLE_IN, LINE_IN = 0.07, 0.058, 0.42, 0.17
TITLE_CHARACTERS, MULTIPLE_CHARACTERS = 38, 21
LEGEND_CHARACTERS = 60
# Of one text.
MAX_LINES = 6


def draw(sweep: SweepResult, *, where: str, names: Sequence[str] = ()) -> dict[str, Figure]:
    """Return every figure for which the results have the axes, by name, or those that are named.

    Each figure's label is its caption: the title, the calibration and the version that it rests on.

    Raises:
        SimnetError: there are more panels or rows of bars than fit one figure, or a named one cannot be drawn.
    """
    drawings = possible(sweep)
    _check_names(names, drawings, left_out(sweep), where=where)
    chosen = names or [name for name, drawing in drawings.items() if not drawing.only_asked]
    drawings = {name: drawing for name, drawing in drawings.items() if name in chosen}
    _check_size(sweep, drawings.values(), where=where)
    return {name: _figure(sweep, drawing) for name, drawing in drawings.items()}


def _check_names(
    names: Iterable[str], drawings: Mapping[str, Drawing], reasons: Mapping[str, str], *, where: str
) -> None:
    for name in names:
        if name not in drawings:
            reason = reasons.get(name, "no figure of these results")
            raise SimnetError(f"{where}: --figure: {name!r}: {reason}; there are {', '.join(drawings)}")


def _check_size(sweep: SweepResult, drawings: Iterable[Drawing], *, where: str) -> None:
    """Refuse what does not fit one figure.

    Raises:
        SimnetError: there are too many panels, or rows of bars.
    """
    for drawing in drawings:
        panels = _panels(sweep, drawing)
        panels = drawing.split(panels) if drawing.only_asked else panels
        most_rows = max(len(points) for points in panels.values()) if drawing.rows else 0
        for number, most, noun in ((len(panels), MAX_PANELS, "panels"), (most_rows, MAX_ROWS, "rows of bars")):
            if number > most:
                raise SimnetError(f"{where}: {number} {noun}: at most {most} fit one figure; sweep fewer values")


def _figure(sweep: SweepResult, drawing: Drawing) -> Figure:
    panels = drawing.split(_panels(sweep, drawing))
    if multiples := _multiples(panels, drawing):
        return _small_multiples(sweep, drawing, multiples)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    tallest = max(len(points) for points in panels.values())
    height = tallest * ROW_HEIGHT_IN + ROWS_FRAME_IN if drawing.rows else PANEL_HEIGHT_IN
    figure = new(_width_in(columns, drawing, panels), rows * height)
    grid = list(figure.subplots(rows, columns, squeeze=False, sharey=drawing.share_y).flat)
    for axes, (label, points) in zip(grid, panels.items(), strict=False):
        drawing.draw(axes, points)
        axes.set_title(_wrapped(label, int(TITLE_CHARACTERS * current().page_in / PAGE_IN)))
        if drawing.share_y and grid.index(axes) % columns:
            axes.set_ylabel("")
    for axes in grid[len(panels) :]:
        axes.remove()
    _frame(figure, drawing, sweep)
    return figure


def _width_in(columns: int, drawing: Drawing, panels: Panels) -> float:
    """Return the width of a figure: a page's where it has several panels, or more cells than fit a column."""
    is_map = drawing.draw is heat_map_figure.heat_map
    cells = max(len(figures.node_counts(points)) for points in panels.values()) if is_map else 0
    return current().page_in if columns > 1 or cells > MANY_COLUMNS else current().column_in


def _multiples(panels: Panels, drawing: Drawing) -> dict[str, Panels]:
    """Return the curves of each panel, where one panel would hold too many of them; nothing where it would not."""
    if drawing.curves is None:
        return {}
    curves = {label: drawing.curves(points) for label, points in panels.items()}
    numbers = [len(lines) for lines in curves.values()]
    return curves if max(numbers) > MOST_CURVES and sum(numbers) <= MOST_MULTIPLES else {}


def _small_multiples(sweep: SweepResult, drawing: Drawing, multiples: dict[str, Panels]) -> Figure:
    """Draw each curve in a panel of its own, the other ones faintly behind it; rows of panels by what they share."""
    columns = min(MULTIPLES_IN_ROW, max(map(len, multiples.values())))
    rows = [-(-len(lines) // columns) for lines in multiples.values()]
    figure = new(current().page_in, sum(rows) * MULTIPLE_HEIGHT_IN + len(rows) * LINE_IN)
    parts = figure.subfigures(len(rows), 1, squeeze=False, height_ratios=rows)[:, 0]
    for part, (label, lines), num_rows in zip(parts, multiples.items(), rows, strict=True):
        grid = list(part.subplots(num_rows, columns, squeeze=False, sharex=True, sharey=True).flat)
        _curve_panels(grid, lines, drawing, columns)
        if label:
            part.suptitle(_wrapped(label, int(current().page_in / CHARACTER_IN)), fontweight="bold")
    _share_names(figure.axes, list(parts))
    _frame(figure, drawing, sweep)
    return figure


def _curve_panels(grid: Sequence[Axes], lines: Panels, drawing: Drawing, columns: int) -> None:
    for place, (axes, (name, points)) in enumerate(zip(grid, lines.items(), strict=False)):
        _faintly(axes, [line for other, line in lines.items() if other != name], drawing)
        drawing.draw(axes, points)
        axes.set_title(_wrapped(name, MULTIPLE_CHARACTERS), fontweight="normal")
        axes.tick_params(axis="x", labelbottom=place + columns >= len(lines))
        for line in axes.get_lines():
            if line.get_label() == name:
                line.set_label(OWN_CURVE)
    for axes in grid[len(lines) :]:
        axes.remove()


def _share_names(panels: Sequence[Axes], parts: Sequence[SubFigure]) -> None:
    """Name the axes of all panels of a part once, and let all panels have the same range."""
    ends = [axes.get_ylim() for axes in panels]
    parts[-1].supxlabel(panels[0].get_xlabel(), fontsize="medium")
    for part in parts:
        part.supylabel(panels[0].get_ylabel(), fontsize="medium")
    for axes in panels:
        axes.set(xlabel="", ylabel="", ylim=(min(low for low, _ in ends), max(high for _, high in ends)))


def _faintly(axes: Axes, lines: Sequence[Sequence[PointResult]], drawing: Drawing) -> None:
    """Draw all curves of a panel without markers, to compare one with."""
    if drawing.at is None:
        return
    for line in lines:
        ordered = sorted(line, key=drawing.at)
        speedups = [point.speedup or 0.0 for point in ordered]
        places = [drawing.at(point) for point in ordered]
        axes.plot(places, speedups, color=current().others, linewidth=thin(), zorder=1, label=OTHER_CURVES)


def _panels(sweep: SweepResult, drawing: Drawing) -> Panels:
    """Return the points by the values of the keys that a drawing has no axis for, in file order."""
    keys = [key for key in sweep.varied if key not in drawing.drawn]
    return labels.grouped(sweep.points, keys)


def _frame(figure: Figure, drawing: Drawing, sweep: SweepResult) -> None:
    """Write the title on top, and the legend of all panels and their sources below; the figure grows by these."""
    zoom = current().zoom
    width, panels_height = figure.get_size_inches() / zoom
    figure.set_label(_caption(_title(sweep, drawing), _footer(sweep, drawing)))
    has_titles = current().has_titles
    title = _wrapped(_title(sweep, drawing), int(width / CHARACTER_IN)) if has_titles else ""
    footer = _wrapped(_footer(sweep, drawing), int(width / CHARACTER_IN)) if has_titles else ""
    role_names = labels.titles(sweep.points)
    handles = _breakdown_handles(role_names, drawing) if drawing.bars else _line_handles(figure.axes, role_names)
    for handle in handles:
        handle.set_label(clipped(str(handle.get_label()), LEGEND_CHARACTERS))
    legend_rows = _legend_rows(handles, width)
    footer_in = LINE_IN * (footer.count("\n") + 1) + 0.05 if footer else 0.0
    strip_in = footer_in + LINE_IN * legend_rows + 0.1
    height = panels_height + strip_in + (LINE_IN * (title.count("\n") + 1) if title else 0.0)
    figure.set_size_inches(width * zoom, height * zoom)
    if has_titles:
        figure.suptitle(title, x=0.01, ha="left")
        figure.text(0.01, footer_in / height / 2, footer, ha="left", va="center", alpha=0.8)
    if handles:
        columns = -(-len(handles) // legend_rows)
        figure.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, footer_in / height), ncols=columns)
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=(0, strip_in / height, 1, 1 - strip_in / height))


def _caption(title: str, footer: str) -> str:
    """Return the lines of a title as sentences, and the source."""
    lines = [line if line.endswith("?") else f"{line}." for line in title.splitlines() if line]
    return " ".join([*lines, footer])


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


def _footer(sweep: SweepResult, drawing: Drawing) -> str:
    calibrations = ", ".join(dict.fromkeys(labels.calibration_name(point) for point in sweep.points))
    versions = ", ".join(dict.fromkeys(printable(point.version) for point in sweep.points))
    shown = sweep.points if drawing.has_intervals else ()
    draws = max((point.scenario.run.draws or 0 for point in shown if point.intervals), default=0)
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
    handles: list[Artist] = [Patch(**part_patch(key)) for key in reversed(STEP_PARTS)]
    if len(role_names) > 1:
        first, second = ("upper", "lower") if drawing.rows else ("left", "right")
        bar: dict[str, Any] = {"facecolor": "#aaaaaa", "edgecolor": current().ground, "linewidth": 0}
        handles.append(Patch(label=f"{first}: {role_names[0]}", **bar))
        handles.append(Patch(label=f"{second}: {role_names[1]}", hatch=figures.BASELINE_HATCH, **bar))
    return handles

"""Draw charts with matplotlib: one into axes, or several as the panels of a figure with one legend."""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from simnet.report.chart import (
    BAND,
    DARK,
    DIVERGING,
    FAINT,
    INK,
    LIGHT,
    PAYING,
    Bars,
    Cells,
    Chart,
    Curve,
    Guide,
    Scale,
    border,
    numbers_in,
    together,
)
from simnet.report.figure import TEXT_PT, current, new, shown, thin
from simnet.report.text import clipped, printable

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as MatplotlibAxis
    from matplotlib.figure import Figure

PANEL_IN, ROW_IN, ROWS_FRAME_IN = 2.2, 0.36, 0.75
"""Height of a panel; of a row of bars; of the frame of rows."""
CHARACTER_IN, LEGEND_CHARACTER_IN, LEGEND_HANDLE_IN, LINE_IN = 0.07, 0.058, 0.42, 0.17
"""Of an average character of a title and of a legend, a legend's mark, and a line."""
AXES_SHARE = 0.6
"""Of the height of a narrow panel, whose title and scale take the rest."""
LABEL_CHARACTERS, LEGEND_CHARACTERS, NAME_CHARACTERS, LEAST_CHARACTERS = 38, 60, 26, 20
"""Of a line of the name of a scale, of an entry of a legend, of a line of the name of a row; least of a line."""
WIDE_COLUMNS, TITLE_SHARE = 2, 0.76
"""Panels in a row that are wide enough for titles of several lines; share of a panel's width that its title takes."""
MAX_LINES = 6
"""Of one text."""
TOP_IN = 0.06
"""Above everything."""
LEAST_TEXT_PT, CHARACTER_WIDTH, CELLS_WIDTH = 4.5, 0.62, 0.88
"""Of numbers in cells: least size; width of a character in its size; width of all cells in that of their axes."""
BAND_ALPHA = 0.2
Shared = Literal["", "y", "row", "both"]


def draw(axes: "Axes", chart: Chart) -> None:
    """Draw a chart into axes, without title and legend."""
    axes.set_xscale("log" if chart.x.is_log else "linear")
    axes.set_yscale("log" if chart.y.is_log else "linear")
    for guide in chart.guides:
        _guide(axes, guide)
    for bars in chart.bars:
        _bars(axes, bars, is_of_rows=chart.is_of_rows)
    if chart.cells is not None:
        _cells(axes, chart.cells)
    for curve in chart.curves:
        _curve(axes, curve)
    for words in chart.words:
        is_left = words.side == "left"
        axes.annotate(
            words.text, (words.x, words.y), (thin(-4 if is_left else 4), 0), textcoords="offset points",
            ha="right" if is_left else "left", va="center", fontsize=thin(7),
        )  # fmt: skip
    for axis, scale, limit in ((axes.xaxis, chart.x, axes.set_xlim), (axes.yaxis, chart.y, axes.set_ylim)):
        _scale(axis, scale)
        if scale.ends is not None:
            limit(*scale.ends)
    if chart.is_of_rows:
        axes.tick_params(axis="y", length=0)
    if chart.is_square:
        axes.set_aspect("equal")


def add_legend(axes: "Axes", charts: Sequence[Chart], **more: Any) -> None:
    """Put a legend into axes, if there is anything to name."""
    if handles := legend_entries(charts):
        axes.legend(handles=handles, **more)


def figure_of(  # noqa: PLR0913 - one argument an aspect
    panels: Mapping[str, Chart],
    *,
    title: str = "",
    footer: str = "",
    columns: int = 2,
    panel_in: float | None = None,
    width_in: float | None = None,
    shared: Shared = "",
) -> "Figure":
    """Return charts as the panels of a figure: title on top, one legend and the source below.

    Args:
        panels: charts by what their panels are called; "" for none.
        title: of lines; the start of the caption, which is the figure's label.
        footer: the rest of the caption.
        columns: at most so many panels in a row.
        panel_in: height of a panel [inches]; by its rows where none is given.
        width_in: of the figure [inches]; by its columns where none is given.
        shared: which scales panels share: that of y in all or in a row, or both.
    """
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    charts = _sharing(list(panels.values()), shared, columns)
    panel_in = panel_in or max(
        ROWS_FRAME_IN + ROW_IN * len(chart.y.ticks) if chart.is_of_rows else PANEL_IN for chart in charts
    )
    width_in = width_in or (current().page_in if columns > 1 else current().column_in)
    figure = new(width_in, rows * panel_in)
    sentences = [line if line.endswith("?") else f"{line}." for line in title.splitlines() if line]
    figure.set_label(" ".join([*sentences, footer]).strip())
    sides: dict[str, Any] = {"sharex": shared == "both", "sharey": {"row": "row", "": False}.get(shared, True)}
    grid = list(figure.subplots(rows, columns, squeeze=False, **sides).flat)
    is_narrow = columns > WIDE_COLUMNS
    across = int(width_in / columns / CHARACTER_IN * TITLE_SHARE)
    up = int(panel_in * (AXES_SHARE if is_narrow else 1) / LEGEND_CHARACTER_IN)
    for place, (axes, name, chart) in enumerate(zip(grid, panels, charts, strict=False)):
        draw(axes, chart)
        axes.set_xlabel(_wrapped(chart.x.title, max(LEAST_CHARACTERS, across)))
        axes.set_ylabel(_wrapped(chart.y.title, max(LEAST_CHARACTERS, up)))
        weight = "normal" if is_narrow else "bold"
        axes.set_title(_wrapped(name, across, 1 if is_narrow else MAX_LINES), fontweight=weight)
        if shared and place % columns:
            axes.set_ylabel("")
        if shared == "both":
            axes.tick_params(axis="x", labelbottom=place + columns >= len(charts))
            axes.set_xlabel(axes.get_xlabel() if place // columns == rows - 1 else "")
    # The last row may have fewer panels than columns.
    for axes in grid[len(charts) :]:
        axes.remove()
    has_titles = current().has_titles
    _frame(figure, title if has_titles else "", footer if has_titles else "", legend_entries(charts))
    return figure


def _sharing(charts: list[Chart], shared: Shared, columns: int) -> list[Chart]:
    """Return the charts with the scales that their panels share."""
    if not shared:
        return charts
    # The axes of matplotlib share limits, but draw their own ticks: the scales themselves must be the same.
    in_one = columns if shared == "row" else len(charts)
    rows = [charts[start : start + in_one] for start in range(0, len(charts), in_one)]
    sharing = [replace(chart, y=together([panel.y for panel in row])) for row in rows for chart in row]
    if shared == "both":
        x = together([chart.x for chart in charts])
        sharing = [replace(chart, x=x) for chart in sharing]
    return sharing


def legend_entries(charts: Iterable[Chart]) -> "list[Artist]":
    """Return a legend's entry for each name in charts, bars before curves before guides."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: dict[str, Artist] = {}
    for chart in charts:
        for bars in reversed(chart.bars) if not chart.is_of_rows else chart.bars:
            entries.setdefault(bars.name, Patch(**_fill(bars)))
        for curve in chart.curves:
            entries.setdefault(curve.name, Line2D([], [], **_look(curve)))
        for guide in chart.guides:
            span = Patch(facecolor=colour(guide.colour), linewidth=0)
            entries.setdefault(guide.name, Line2D([], [], **_rule(guide)) if guide.end is None else span)
    entries.pop("", None)
    for text, handle in entries.items():
        handle.set_label(clipped(printable(text), LEGEND_CHARACTERS))
    return list(entries.values())


def colour(name: str) -> str:
    """Return a chart's colour in the present style."""
    style = current()
    return {INK: style.ink, FAINT: style.others, BAND: style.band, PAYING: style.paying}.get(name) or shown(name)


def _look(curve: Curve) -> dict[str, Any]:
    shade = colour(curve.colour)
    return {
        "color": shade, "linestyle": curve.dash or "none", "linewidth": thin(curve.width),
        "marker": curve.marker or None, "markersize": thin(4.5) * curve.size,
        "markerfacecolor": "none" if curve.is_open else shade,
        "markeredgewidth": thin(1.1 if curve.is_open or curve.marker in ("|", "_") else 0.8),
    }  # fmt: skip


def _curve(axes: "Axes", curve: Curve) -> None:
    if not curve.x:
        return
    # What is drawn behind stays behind, in whatever order it comes.
    order = 2.0 if curve.colour == FAINT else 3.0
    x, y = [[math.nan if value is None else value for value in values] for values in (curve.x, curve.y)]
    if curve.ends and curve.dash:
        low, high = zip(*curve.ends, strict=True)
        axes.fill_between(x, low, high, color=colour(curve.colour), alpha=BAND_ALPHA, linewidth=0, zorder=order)
    elif curve.ends:
        below, above = zip(*curve.lengths(), strict=True)
        axes.errorbar(
            x, y, yerr=(below, above), linestyle="none", ecolor=colour(curve.colour), elinewidth=thin(), zorder=order
        )
    drawn = "steps-post" if curve.is_stepped else "default"
    axes.plot(x, y, drawstyle=drawn, label=curve.name or "_nolegend_", zorder=order, **_look(curve))


def _fill(bars: Bars) -> dict[str, Any]:
    return {
        "facecolor": colour(bars.colour), "hatch": bars.hatch * 4, "edgecolor": current().ground,
        "linewidth": thin(current().edge_pt),
    }  # fmt: skip


def _bars(axes: "Axes", bars: Bars, *, is_of_rows: bool) -> None:
    if not bars.at:
        return
    starts = list(bars.starts) or [0.0] * len(bars.at)
    draw_bars, start = (axes.barh, "left") if is_of_rows else (axes.bar, "bottom")
    draw_bars(bars.at, bars.lengths, bars.thickness, **{start: starts} | _fill(bars))


def _guide(axes: "Axes", guide: Guide) -> None:
    if guide.end is not None:
        span = axes.axvspan if guide.is_upright else axes.axhspan
        span(guide.value, guide.end, color=colour(guide.colour), linewidth=0, zorder=0)
        return
    across = axes.axvline if guide.is_upright else axes.axhline
    across(guide.value, zorder=1, label=guide.name or "_nolegend_", **_rule(guide))


def _rule(guide: Guide) -> dict[str, Any]:
    return {"color": colour(guide.colour), "linewidth": thin(guide.width), "linestyle": guide.dash}


def _scale(axis: "MatplotlibAxis", scale: Scale) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    axis.set_label_text(_wrapped(scale.title, LABEL_CHARACTERS))
    if ticks := scale.named():
        texts = [clipped(printable(text), 3 * NAME_CHARACTERS) for text in ticks.values()]
        axis.set_ticks(list(ticks), [textwrap.fill(text, NAME_CHARACTERS) for text in texts])
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _cells(axes: "Axes", cells: Cells) -> None:
    """Draw cells, their numbers, what their colours mean, and the line between faster and slower."""
    from matplotlib.colors import LinearSegmentedColormap

    values = [[math.log(value) if value else math.nan for value in row] for row in cells.speedups]
    colours = LinearSegmentedColormap.from_list("speedup", DIVERGING)
    image = axes.imshow(
        values, origin="lower", aspect="auto", cmap=colours, vmin=-cells.deepest, vmax=cells.deepest
    )  # fmt: skip
    ticks = cells.colour_ticks()
    bar = axes.figure.colorbar(image, ax=axes, label="speedup")
    bar.ax.minorticks_off()
    bar.set_ticks(list(ticks), labels=list(ticks.values()))
    bar.ax.set_ylim(*cells.span)
    line = border(cells)
    # A light edge, since cells beside the line may be as dark as it is.
    for width, tone in ((4.0, LIGHT), (2.0, DARK)):
        _curve(axes, replace(line, width=width, colour=tone))
    texts = [[text.rstrip("x") for text in row] for row in numbers_in(cells)]
    size = _text_size(axes, len(texts[0]), max(len(text) for row in texts for text in row))
    for row, (numbers, speedups) in enumerate(zip(texts, cells.speedups, strict=True)):
        for column, (text, speedup) in enumerate(zip(numbers, speedups, strict=True)):
            tone = cells.text_colour(speedup) if speedup else LIGHT
            axes.text(column, row, text, ha="center", va="center", color=tone, fontsize=size, zorder=4)
    # Cells without a number show the ground, on which light text is read.
    axes.set_facecolor("#777777")


def _text_size(axes: "Axes", num_columns: int, num_characters: int) -> float:
    """Return the size at which the longest number fits its cell [pt]."""
    width_pt = axes.get_window_extent().width / axes.figure.dpi * 72 * CELLS_WIDTH / num_columns
    return max(thin(LEAST_TEXT_PT), min(thin(TEXT_PT), 0.92 * width_pt / (num_characters * CHARACTER_WIDTH)))


def _wrapped(text: str, characters: int, most: int = MAX_LINES) -> str:
    """Break each line of a text where it is too long, and cut it where it would need more than so many lines."""
    lines = (clipped(printable(line), most * characters) for line in text.splitlines() if line)
    return "\n".join(textwrap.fill(line, characters) for line in lines)


def _frame(figure: "Figure", title: str, footer: str, handles: "Sequence[Artist]") -> None:
    """Write the title on top, and the legend of all panels and their source below; the figure grows by these."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    zoom = current().zoom
    width, panels_in = figure.get_size_inches() / zoom
    title, footer = (_wrapped(text, int(width / CHARACTER_IN)) for text in (title, footer))
    longest = max((len(str(handle.get_label())) for handle in handles), default=0)
    fitting = int((width - 0.2) / (longest * LEGEND_CHARACTER_IN + LEGEND_HANDLE_IN))
    legend_rows = -(-len(handles) // max(1, fitting))
    footer_in = LINE_IN * (footer.count("\n") + 1) + 0.05 if footer else 0.0
    strip_in = footer_in + LINE_IN * legend_rows + 0.1
    height = TOP_IN + panels_in + strip_in + (LINE_IN * (title.count("\n") + 1) if title else 0.0)
    figure.set_size_inches(width * zoom, height * zoom)
    if title:
        figure.suptitle(title, x=0.01, ha="left")
    if footer:
        figure.text(0.01, footer_in / height / 2, footer, ha="left", va="center", alpha=0.8)
    if handles:
        columns = -(-len(handles) // legend_rows)
        # A legend fills columns first; it is read by rows.
        handles = [handle for column in range(columns) for handle in handles[column::columns]]
        figure.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, footer_in / height), ncols=columns)
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=(0, strip_in / height, 1, 1 - (strip_in + TOP_IN) / height))

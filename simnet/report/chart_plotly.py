"""Draw charts with plotly: what `Plotly.newPlot` takes. Colours of text, guides and grid come from the page's theme."""

import math
from collections.abc import Sequence
from typing import Any

from simnet.report.chart import (
    BAND,
    DIVERGING,
    FAINT,
    INK,
    PAYING,
    Bars,
    Cells,
    Chart,
    Curve,
    Guide,
    Scale,
    numbers_in,
    plain,
)
from simnet.report.figure import MARKERS

Trace = dict[str, Any]
SYMBOLS = dict(
    zip(
        (*MARKERS, "|", "_"),
        (
            "circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "triangle-left",
            "triangle-right", "star", "pentagon", "hexagon", "line-ns-open", "line-ew-open",
        ),
        strict=True,
    )
)  # fmt: skip
"""Of matplotlib's markers."""
DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}
COLOURS = {FAINT: "#999999", BAND: "#88888833", PAYING: "#009E7322"}
"""That are read on any ground; ink is the page's."""
BAND_OPACITY = "33"
"""Two hexadecimal digits behind a colour."""
SENTENCE_CHARACTERS = 300
TOP, HEIGHT, ROW, ROWS_FRAME = 64, 390, 34, 120
"""Above a chart for its legend and buttons; of a chart; of a row; of the frame of rows [pixels]."""
MOST_WRITTEN = 12
"""Columns of cells that hold their numbers; more hide each other."""


def figure(chart: Chart) -> dict[str, Any]:
    """Return a chart as a figure of plotly; one of rows is as high as they need."""
    traces = [trace for curve in chart.curves for trace in _curve(curve)]
    traces += [_bars(bars, is_of_rows=chart.is_of_rows) for bars in chart.bars]
    if chart.cells is not None:
        traces = [*_cells(chart.cells), *traces]
    rows = len(chart.y.ticks) if chart.is_of_rows else 0
    layout = {
        "xaxis": _axis(chart.x),
        "yaxis": _axis(chart.y),
        "height": TOP + (ROWS_FRAME + ROW * rows if rows else HEIGHT),
        "margin": {"l": 70, "r": 20, "t": TOP, "b": 60},
        "hovermode": "closest",
        "barmode": "overlay",
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "traceorder": "normal"},
        "shapes": [_guide(guide) for guide in chart.guides],
        "annotations": [
            {
                "x": _place(words.x, chart.x), "y": _place(words.y, chart.y), "text": name(words.text),
                "showarrow": False, "xanchor": {"right": "left", "left": "right"}[words.side], "yanchor": "middle",
                "xshift": {"right": 4, "left": -4}[words.side],
            }
            for words in chart.words
        ],
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def name(text: str, characters: int | None = None) -> str:
    """Return text of a file as a text of plotly, which reads tags and entities in it, as HTML does."""
    shown = plain(text, characters) if characters else plain(text)
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _place(value: float, scale: Scale) -> float:
    """Return where plotly puts text: on a logarithmic axis it wants the logarithm."""
    return math.log10(value) if scale.is_log else value


def _colour(colour: str) -> str:
    return COLOURS.get(colour, colour)


def _axis(scale: Scale) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": {"text": name(scale.title)}, "automargin": True, "zeroline": False}
    if scale.is_log:
        axis["type"] = "log"
    if scale.ends is not None:
        axis["range"] = [_place(end, scale) for end in scale.ends]
    if ticks := scale.named():
        axis |= {"tickvals": list(ticks), "ticktext": [name(text) for text in ticks.values()]}
    return axis


def _curve(curve: Curve) -> list[Trace]:
    """Return a curve, below it its band; an entry of the legend alone where it has no points."""
    has_line = bool(curve.dash)
    colour, called = _colour(curve.colour), name(curve.name)
    trace: Trace = {
        "type": "scatter", "mode": "+".join([*["lines"] * has_line, *["markers"] * bool(curve.marker)]), "name": called,
        "x": list(curve.x) or [None], "y": list(curve.y) or [None], "showlegend": bool(curve.name),
        "legendgroup": called or colour,
    }  # fmt: skip
    if has_line:
        trace["line"] = {"color": colour, "dash": DASHES[curve.dash], "width": 1.4 * curve.width}
        if curve.is_stepped:
            trace["line"]["shape"] = "hv"
    if curve.marker:
        symbol = SYMBOLS[curve.marker]
        is_opened = curve.is_open and not symbol.endswith("-open")
        trace["marker"] = {"symbol": symbol + "-open" * is_opened, "size": 8 * curve.size, "color": colour}
    trace |= _hover("text", curve.hover, called)
    if not curve.ends:
        return [trace]
    if not has_line:
        below, above = (list(lengths) for lengths in zip(*curve.lengths(), strict=True))
        trace["error_y"] = {
            "type": "data", "symmetric": False, "color": colour, "array": above, "arrayminus": below,
        }  # fmt: skip
        return [trace]
    low, high = zip(*curve.ends, strict=True)
    # Plotly fills what a line encloses: there along the upper ends, back along the lower ones.
    band: Trace = {
        "type": "scatter", "mode": "lines", "x": [*curve.x, *reversed(curve.x)], "y": [*high, *reversed(low)],
        "fill": "toself", "fillcolor": f"{colour}{BAND_OPACITY}" if colour.startswith("#") else COLOURS[BAND],
        "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False, "legendgroup": called or colour,
    }  # fmt: skip
    return [band, trace]


def _hover(key: str, sentences: Sequence[str], called: str = "") -> Trace:
    """Return what a trace says under the pointer, from the texts at a key of it; nothing where there are none."""
    if not sentences:
        return {"hoverinfo": "skip"}
    texts = [name(text, SENTENCE_CHARACTERS) for text in sentences]
    return {key: texts, "hovertemplate": f"%{{{key}}}<extra>{called}</extra>"}


def _bars(bars: Bars, *, is_of_rows: bool) -> Trace:
    along, across = ("x", "y") if is_of_rows else ("y", "x")
    trace: Trace = {
        "type": "bar", "name": name(bars.name), "showlegend": bool(bars.name),
        across: list(bars.at) or [None], along: list(bars.lengths) or [None],
        "width": bars.thickness, "legendgroup": name(bars.name),
        "marker": {"color": _colour(bars.colour), "pattern": {"shape": bars.hatch, "fillmode": "overlay", "size": 8}},
    }  # fmt: skip
    if is_of_rows:
        trace["orientation"] = "h"
    if bars.starts:
        trace["base"] = list(bars.starts)
    return trace | _hover("customdata", bars.hover)


def _cells(cells: Cells) -> list[Trace]:
    texts, ticks = numbers_in(cells), cells.colour_ticks()
    trace: Trace = {
        "type": "heatmap", "x": list(range(len(texts[0]))), "y": list(range(len(texts))), "xgap": 2, "ygap": 2,
        "z": [[math.log(value) if value else None for value in row] for row in cells.speedups],
        "text": [[name(text) for text in row] for row in cells.hover or texts],
        "zmin": -cells.deepest, "zmax": cells.deepest,
        "colorscale": [[place / 2, colour] for place, colour in enumerate(DIVERGING)],
        "colorbar": {"title": {"text": "speedup"}, "tickvals": list(ticks), "ticktext": list(ticks.values())},
        "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip
    # The numbers stand in what the pointer says, too.
    if len(texts[0]) > MOST_WRITTEN:
        return [trace]
    places = [
        (x, y, texts[y][x], cells.text_colour(value))
        for y, row in enumerate(cells.speedups)
        for x, value in enumerate(row)
        if value
    ]
    x, y, text, colours = (list(column) for column in zip(*places, strict=True))
    written: Trace = {
        "type": "scatter", "mode": "text", "x": x, "y": y, "text": text, "textfont": {"color": colours},
        "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip
    return [trace, written]


def _guide(guide: Guide) -> dict[str, Any]:
    is_line = guide.end is None
    along, across = ("y", "x") if guide.is_upright else ("x", "y")
    shape: dict[str, Any] = {
        "type": "line" if is_line else "rect", f"{along}ref": "paper", f"{along}0": 0, f"{along}1": 1,
        f"{across}0": guide.value, f"{across}1": guide.value if is_line else guide.end,
        "line": {"width": 1 if is_line else 0, "dash": DASHES[guide.dash]},
    }  # fmt: skip
    if not is_line:
        return shape | {"fillcolor": _colour(guide.colour), "layer": "below"}
    if guide.colour != INK:
        shape["line"]["color"] = _colour(guide.colour)
    return shape

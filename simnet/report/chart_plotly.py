"""Draw charts with plotly: what `Plotly.newPlot` takes. Colours of text, guides and grid come from the page's theme."""

import math
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


def figure(chart: Chart, *, height: int | None = None) -> dict[str, Any]:
    """Return a chart as a figure of plotly.

    Args:
        chart: what is drawn.
        height: without room for a legend [pixels]; by its rows where none is given.
    """
    traces = [trace for curve in chart.curves for trace in _curve(curve)]
    traces += [_bars(bars, is_of_rows=chart.is_of_rows) for bars in chart.bars]
    if chart.cells is not None:
        traces = [*_cells(chart.cells), *traces]
    rows = len(chart.y.ticks) if chart.is_of_rows else 0
    tall = height or (ROWS_FRAME + ROW * rows if rows else HEIGHT)
    layout = {
        "xaxis": _axis(chart.x),
        "yaxis": _axis(chart.y),
        "height": TOP + tall,
        "margin": {"l": 70, "r": 20, "t": TOP, "b": 60},
        "hovermode": "closest",
        "barmode": "overlay",
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "traceorder": "normal"},
        "shapes": [_guide(guide) for guide in chart.guides],
        "annotations": [
            {
                "x": _place(one.x, chart.x), "y": _place(one.y, chart.y), "text": name(one.text), "showarrow": False,
                "xanchor": {"right": "left", "left": "right"}[one.side], "yanchor": "middle",
                "xshift": {"right": 4, "left": -4}[one.side],
            }
            for one in chart.words
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
    found: dict[str, Any] = {"title": {"text": name(scale.title)}, "automargin": True, "zeroline": False}
    if scale.is_log:
        found["type"] = "log"
    if scale.ends is not None:
        found["range"] = [_place(end, scale) for end in scale.ends]
    if ticks := scale.named():
        found |= {"tickvals": list(ticks), "ticktext": [name(text) for text in ticks.values()]}
    return found


def _curve(curve: Curve) -> list[Trace]:
    """Return a curve, below it its band; an entry of the legend alone where it has no points."""
    has_line = bool(curve.dash)
    colour, called = _colour(curve.colour), name(curve.name)
    found: Trace = {
        "type": "scatter", "mode": "+".join([*["lines"] * has_line, *["markers"] * bool(curve.marker)]), "name": called,
        "x": list(curve.x) or [None], "y": list(curve.y) or [None], "showlegend": bool(curve.name),
        "legendgroup": called or colour,
    }  # fmt: skip
    if has_line:
        found["line"] = {"color": colour, "dash": DASHES[curve.dash], "width": 1.4 * curve.width}
        if curve.is_stepped:
            found["line"]["shape"] = "hv"
    if curve.marker:
        symbol = SYMBOLS[curve.marker]
        open_one = "-open" if curve.is_open and not symbol.endswith("-open") else ""
        found["marker"] = {"symbol": symbol + open_one, "size": 8 * curve.size, "color": colour}
    if curve.hover:
        found |= {"text": [name(text, SENTENCE_CHARACTERS) for text in curve.hover]}
        found["hovertemplate"] = f"%{{text}}<extra>{called}</extra>"
    else:
        found["hoverinfo"] = "skip"
    if not curve.ends:
        return [found]
    low, high = ([end[side] for end in curve.ends] for side in (0, 1))
    if not has_line:
        y = [one or 0.0 for one in curve.y]
        found["error_y"] = {
            "type": "data", "symmetric": False, "color": colour,
            "array": [max(0.0, end - one) for end, one in zip(high, y, strict=True)],
            "arrayminus": [max(0.0, one - end) for end, one in zip(low, y, strict=True)],
        }  # fmt: skip
        return [found]
    around: Trace = {
        "type": "scatter", "mode": "lines", "x": [*curve.x, *reversed(curve.x)], "y": [*high, *reversed(low)],
        "fill": "toself", "fillcolor": f"{colour}{BAND_OPACITY}" if colour.startswith("#") else COLOURS[BAND],
        "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False, "legendgroup": called or colour,
    }  # fmt: skip
    return [around, found]


def _bars(bars: Bars, *, is_of_rows: bool) -> Trace:
    along, across = ("x", "y") if is_of_rows else ("y", "x")
    found: Trace = {
        "type": "bar", "name": name(bars.name), "showlegend": bool(bars.name),
        across: list(bars.at) or [None], along: list(bars.lengths) or [None],
        "width": bars.thickness, "legendgroup": name(bars.name),
        "marker": {"color": _colour(bars.colour), "pattern": {"shape": bars.hatch, "fillmode": "overlay", "size": 8}},
    }  # fmt: skip
    if is_of_rows:
        found["orientation"] = "h"
    if bars.starts:
        found["base"] = list(bars.starts)
    if bars.hover:
        found |= {"customdata": [name(text, SENTENCE_CHARACTERS) for text in bars.hover]}
        found["hovertemplate"] = "%{customdata}<extra></extra>"
    else:
        found["hoverinfo"] = "skip"
    return found


def _cells(cells: Cells) -> list[Trace]:
    texts, ticks = numbers_in(cells), cells.colour_ticks()
    found: Trace = {
        "type": "heatmap", "x": list(range(len(texts[0]))), "y": list(range(len(texts))), "xgap": 2, "ygap": 2,
        "z": [[math.log(value) if value else None for value in row] for row in cells.speedups],
        "text": [[name(text) for text in row] for row in cells.hover or texts],
        "zmin": -cells.deepest, "zmax": cells.deepest,
        "colorscale": [[place / 2, colour] for place, colour in enumerate(DIVERGING)],
        "colorbar": {"title": {"text": "speedup"}, "tickvals": list(ticks), "ticktext": list(ticks.values())},
        "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip
    if len(texts[0]) > MOST_WRITTEN:
        return [found]
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
    return [found, written]


def _guide(guide: Guide) -> dict[str, Any]:
    ends = (guide.value, guide.value if guide.end is None else guide.end)
    along, across = ("y", "x") if guide.is_upright else ("x", "y")
    shape: dict[str, Any] = {
        "type": "line" if guide.end is None else "rect", f"{along}ref": "paper", f"{along}0": 0, f"{along}1": 1,
        f"{across}0": ends[0], f"{across}1": ends[1],
        "line": {"width": 1 if guide.end is None else 0, "dash": DASHES[guide.dash]},
    }  # fmt: skip
    if guide.colour != INK and guide.end is None:
        shape["line"]["color"] = _colour(guide.colour)
    if guide.end is not None:
        shape |= {"fillcolor": _colour(guide.colour), "layer": "below"}
    return shape

"""A figure of a page: what plotly draws, what a screen reader says, and the numbers as a table."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simnet.report.figure import BLUE, SERIES_COLOURS, VERMILION
from simnet.report.table import Table
from simnet.report.text import clipped, printable

Trace = dict[str, Any]
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = (
    "circle", "square", "diamond", "triangle-down", "triangle-up", "cross", "x", "star", "pentagon", "hexagon",
    "triangle-left", "triangle-right",
)  # fmt: skip
"""Of lines, besides colours: also who sees no colours tells them from each other."""
HATCHES = ("", "/", "\\", "x", "-", "+")
BAND_OPACITY = "22"
"""Two hexadecimal digits behind a colour."""
NAME_CHARACTERS, SENTENCE_CHARACTERS = 60, 300
TOP = 64
"""Above a figure, for its legend and, over that, its buttons [pixels]."""
HEIGHT = 390
"""Of a figure on a screen, without `TOP` [pixels]."""
ROW_PIXELS = 34
"""Of a bar."""
FINE_TICKS = (1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
"""Of a decade, where the ends of an axis are near."""
X_TEXT = "%{y:.3g}x"
DIVERGING = ((0.0, VERMILION), (0.5, "#F7F7F7"), (1.0, BLUE))
"""Slower, the same, faster."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One figure.

    Attributes:
        key: its place in the page, such as "speedup-over-bandwidth".
        title: what it shows, in a few words.
        sentence: what a reader shall see in it.
        traces: of plotly.
        layout: of plotly; colours of text and grid come from the page's theme.
        table: the numbers.
    """

    key: str
    title: str
    sentence: str
    traces: tuple[Trace, ...]
    layout: dict[str, Any]
    table: Table

    @property
    def figure(self) -> dict[str, Any]:
        """What `Plotly.newPlot` takes."""
        return {"data": list(self.traces), "layout": self.layout}


def name(text: str, characters: int = NAME_CHARACTERS) -> str:
    """Return text of a file as a name in a figure: short, and without plotly's markup."""
    # Plotly reads tags and entities in its texts, as HTML does.
    shown = clipped(printable(text), characters)
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def layout(x: dict[str, Any], y: dict[str, Any], *, height: int = HEIGHT, **more: Any) -> dict[str, Any]:
    """Return the layout of a figure with two axes."""
    legend = {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0}
    margin = {"l": 70, "r": 20, "t": TOP, "b": 60}
    whole = {"xaxis": x, "yaxis": y, "height": TOP + height, "margin": margin, "hovermode": "closest"} | more
    return whole | {"legend": legend | more.get("legend", {})}


def fill(colour: str, index: int) -> dict[str, Any]:
    """Return what a bar is filled with: a colour, and a hatch for who sees no colours."""
    return {"color": colour, "pattern": {"shape": HATCHES[index % len(HATCHES)], "fillmode": "overlay", "size": 8}}


def axis(title: str, *, log: bool = False, ticks: Sequence[float] = (), texts: Sequence[str] = ()) -> dict[str, Any]:
    """Return an axis, with the ticks that are given."""
    found: dict[str, Any] = {"title": {"text": title}, "automargin": True, "zeroline": False}
    if log:
        found["type"] = "log"
    if ticks:
        found |= {"tickvals": list(ticks), "ticktext": list(texts or map(str, ticks))}
    return found


def series_style(index: int) -> tuple[str, str]:
    """Return the colour and the symbol of a series; of the first twelve no two share either."""
    return SERIES_COLOURS[index % len(SERIES_COLOURS)], SYMBOLS[index % len(SYMBOLS)]


def line(index: int, label: str, x: Sequence[Any], y: Sequence[float], hover: str) -> Trace:
    """Return a line with markers; index chooses colour, dash and symbol."""
    colour, symbol = series_style(index)
    style = {"color": colour, "dash": DASHES[index // len(SERIES_COLOURS) % len(DASHES)], "width": 2}
    marker = {"symbol": symbol, "size": 8, "color": colour}
    return {
        "type": "scatter", "mode": "lines+markers", "name": name(label), "x": list(x), "y": list(y), "line": style,
        "marker": marker, "legendgroup": str(index), "hovertemplate": f"{hover}<extra>{name(label)}</extra>",
    }  # fmt: skip


def band(index: int, x: Sequence[Any], low: Sequence[float], high: Sequence[float]) -> Trace:
    """Return the interval around a line."""
    colour, _ = series_style(index)
    return {
        "type": "scatter", "mode": "lines", "x": [*x, *reversed(x)], "y": [*high, *reversed(low)], "fill": "toself",
        "fillcolor": f"{colour}{BAND_OPACITY}", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False,
        "legendgroup": str(index),
    }  # fmt: skip


def tick_values(low: float, high: float) -> dict[str, Any]:
    """Return the ticks of a logarithmic axis from one value to another, as arguments of `axis`."""
    subs = (1.0, 2.0, 5.0) if high / low > 4 else FINE_TICKS
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks = [sub * 10.0**decade for decade in decades for sub in subs]
    ticks = [tick for tick in ticks if low / 2 <= tick <= high * 2]
    return {"ticks": ticks, "texts": [f"{tick:g}x" for tick in ticks]}


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit in which a time is drawn, in seconds and by name."""
    return (1.0, "s") if seconds >= 1 else (1e-3, "ms") if seconds >= 1e-3 else (1e-6, "µs")

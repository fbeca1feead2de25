"""A chart as data: curves, bars or cells over two scales. `chart_matplotlib` and `chart_plotly` draw it."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from simnet.report.figure import BLUE, MARKERS, SERIES_COLOURS, VERMILION
from simnet.report.table import Table
from simnet.report.text import clipped, printable, speedup_text

INK, FAINT, BAND, PAYING = "ink", "faint", "band", "paying"
"""Colours that differ with the ground: of text and guides, of what is drawn behind, of a tolerance, of what pays."""
DASHES = ("-", "--", "-.", ":")
HATCHES = ("", "/", "\\", "x", "-", "+")
NAME_CHARACTERS = 60
TICKS: tuple[tuple[float, tuple[float, ...]], ...] = (
    (4, (1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)),
    (8, (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)),
    (1e4, (1.0, 2.0, 5.0)),
    (math.inf, (1.0,)),
)
"""Of a decade of a logarithmic scale, by the largest ratio of its ends."""
MOST_DECADES = 10
MOST_TICKS = 12
MOST_LINEAR = 4
"""Largest over smallest value from which on numbers stand on a logarithmic scale."""
LEAST_SPEEDUPS = (0.92, 2.0)
"""Smallest range of a scale of speedups, so that a few percent do not look like much."""
SAME_TIME = "1.0: same time"
DIVERGING = (VERMILION, "#F7F7F7", BLUE)
"""Slower, the same, faster."""
DARK, LIGHT = "#000000", "#FFFFFF"
"""Of numbers in cells."""
GBIT = 1e9 / 8
"""Bytes a second of 1 Gbit/s."""
Ends = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line, marks, or both.

    Attributes:
        name: in the legend, which has one entry a name; "" for none. Without points it is an entry alone.
        x, y: of its points, in the units of the scales; None leaves a gap.
        ends: of an interval around each y: a band around a line, a bar through a mark.
        colour: of the palette, or one of those above.
        dash: of the line, one of `DASHES`; "" for marks alone.
        marker: one of `MARKERS`, or "|" or "_"; "" for a line alone.
        is_open: whether a mark is not filled.
        is_stepped: whether the line keeps a height up to the next point.
        width: of the line [pt].
        size: of a mark, in times of the usual.
        hover: what a page says of each point.
    """

    x: Sequence[float | None] = ()
    y: Sequence[float | None] = ()
    name: str = ""
    ends: Sequence[Ends] = ()
    colour: str = SERIES_COLOURS[0]
    dash: str = "-"
    marker: str = ""
    is_open: bool = False
    is_stepped: bool = False
    width: float = 1.4
    size: float = 1.0
    hover: Sequence[str] = ()

    def lengths(self) -> list[Ends]:
        """Return how far each interval reaches below and above its y, which may lie outside of it."""
        # A median of draws may lie outside of its interval, but no renderer draws a bar of negative length.
        heights = [height or 0.0 for height in self.y]
        return [(max(0.0, y - low), max(0.0, high - y)) for y, (low, high) in zip(heights, self.ends, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Bars of one colour; upright, or of a chart of rows to the right.

    Attributes:
        at: their middles on the scale that they stand on.
        lengths: signed.
        starts: of each; zero where none are given.
        thickness: on the scale that they stand on.
        hatch: one of `HATCHES`.
    """

    at: Sequence[float] = ()
    lengths: Sequence[float] = ()
    name: str = ""
    starts: Sequence[float] = ()
    thickness: float = 0.6
    colour: str = SERIES_COLOURS[0]
    hatch: str = ""
    hover: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Speedups by two numbers: rows from below, columns from left, both counted from 0; None where none is known."""

    speedups: Sequence[Sequence[float | None]]
    hover: Sequence[Sequence[str]] = ()

    @property
    def deepest(self) -> float:
        """The logarithm of the speedup, and of the slowdown, that has the deepest colour."""
        return max(math.log(LEAST_COLOURED), *map(abs, self.span))

    @property
    def span(self) -> Ends:
        """The logarithms of the least and the largest speedup, 1 among them."""
        known = [math.log(value) for row in self.speedups for value in row if value]
        return min([0.0, *known]), max([0.0, *known])

    def colour_ticks(self) -> dict[float, str]:
        """Return the logarithms of the speedups that the scale of colours names, each with its text."""
        known = NEAR_TICKS if self.deepest < math.log(NEAR_TICKS[-1]) else FAR_TICKS
        return {math.log(tick): f"{tick:g}x" for tick in known if abs(math.log(tick)) <= self.deepest * 1.001}

    def text_colour(self, speedup: float) -> str:
        """Return whether a number in a cell is dark or light."""
        return LIGHT if is_dark(math.log(speedup) / self.deepest) else DARK


LEAST_COLOURED = 1.5
NEAR_TICKS = (0.4, 0.5, 0.6, 0.8, 1, 1.25, 1.5, 2, 2.5)
FAR_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """One axis.

    Attributes:
        title: with its unit.
        is_log: whether equal ratios are equally long.
        ticks: values with their texts; where none are given they are chosen, on a logarithmic scale by `log_ticks`.
        ends: first and last value; a logarithmic scale without ticks needs them.
        suffix: of chosen ticks on a logarithmic scale.
    """

    title: str = ""
    is_log: bool = False
    ticks: Mapping[float, str] = field(default_factory=dict)
    ends: Ends | None = None
    suffix: str = ""

    def named(self) -> dict[float, str]:
        """Return the ticks, chosen ones of a logarithmic scale too; none where the renderer chooses."""
        if self.ticks or not self.is_log or self.ends is None:
            return dict(self.ticks)
        low, high = sorted(self.ends)
        return {tick: f"{number(tick)}{self.suffix}" for tick in log_ticks(low, high) if low <= tick <= high}


@dataclass(frozen=True, kw_only=True)
class Guide:
    """A line across the chart at a value of one scale, or the span up to another value."""

    value: float
    end: float | None = None
    is_upright: bool = False
    name: str = ""
    colour: str = INK
    dash: str = "-"
    width: float = 0.8


@dataclass(frozen=True, kw_only=True)
class Words:
    """Text at a point, on one side of it."""

    x: float
    y: float
    text: str
    side: Literal["left", "right"] = "right"


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One chart.

    Attributes:
        key: its place in a page, such as "speedup-over-bandwidth".
        title: what it shows, in a few words.
        sentence: what a reader shall see in it.
        curves, bars, cells, guides, words: what is drawn.
        is_of_rows: whether bars go to the right, in rows from above.
        is_square: whether both scales are the same.
        has_intervals: whether 90 % intervals of draws are drawn.
        table: the numbers.
    """

    key: str = ""
    title: str = ""
    sentence: str = ""
    x: Scale
    y: Scale
    curves: Sequence[Curve] = ()
    bars: Sequence[Bars] = ()
    cells: Cells | None = None
    guides: Sequence[Guide] = ()
    words: Sequence[Words] = ()
    is_of_rows: bool = False
    is_square: bool = False
    has_intervals: bool = False
    table: Table = field(default_factory=lambda: Table((), ()))


def plain(text: str, characters: int = NAME_CHARACTERS) -> str:
    """Return text of a file as a name in a chart: short, and on one line."""
    return clipped(printable(text), characters)


def series_look(index: int) -> dict[str, Any]:
    """Return colour, marker and dash of a series; of the first twelve no two share colour or marker."""
    kinds = len(SERIES_COLOURS)
    # Only when colours and markers are used up do series differ by their dash.
    place, dash = index % kinds, DASHES[index // kinds % len(DASHES)]
    return {"colour": SERIES_COLOURS[place], "marker": MARKERS[place], "dash": dash}


def marks_look(index: int) -> dict[str, Any]:
    """Return the look of a series of marks without a line."""
    return series_look(index) | {"dash": ""}


def values_of(curves: Iterable[Curve]) -> list[float]:
    """Return what the scale of y must hold: the heights of curves, and the ends of their intervals."""
    return [value for curve in curves for value in (*curve.y, *itertools.chain(*curve.ends)) if value]


def number(value: float) -> str:
    """Return a number as people write it on a scale: "0.5", "20", "10,000"."""
    return f"{value:,.0f}" if 1000 <= value < 1e9 else f"{value:g}"


def log_ticks(low: float, high: float) -> list[float]:
    """Return the ticks of a logarithmic scale, from at or below the lowest to at or above the highest value."""
    span = high / low
    subs = next(subs for most, subs in TICKS if span <= most)
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    # Powers of ten alone may be left out: between others a reader counts, and a gap would mislead.
    step = max(1, math.ceil((last - first) / MOST_DECADES)) if subs == (1.0,) else 1
    ticks = [sub * 10.0**decade for decade in range(first, last + step, step) for sub in subs]
    below, above = [tick for tick in ticks if tick <= low][-1:], [tick for tick in ticks if tick >= high][:1]
    return [*below, *(tick for tick in ticks if low < tick < high), *above]


def log_scale(title: str, values: Iterable[float], *, suffix: str = "", margin: float = 1.12) -> Scale:
    """Return a logarithmic scale that holds values."""
    known = list(values)
    return Scale(title=title, is_log=True, ends=(min(known) / margin, max(known) * margin), suffix=suffix)


def speedup_scale(title: str, values: Iterable[float], least: Ends = LEAST_SPEEDUPS) -> Scale:
    """Return a scale of speedups that holds 1 and values: twice as fast and half as fast are as far from 1."""
    known = list(values)
    low, high = min([least[0], *known]), max([least[1], *known])
    return Scale(title=title, is_log=True, ends=(low / 1.05, high * 1.05), suffix="x")


def number_scale(title: str, values: Mapping[float, str]) -> Scale:
    """Return a scale with a tick at numbers that were simulated, logarithmic where they span much."""
    numbers = sorted(values)
    is_log = numbers[0] > 0 and numbers[-1] / numbers[0] > MOST_LINEAR
    # Texts of more ticks would overlap.
    stride = -(-len(numbers) // MOST_TICKS)
    margin = 1.12 if is_log else 0.06 * (numbers[-1] - numbers[0]) or 1.0
    low, high = numbers[0], numbers[-1]
    ends = (low / margin, high * margin) if is_log else (low - margin, high + margin)
    return Scale(title=title, is_log=is_log, ticks={value: values[value] for value in numbers[::stride]}, ends=ends)


def name_scale(names: Sequence[str], title: str = "", *, is_reversed: bool = False) -> Scale:
    """Return a scale of names, counted from 0; reversed, the first one is on top."""
    ends = (len(names) - 0.5, -0.5) if is_reversed else (-0.5, len(names) - 0.5)
    return Scale(title=title, ticks=dict(enumerate(names)), ends=ends)


def together(scales: Sequence[Scale]) -> Scale:
    """Return the scale that panels share: the first one, from the first end of all to the last."""
    ends = [scale.ends for scale in scales if scale.ends is not None]
    # What has no ends, the renderer lets share by its axes.
    if len(ends) < len(scales):
        return scales[0]
    ticks = {value: text for scale in scales for value, text in scale.ticks.items()}
    return replace(scales[0], ends=(min(low for low, _ in ends), max(high for _, high in ends)), ticks=ticks)


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit in which a time is drawn, in seconds and by name."""
    return (1.0, "s") if seconds >= 1 else (1e-3, "ms") if seconds >= 1e-3 else (1e-6, "µs")


def border(cells: Cells) -> Curve:
    """Return the line between the cells that are faster and those that are not, as the rounded values say."""
    faster = [[value is not None and round(value, 2) >= 1 for value in row] for row in cells.speedups]
    # None lifts the pen, so that all pieces are one curve.
    x: list[float | None] = []
    y: list[float | None] = []
    for r, row in enumerate(faster):
        for c, is_faster in enumerate(row):
            if c + 1 < len(row) and row[c + 1] != is_faster:
                x += [c + 0.5, c + 0.5, None]
                y += [r - 0.5, r + 0.5, None]
            if r + 1 < len(faster) and faster[r + 1][c] != is_faster:
                x += [c - 0.5, c + 0.5, None]
                y += [r + 0.5, r + 0.5, None]
    return Curve(x=x, y=y, colour=DARK, width=2.0)


def numbers_in(cells: Cells) -> list[list[str]]:
    """Return the number of each cell as text, "-" where there is none."""
    return [[speedup_text(value) for value in row] for row in cells.speedups]


def is_dark(share: float) -> bool:
    """Return whether light text is easier to read on a colour between the middle (0) and an end (-1, 1) of cells."""
    middle, end = DIVERGING[1], DIVERGING[2 if share > 0 else 0]
    mixed = [(1 - abs(share)) * low + abs(share) * high for low, high in zip(rgb(middle), rgb(end), strict=True)]
    # The contrast of two colours is the quotient of their luminances, each plus 0.05; white has 1 and black 0.
    return 1.05 / (luminance(mixed) + 0.05) > (luminance(mixed) + 0.05) / 0.05


def rgb(colour: str) -> list[float]:
    """Return the parts of a colour, each from 0 to 1."""
    return [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]


def luminance(parts: Sequence[float]) -> float:
    """Return the relative luminance of a colour.

    Source: Web Content Accessibility Guidelines 2.2, "relative luminance".
    """
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

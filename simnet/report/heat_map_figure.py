"""Draw speedup by two numbers at once: a cell for each pair, blue where faster, red where slower."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import FixedLocator, NullLocator
from numpy.typing import NDArray

from simnet.engine.result import PointResult
from simnet.report.figure import TEXT_PT, plain_numbers, thin
from simnet.report.figures import node_counts, nodes_label, rates
from simnet.report.labels import numbers, value_label
from simnet.report.text import key_text, speedup_text

# Factor on the time at which a speedup has the deepest colour, if no point is further from 1.
LEAST_COLOURED = 1.5
# Speedups that a colour bar names where there is room, the most wanted ones first, and the room of one in its length.
SPEEDUP_TICKS = (1, 10, 100, 0.1, 0.01, 2, 0.5, 5, 0.2, 20, 50, 0.05, 0.02, 1.4, 0.7, 1.1, 0.9)
TICK_ROOM = 0.1
# Weights of red, green and blue in how bright a colour is (Rec. 709), and the brightness below which text is white.
LUMINANCE = (0.2126, 0.7152, 0.0722)
HALF_BRIGHT = 0.45
# Least size of the numbers in the cells [pt]; width of a character in its size, and of all cells in their axes.
LEAST_TEXT_PT, CHARACTER_WIDTH, CELLS_WIDTH = 4.5, 0.62, 0.88
FloatArray = NDArray[np.float64]


def heat_map(axes: Axes, points: Sequence[PointResult]) -> None:
    """Draw speedup by bandwidth and nodes: the value in each cell, blue above 1.0, red below, a line between them."""
    rows, columns = rates(points), node_counts(points)
    speedups = np.full((len(rows), len(columns)), np.nan)
    for point in points:
        speedups[rows.index(point.nic_gbit_per_s), columns.index(point.num_nodes)] = point.speedup
    _cells(axes, speedups, [f"{rate:g}" for rate in rows], [str(count) for count in columns])
    axes.set_xlabel(nodes_label(points))
    axes.set_ylabel("NIC bandwidth of a node [Gbit/s]")


def heat_map_over(axes: Axes, points: Sequence[PointResult], *, row_key: str, column_key: str) -> None:
    """Draw speedup by the numbers of two swept keys, as `heat_map` does by bandwidth and nodes."""
    texts = [_texts(points, key) for key in (row_key, column_key)]
    rows, columns = (sorted(known) for known in texts)
    speedups = np.full((len(rows), len(columns)), np.nan)
    places = zip(points, numbers(points, row_key) or [], numbers(points, column_key) or [], strict=True)
    for point, row, column in places:
        speedups[rows.index(row), columns.index(column)] = point.speedup
    _cells(axes, speedups, [texts[0][row] for row in rows], [texts[1][column] for column in columns])
    axes.set_xlabel(key_text(column_key))
    axes.set_ylabel(key_text(row_key))


def _texts(points: Sequence[PointResult], key: str) -> dict[float, str]:
    """Return the values of a key as people write them, by number."""
    return dict(zip(numbers(points, key) or [], (value_label(point, key) for point in points), strict=True))


def _cells(axes: Axes, speedups: FloatArray, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Draw the cells, their numbers, the colour bar and the line between faster and slower."""
    lowest, highest = min(1.0, float(np.nanmin(speedups))), max(1.0, float(np.nanmax(speedups)))
    # Twice as fast is as deep a blue as half as fast is a red.
    end = max(highest, 1 / lowest, LEAST_COLOURED)
    image = axes.imshow(speedups, origin="lower", aspect="auto", cmap="RdBu", norm=LogNorm(vmin=1 / end, vmax=end))
    _colour_bar(axes, image, lowest, highest)
    _border(axes, speedups)
    texts = [speedup_text(None if np.isnan(one) else float(one)).rstrip("x") for one in speedups.flat]
    size = _text_size(axes, len(columns), max(map(len, texts)))
    for ((row, column), speedup), text in zip(np.ndenumerate(speedups), texts, strict=True):
        dark = np.isnan(speedup) or _is_dark(image.to_rgba(np.array([speedup]))[0])
        colour = "white" if dark else "black"
        axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=size)
    axes.set_facecolor("#777777")
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)


def _text_size(axes: Axes, num_columns: int, num_characters: int) -> float:
    """Return the size at which the longest number fits its cell [pt]."""
    figure = axes.figure
    width_pt = axes.get_window_extent().width / figure.dpi * 72 * CELLS_WIDTH / num_columns
    return max(thin(LEAST_TEXT_PT), min(thin(TEXT_PT), 0.92 * width_pt / (num_characters * CHARACTER_WIDTH)))


def _colour_bar(axes: Axes, image: AxesImage, lowest: float, highest: float) -> None:
    """Draw what the colours of speedups mean, from the lowest to the highest."""
    figure = axes.figure
    assert isinstance(figure, Figure)
    bar = figure.colorbar(image, ax=axes, label="speedup")
    bar.ax.set_ylim(lowest, highest)
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_locator(FixedLocator(_ticks(lowest, highest)))
    plain_numbers(bar.ax.yaxis)


def _ticks(lowest: float, highest: float) -> list[float]:
    """Return the speedups that a logarithmic axis can name without one of them on another."""
    found: list[float] = []
    room = TICK_ROOM * math.log(highest / lowest)
    for tick in SPEEDUP_TICKS:
        if lowest <= tick <= highest and all(abs(math.log(tick / other)) >= room for other in found):
            found.append(tick)
    return found


def _is_dark(colour: FloatArray) -> bool:
    """Return whether white text is easier to read on a colour than black text."""
    return bool(sum(weight * part for weight, part in zip(LUMINANCE, colour, strict=False)) < HALF_BRIGHT)


def _border(axes: Axes, speedups: FloatArray) -> None:
    """Draw the line between the cells that are faster and those that are slower, as the rounded values say."""
    faster = np.round(speedups, 2) >= 1
    upright = [[(c + 0.5, r - 0.5), (c + 0.5, r + 0.5)] for r, c in np.argwhere(faster[:, 1:] != faster[:, :-1])]
    level = [[(c - 0.5, r + 0.5), (c + 0.5, r + 0.5)] for r, c in np.argwhere(faster[1:, :] != faster[:-1, :])]
    for width, colour in ((thin(4.0), "white"), (thin(2.0), "black")):
        axes.add_collection(LineCollection(upright + level, linewidths=width, colors=colour, capstyle="projecting"))

"""Draw how the times of iterations are distributed: the share that takes at most so long, with its percentiles."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from simnet.core.units import format_seconds
from simnet.engine.result import RunResult, StrategyResult
from simnet.report.figure import current, log_numbers, new, plain_numbers, shown, thin
from simnet.report.figures import BASELINE_COLOUR, STRATEGY_COLOUR
from simnet.report.labels import titles
from simnet.report.run_figure import add_caption
from simnet.report.text import clipped, count_text

HEIGHT_IN, NAME_CHARACTERS = 2.9, 40
PERCENTILES = {50: "o", 95: "s", 99: "D"}
"""Per cent of the iterations, each with its marker."""
SHARES = (1, 5, 25, 50, 75, 95, 99)
"""Ticks [%]; the axis is that of the odds, which gives both tails as much room as the middle."""
ENDS = (0.004, 0.996)
WIDE = 3.0
"""Longest over shortest time from which on an axis of times is logarithmic."""


def iterations(run: RunResult) -> Figure:
    """Return the figure, with its caption as label: the times, and the times over their own median."""
    figure = new(current().page_in, HEIGHT_IN)
    times, ratios = figure.subplots(1, 2, sharey=True)
    draw_iterations(times, run)
    sides = _sides(run)
    _draw(ratios, sides, titles([run]), [1 / side.p50_s for side in sides])
    ratios.set_xlabel("time of an iteration / its own median")
    ratios.set_ylabel("")
    handles, names = times.get_legend_handles_labels()
    # Columns are filled first: name and percentiles of one strategy stand in a row.
    columns = len(PERCENTILES) + 1
    order = [column + side * columns for column in range(columns) for side in range(len(sides))]
    figure.legend([handles[i] for i in order], [names[i] for i in order], loc="outside lower center", ncols=columns)
    add_caption(figure, run, f"Times of {count_text(run.result.num_iterations, 'iteration')}")
    return figure


def draw_iterations(axes: Axes, run: RunResult) -> None:
    """Draw the empirical distribution of the strategy's iterations and of the baseline's."""
    sides = _sides(run)
    scale, unit = (1.0, "s") if max(side.longest_s for side in sides) >= 1 else (1e3, "ms")
    _draw(axes, sides, titles([run]), [scale for _ in sides])
    axes.set_xlabel(f"time of an iteration [{unit}]")


def _sides(run: RunResult) -> list[StrategyResult]:
    return [run.result, *([run.baseline] if run.baseline else [])]


def _draw(axes: Axes, sides: Sequence[StrategyResult], names: Sequence[str], scales: Sequence[float]) -> None:
    """Draw a curve for each strategy, its times multiplied by a scale of its own."""
    for percent in PERCENTILES:
        axes.axhline(percent / 100, color=current().others, linewidth=thin(0.6), zorder=0)
    looks: tuple[dict[str, Any], ...] = (
        {"color": shown(STRATEGY_COLOUR), "linestyle": "-"},
        {"color": shown(BASELINE_COLOUR), "linestyle": "--"},
    )
    for side, name, scale, look in zip(sides, names, scales, looks, strict=False):
        axes.plot([], [], label=clipped(name, NAME_CHARACTERS), **look)
        _curve(axes, side, look, scale)
    _shares_axis(axes)
    pairs = list(zip(sides, scales, strict=True))
    low, high = min(min(one.iterations_s) * by for one, by in pairs), max(one.longest_s * by for one, by in pairs)
    _times_axis(axes, low, high)


def _curve(axes: Axes, side: StrategyResult, look: dict[str, Any], scale: float) -> None:
    ordered = np.sort(side.iterations_s)
    shares = (np.arange(len(ordered)) + 0.5) / len(ordered)
    axes.plot(ordered * scale, shares, drawstyle="steps-post", **look)
    for percent, marker in PERCENTILES.items():
        seconds = side.percentile_s(percent)
        axes.plot(
            [seconds * scale],
            [percent / 100],
            color=look["color"],
            marker=marker,
            linestyle="none",
            markeredgecolor=current().ink,
            markeredgewidth=thin(0.5),
            label=f"p{percent}: {format_seconds(seconds)}",
        )


def _shares_axis(axes: Axes) -> None:
    axes.set_yscale("logit")
    axes.set_ylim(*ENDS)
    axes.yaxis.set_major_locator(FixedLocator([share / 100 for share in SHARES]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:.0f}"))
    axes.set_ylabel("iterations not longer [%]")


def _times_axis(axes: Axes, low: float, high: float) -> None:
    """Give an axis of times the scale on which both ends can be read."""
    if high > WIDE * low:
        axes.set_xscale("log")
        log_numbers(axes.xaxis, (1.0, 2.0, 5.0) if high > 2 * WIDE * low else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0))
    else:
        plain_numbers(axes.xaxis)

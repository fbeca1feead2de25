"""Draw a campaign: predicted against measured, and the time of a step over bandwidth."""

import io
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from simnet.show.plot import STYLE
from simnet.validate.figures import BAND, COLOURS, MARKERS
from simnet.validate.measured import Point

COLUMNS = 3
MBIT = 8 / 1e6


def scatter(points: Sequence[Point]) -> bytes:
    """Return predicted over measured times of all points, with their intervals, as PNG."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.6, 5.2), layout="constrained")
        axes = figure.subplots()
        values = [value for point in points for value in (point.measured_s * 1e3, point.predicted_s * 1e3)]
        low, high = min(values) / 1.3, max(values) * 1.3
        axes.fill_between(
            [low, high], [low * (1 - BAND), high * (1 - BAND)], [low * (1 + BAND), high * (1 + BAND)],
            color="#DDDDDD", linewidth=0, label="±10 %", zorder=0,
        )  # fmt: skip
        axes.plot([low, high], [low, high], color="black", linewidth=0.8, label="predicted = measured", zorder=1)
        for name, style in _styles(points).items():
            _with_intervals(axes, [point for point in points if point.strategy == name], name, style)
        for axis in (axes.set_xscale, axes.set_yscale):
            axis("log")
        _ticks(axes)
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
        axes.set_aspect("equal")
        axes.set_xlabel("measured time of a step [ms]")
        axes.set_ylabel("predicted time of a step [ms]")
        figure.legend(loc="outside lower center", ncols=2)
        return _png(figure)


def curves(points: Sequence[Point], model: str) -> bytes:
    """Return the times of one model's steps over NIC bandwidth, a panel a layout, as PNG."""
    layouts = list(dict.fromkeys((point.setup.num_nodes, point.setup.ranks_per_node) for point in points))
    rows = -(-len(layouts) // COLUMNS)
    rates = sorted({(point.setup.nic_bytes_per_s or 0.0) * MBIT for point in points})
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.16, 2.4 * rows + 0.8), layout="constrained")
        figure.suptitle(f"{model}: measured (markers) and predicted (lines, 90 % intervals)")
        grid = figure.subplots(rows, min(COLUMNS, len(layouts)), sharex=True, sharey=True, squeeze=False)
        panels = [axes for row in grid for axes in row]
        for axes, (nodes, ranks) in zip(panels, layouts, strict=False):
            mine = [p for p in points if (p.setup.num_nodes, p.setup.ranks_per_node) == (nodes, ranks)]
            _panel(axes, mine, _styles(points))
            axes.set_title(f"{nodes} nodes x {ranks}", fontweight="normal")
            axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
        for axes in panels[len(layouts) :]:
            axes.set_visible(False)
        for row in grid:
            row[0].set_ylabel("time of a step [ms]")
        for axes in panels[max(0, len(layouts) - len(grid[0])) : len(layouts)]:
            axes.set_xlabel("NIC of a node [Mbit/s]")
            axes.tick_params(labelbottom=True)
        handles: dict[str, Any] = {}
        for axes in panels:
            found, labels = axes.get_legend_handles_labels()
            handles |= dict(zip(labels, found, strict=True))
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
        return _png(figure)


def _styles(points: Sequence[Point]) -> dict[str, tuple[str, str]]:
    names = sorted({point.strategy for point in points})
    return dict(zip(names, zip((*COLOURS, "black"), (*MARKERS, "X"), strict=True), strict=False))


def _with_intervals(axes: Axes, points: Sequence[Point], name: str, style: tuple[str, str]) -> None:
    colour, marker = style
    intervals = [point.interval_s or (point.predicted_s, point.predicted_s) for point in points]
    below = [max(0.0, p.predicted_s - low) * 1e3 for p, (low, _) in zip(points, intervals, strict=True)]
    above = [max(0.0, high - p.predicted_s) * 1e3 for p, (_, high) in zip(points, intervals, strict=True)]
    axes.errorbar(
        [p.measured_s * 1e3 for p in points], [p.predicted_s * 1e3 for p in points], yerr=[below, above],
        linestyle="none", marker=marker, markersize=4, color=colour, markerfacecolor="none", elinewidth=0.8, label=name,
    )  # fmt: skip


def _panel(axes: Axes, points: Sequence[Point], styles: dict[str, tuple[str, str]]) -> None:
    for name, (colour, marker) in styles.items():
        mine = sorted((p for p in points if p.strategy == name), key=lambda p: p.setup.nic_bytes_per_s or 0.0)
        if not mine:
            continue
        rates = [(p.setup.nic_bytes_per_s or 0.0) * MBIT for p in mine]
        intervals = [p.interval_s or (p.predicted_s, p.predicted_s) for p in mine]
        axes.plot(rates, [p.predicted_s * 1e3 for p in mine], color=colour, linewidth=1.0)
        axes.fill_between(
            rates, [low * 1e3 for low, _ in intervals], [high * 1e3 for _, high in intervals],
            color=colour, alpha=0.2, linewidth=0,
        )  # fmt: skip
        axes.plot(
            rates, [p.measured_s * 1e3 for p in mine], color=colour, linestyle="none", marker=marker, markersize=4,
            markerfacecolor="none", label=name,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    _ticks(axes)


def _ticks(axes: Axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()

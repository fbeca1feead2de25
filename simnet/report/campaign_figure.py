"""Draw a campaign: the time of a step over bandwidth, measured and predicted."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from simnet.core.units import format_seconds
from simnet.report import figure as looks
from simnet.report.comparison_figure import STYLES
from simnet.validation.training_steps import TrainedPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 3
MBIT = 8 / 1e6


def curves(points: Sequence[TrainedPoint], model: str) -> bytes:
    """Return the times of one model's steps over NIC bandwidth, a panel a layout, as PNG."""
    layouts = list(dict.fromkeys(map(_place, points)))
    rows = -(-len(layouts) // COLUMNS)
    rates = sorted({point.setting[3] * MBIT for point in points})
    styles = dict(zip(sorted({point.series for point in points}), cycle(STYLES), strict=False))
    with looks.styled():
        figure = looks.new(looks.PAGE_IN, 2.4 * rows + 0.8)
        figure.suptitle(f"{model}: measured (markers) and predicted (lines, 90 % intervals)")
        grid = figure.subplots(rows, min(COLUMNS, len(layouts)), sharex=True, sharey=True, squeeze=False)
        panels = [axes for row in grid for axes in row]
        for axes, place in zip(panels, layouts, strict=False):
            _panel(axes, [point for point in points if _place(point) == place], styles)
            axes.set_title(place, fontweight="normal")
            axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
        for axes in panels[len(layouts) :]:
            axes.set_visible(False)
        for row in grid:
            row[0].set_ylabel("time of a step [ms]")
        # The lowest panel of each column names the axis, also where the last row is not full.
        for axes in panels[max(0, len(layouts) - len(grid[0])) : len(layouts)]:
            axes.set_xlabel("NIC of a node [Mbit/s]")
            axes.tick_params(labelbottom=True)
        handles: dict[str, Any] = {}
        for axes in panels:
            found, labels = axes.get_legend_handles_labels()
            handles |= dict(zip(labels, found, strict=True))
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
        return looks.image(figure)


def variants(points: Sequence[TrainedPoint], model: str, systems: Mapping[str, Sequence[str]]) -> bytes:
    """Return the same, a row a layout and a panel a system, as PNG.

    Args:
        points: of one model.
        model: its name.
        systems: the strategies of each panel by its title.
    """
    layouts = list(dict.fromkeys(map(_place, points)))
    rates = sorted({point.setting[3] * MBIT for point in points})
    with looks.styled():
        figure = looks.new(looks.PAGE_IN, 2.9 * len(layouts) + 0.4)
        figure.suptitle(f"{model}: measured (markers) and predicted (lines, 90 % intervals)")
        grid = figure.subplots(len(layouts), len(systems), sharex=True, sharey=True, squeeze=False)
        for row, place in zip(grid, layouts, strict=True):
            row[0].set_ylabel("time of a step [ms]")
            for axes, (title, names) in zip(row, systems.items(), strict=True):
                there = [point for point in points if _place(point) == place]
                _panel(axes, there, dict(zip(names, cycle(STYLES), strict=False)))
                axes.set_title(f"{title}, {place}", fontweight="normal")
                axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
                axes.set_xlabel("NIC of a node [Mbit/s]")
                handles, labels = axes.get_legend_handles_labels()
                shown = [label.removeprefix(f"{title} ") for label in labels]
                axes.legend(handles, shown, loc="upper center", bbox_to_anchor=(0.5, -0.22))
        return looks.image(figure)


def _place(point: TrainedPoint) -> str:
    _, nodes, ranks, _, latency_s = point.setting
    return f"{nodes} nodes x {ranks}" + (f", {format_seconds(latency_s)}" if latency_s else "")


def _panel(axes: "Axes", points: Sequence[TrainedPoint], styles: dict[str, tuple[str, str]]) -> None:
    for name, style in styles.items():
        if mine := sorted((point for point in points if point.series == name), key=lambda point: point.setting[3]):
            _curve(axes, mine, name, style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        looks.log_numbers(axis, (1.0, 2.0, 5.0))


def _curve(axes: "Axes", mine: Sequence[TrainedPoint], name: str, style: tuple[str, str]) -> None:
    colour, marker = looks.shown(style[0]), style[1]
    rates = [point.setting[3] * MBIT for point in mine]
    ends = [point.interval or (point.predicted, point.predicted) for point in mine]
    axes.plot(rates, [point.predicted * 1e3 for point in mine], color=colour, linewidth=looks.thin(1.0))
    axes.fill_between(
        rates, [low * 1e3 for low, _ in ends], [high * 1e3 for _, high in ends], color=colour, alpha=0.2, linewidth=0
    )
    axes.plot(
        rates, [point.measured * 1e3 for point in mine], color=colour, linestyle="none", marker=marker, markersize=4,
        markerfacecolor="none", label=name,
    )  # fmt: skip

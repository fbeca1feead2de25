"""Draw the five figures of a sweep; every function draws the points of one panel on the axes it is given."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

from simnet.report.document import Metrics, Point
from simnet.report.text import bandwidth_text, nodes_text, speedup_text

# Colours of Okabe and Ito, which colour-blind readers can tell apart.
PARTS = {
    "forward_s": ("forward", "#56B4E9"),
    "backward_s": ("backward", "#0072B2"),
    "encode_s": ("encode", "#F0E442"),
    "decode_s": ("decode", "#009E73"),
    "exposed_comm_s": ("exposed communication", "#D55E00"),
    "optimizer_s": ("optimizer", "#999999"),
}
STRATEGY_COLOUR, BASELINE_COLOUR = "#56B4E9", "#D55E00"
MARKERS = "osD^vP*X<>"
DASHES = ("-", "--", "-.", ":")
BASELINE_HATCH = "////"
FloatMatrix = NDArray[np.float64]


def rates(points: Iterable[Point]) -> list[float]:
    """Return the NIC bandwidths [Gbit/s], ascending."""
    return sorted({point.nic_gbit_per_s for point in points})


def node_counts(points: Iterable[Point]) -> list[int]:
    """Return the numbers of nodes, ascending."""
    return sorted({point.num_nodes for point in points})


def speedup_over_nodes(axes: Axes, points: Sequence[Point]) -> None:
    """Draw speedup over nodes, a line for each bandwidth."""
    for index, rate in enumerate(rates(points)):
        line = sorted((p for p in points if p.nic_gbit_per_s == rate), key=lambda p: p.num_nodes)
        axes.plot(
            [point.num_nodes for point in line],
            [point.speedup or 0.0 for point in line],
            label=bandwidth_text(rate),
            **_line_style(index, len(rates(points))),
        )
    _nodes_axis(axes, points)
    _speedup_axis(axes)


def speedup_over_bandwidth(axes: Axes, points: Sequence[Point]) -> None:
    """Draw speedup over bandwidth, a line for each number of nodes; where it meets 1.0 is the crossover."""
    for index, num_nodes in enumerate(node_counts(points)):
        line = sorted((p for p in points if p.num_nodes == num_nodes), key=lambda p: p.nic_gbit_per_s)
        axes.plot(
            [point.nic_gbit_per_s for point in line],
            [point.speedup or 0.0 for point in line],
            label=nodes_text(num_nodes),
            **_line_style(index, len(node_counts(points))),
        )
    _log_axis(axes, rates(points), base=10)
    axes.set_xlabel("NIC bandwidth of a node [Gbit/s]")
    _speedup_axis(axes)


def throughput(axes: Axes, points: Sequence[Point]) -> None:
    """Draw throughput over nodes at one bandwidth: strategy, baseline, and compute alone as the linear ideal."""
    line = sorted(points, key=lambda point: point.num_nodes)
    nodes = [point.num_nodes for point in line]
    for result, colour, marker, dash in _strategies(line):
        axes.plot(
            nodes,
            [metrics.samples_per_s for metrics in result],
            color=colour,
            marker=marker,
            linestyle=dash,
            label=result[0].strategy,
        )
    axes.plot(nodes, _ideal_samples_per_s(line), color="black", linestyle=":", label="linear (compute alone)")
    _nodes_axis(axes, line)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_ylabel("throughput [samples/s]")


def breakdown(axes: Axes, points: Sequence[Point]) -> None:
    """Draw where an iteration's time goes: stacked bars of strategy and baseline, over bandwidth or else over nodes."""
    over_bandwidth = len(rates(points)) > 1
    shown = sorted(points, key=lambda point: point.nic_gbit_per_s if over_bandwidth else point.num_nodes)
    scale, unit = _time_unit(max(_slowest(point) for point in shown))
    for index, (result, _, _, _) in enumerate(_strategies(shown)):
        _stack(axes, result, offset=0.4 * index, scale=scale, hatch=BASELINE_HATCH if index else "")
    pairs = len(list(_strategies(shown)))
    labels = [f"{point.nic_gbit_per_s:g}" if over_bandwidth else str(point.num_nodes) for point in shown]
    axes.set_xticks([position + 0.2 * (pairs - 1) for position in range(len(shown))], labels)
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("NIC bandwidth of a node [Gbit/s]" if over_bandwidth else _nodes_label(shown))
    axes.set_ylabel(f"iteration time [{unit}]")
    axes.set_ylim(bottom=0)


def heat_map(axes: Axes, points: Sequence[Point]) -> None:
    """Draw speedup by bandwidth and nodes: the value in each cell, and the line that parts above 1.0 from below."""
    rows, columns = rates(points), node_counts(points)
    speedups = np.full((len(rows), len(columns)), np.nan)
    for point in points:
        speedups[rows.index(point.nic_gbit_per_s), columns.index(point.num_nodes)] = point.speedup
    norm = LogNorm(vmin=min(0.95, float(np.nanmin(speedups))), vmax=max(1.05, float(np.nanmax(speedups))))
    axes.imshow(speedups, origin="lower", aspect="auto", cmap="cividis", norm=norm)
    _border(axes, speedups)
    for (row, column), speedup in np.ndenumerate(speedups):
        dark = np.isnan(speedup) or norm(speedup) < 0.5
        text = speedup_text(None if np.isnan(speedup) else float(speedup)).rstrip("x")
        axes.text(column, row, text, ha="center", va="center", color="white" if dark else "black")
    axes.set_facecolor("#777777")
    axes.set_xticks(range(len(columns)), [str(count) for count in columns])
    axes.set_yticks(range(len(rows)), [f"{rate:g}" for rate in rows])
    axes.set_xlabel(_nodes_label(points))
    axes.set_ylabel("NIC bandwidth [Gbit/s]")


def _strategies(points: Sequence[Point]) -> Iterable[tuple[Sequence[Metrics], str, str, str]]:
    """Yield the results of the strategy and of the baseline, each with its colour, marker and dash."""
    yield points, STRATEGY_COLOUR, "o", "-"
    baseline = [point.baseline for point in points if point.baseline is not None]
    if len(baseline) == len(points):
        yield baseline, BASELINE_COLOUR, "s", "--"


def _ideal_samples_per_s(points: Sequence[Point]) -> list[float]:
    """Return the throughput of the points' samples in compute time alone, the least that any of them takes."""
    reference = [point.baseline or point for point in points]
    compute_s = min(m.breakdown.forward_s + m.breakdown.backward_s + m.breakdown.optimizer_s for m in reference)
    return [point.samples_per_s * point.iteration_s / compute_s for point in points]


def _slowest(point: Point) -> float:
    return max(point.iteration_s, point.baseline.iteration_s if point.baseline else 0.0)


def _time_unit(seconds: float) -> tuple[float, str]:
    """Return the factor from seconds to the unit in which an axis up to `seconds` reads well."""
    return (1.0, "s") if seconds >= 1 else (1e3, "ms")


def _stack(axes: Axes, result: Sequence[Metrics], *, offset: float, scale: float, hatch: str) -> None:
    bottom = np.zeros(len(result))
    for key, (_, colour) in PARTS.items():
        heights = np.array([getattr(metrics.breakdown, key) * scale for metrics in result])
        positions = [position + offset for position in range(len(result))]
        axes.bar(positions, heights, 0.36, bottom=bottom, color=colour, hatch=hatch, edgecolor="white", linewidth=0)
        bottom += heights


def _line_style(index: int, count: int) -> dict[str, Any]:
    """Return colour, marker and dash of one of `count` lines in order, distinct also in black and white."""
    colour = colormaps["viridis"](0.85 * index / max(1, count - 1))
    return {"color": colour, "marker": MARKERS[index % len(MARKERS)], "linestyle": DASHES[index % len(DASHES)]}


def _nodes_axis(axes: Axes, points: Sequence[Point]) -> None:
    _log_axis(axes, node_counts(points), base=2)
    axes.set_xlabel(_nodes_label(points))


def _nodes_label(points: Sequence[Point]) -> str:
    ranks = "/".join(str(count) for count in sorted({point.ranks_per_node for point in points}))
    return f"nodes (of {ranks} {'GPU' if ranks == '1' else 'GPUs'})"


def _log_axis(axes: Axes, values: Sequence[float], *, base: int) -> None:
    """Make the x axis logarithmic, with a tick at each value that was simulated."""
    axes.set_xscale("log", base=base)
    axes.xaxis.set_major_locator(FixedLocator(list(values)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _speedup_axis(axes: Axes) -> None:
    """Make the y axis logarithmic, so that twice as fast and half as fast are as far from 1.0."""
    axes.axhline(1.0, color="black", linewidth=0.8, label="1.0: same time")
    axes.set_yscale("log", base=2)
    lowest, highest = axes.get_ylim()
    axes.set_ylim(min(lowest, 0.9), max(highest, 2.1))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylabel("speedup (times)")


def _border(axes: Axes, speedups: FloatMatrix) -> None:
    """Draw the line between the cells that are faster and those that are slower, as the rounded values say."""
    faster = np.round(speedups, 2) >= 1
    upright = [[(c + 0.5, r - 0.5), (c + 0.5, r + 0.5)] for r, c in np.argwhere(faster[:, 1:] != faster[:, :-1])]
    level = [[(c - 0.5, r + 0.5), (c + 0.5, r + 0.5)] for r, c in np.argwhere(faster[1:, :] != faster[:-1, :])]
    for width, colour in ((4.0, "white"), (2.0, "black")):
        axes.add_collection(LineCollection(upright + level, linewidths=width, colors=colour, capstyle="projecting"))

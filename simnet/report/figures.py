"""Draw the lines and bars of a sweep; every function draws the points of one panel on the axes it is given."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray

from simnet.core.errors import SimnetError
from simnet.engine.result import PointResult, RunResult, StrategyResult, SweepResult, point_result
from simnet.report.figure import MARKERS, SKY, STEP_PARTS, VERMILION, current, part_patch, plain_numbers, thin
from simnet.report.labels import (
    BANDWIDTH_KEYS,
    NODES_KEYS,
    PART_KEYS,
    ROLES,
    WORKLOAD_KEYS,
    grouped,
    label,
    main_key,
    numbers,
    titles,
    value_label,
)
from simnet.report.text import bandwidth_text, clipped, gpus_text, key_text, nodes_text, speedup_text

STRATEGY_COLOUR, BASELINE_COLOUR = SKY, VERMILION
DASHES = ("-", "--", "-.", ":")
SAME_TIME = "1.0: same time"
# Smallest range of an axis of speedups, so that a few percent do not look like much.
LEAST_SPEEDUPS_SHOWN = (0.92, 2.0)
HEADROOM = 1.05
MAX_TICKS = 12
MAX_LINEAR_SPAN = 4
LABEL_CHARACTERS = 26
LONGEST_LABEL = 38
"""Characters of a label beside the height of one panel."""
BASELINE_HATCH = "////"
FloatArray = NDArray[np.float64]


def rates(points: Iterable[PointResult]) -> list[float]:
    """Return the NIC bandwidths [Gbit/s], ascending."""
    return sorted({point.nic_gbit_per_s for point in points})


def node_counts(points: Iterable[PointResult]) -> list[int]:
    """Return the numbers of nodes, ascending."""
    return sorted({point.num_nodes for point in points})


def speedup_over_nodes(axes: Axes, points: Sequence[PointResult]) -> None:
    """Draw speedup over nodes, a line for each bandwidth."""
    for index, rate in enumerate(rates(points)):
        line = sorted((p for p in points if p.nic_gbit_per_s == rate), key=lambda p: p.num_nodes)
        style = line_style(index, len(rates(points)))
        _speedups(axes, [point.num_nodes for point in line], line, label=bandwidth_text(rate), style=style)
    _nodes_axis(axes, points)
    speedup_axis(axes, points)


def speedup_over_bandwidth(axes: Axes, points: Sequence[PointResult]) -> None:
    """Draw speedup over bandwidth, a line for each number of nodes; where it meets 1.0 is the crossover."""
    for index, num_nodes in enumerate(node_counts(points)):
        line = sorted((p for p in points if p.num_nodes == num_nodes), key=lambda p: p.nic_gbit_per_s)
        style = line_style(index, len(node_counts(points)))
        _speedups(axes, [point.nic_gbit_per_s for point in line], line, label=nodes_text(num_nodes), style=style)
    _log_axis(axes, rates(points), base=10)
    axes.set_xlabel("NIC bandwidth of a node [Gbit/s]")
    speedup_axis(axes, points)


def throughput(axes: Axes, points: Sequence[PointResult]) -> None:
    """Draw throughput over nodes at every bandwidth: strategy, baseline, and compute alone as the linear ideal."""
    count = len(rates(points))
    for index, rate in enumerate(rates(points)):
        line = sorted((p for p in points if p.nic_gbit_per_s == rate), key=lambda p: p.num_nodes)
        own = line_style(index, count)["color"]
        for result, colour, marker, dash in _strategies(line):
            heights = [metrics.samples_per_s for metrics in result]
            look: dict[str, Any] = {"color": own if count > 1 else colour, "marker": marker, "linestyle": dash}
            axes.plot([point.num_nodes for point in line], heights, **look)
            if result[0] is line[0].result:
                _throughput_band(axes, line, look["color"])
        if count > 1:
            axes.plot([], [], color=own, label=bandwidth_text(rate))
    # Entries of the legend alone: colours say the bandwidth, or where there is one only, the role.
    for role, (_, colour, marker, dash) in zip(ROLES, _strategies(points), strict=False):
        axes.plot([], [], color=colour if count == 1 else current().others, marker=marker, linestyle=dash, label=role)
    if ideal := _ideal_samples_per_s(points):
        axes.plot(list(ideal), list(ideal.values()), color=current().ink, linestyle=":", label="linear (compute alone)")
    _nodes_axis(axes, points)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_ylabel("throughput [samples/s]")


def breakdown(axes: Axes, points: Sequence[PointResult]) -> None:
    """Draw where an iteration's time goes: stacked bars of strategy and baseline, over bandwidth or else over nodes."""
    over_bandwidth = len(rates(points)) > 1
    shown = sorted(points, key=lambda point: point.nic_gbit_per_s if over_bandwidth else point.num_nodes)
    _columns(axes, shown, [f"{point.nic_gbit_per_s:g}" if over_bandwidth else str(point.num_nodes) for point in shown])
    axes.set_xlabel("NIC bandwidth of a node [Gbit/s]" if over_bandwidth else nodes_label(shown))


def breakdown_over(axes: Axes, points: Sequence[PointResult], *, key: str) -> None:
    """Draw where an iteration's time goes: stacked bars of strategy and baseline, over the numbers of a swept key."""
    shown = ascending(points, key)
    _columns(axes, shown, [value_label(point, key) for point in shown])
    axes.set_xlabel(key_text(key))


def breakdown_of_each(axes: Axes, points: Sequence[PointResult], *, keys: Sequence[str]) -> None:
    """Draw where an iteration's time goes: stacked bars to the right of the values of keys, baseline below."""
    scale, unit = _time_unit(max(_slowest(point) for point in points))
    results = [result for result, _, _, _ in _strategies(points)]
    for index, result in enumerate(results):
        offset = 0.4 * index - 0.2 * (len(results) - 1)
        _stack_sideways(axes, result, index=index, scale=scale, offset=offset)
    _rows(axes, points, keys)
    axes.set_xlabel(f"iteration time [{unit}]")
    axes.set_xlim(0, HEADROOM * scale * max(_slowest(point) for point in points))


def speedup_over(axes: Axes, points: Sequence[PointResult], *, key: str, others: Sequence[str]) -> None:
    """Draw speedup over the numbers of a swept key, a line for each setting of the other keys."""
    lines = grouped(points, others)
    for index, (name, line) in enumerate(lines.items()):
        shown = ascending(line, key)
        style = line_style(index, len(lines))
        _speedups(axes, numbers(shown, key) or [], shown, label=name or "_nolegend_", style=style)
    values = dict(zip(numbers(points, key) or [], (value_label(point, key) for point in points), strict=True))
    numbers_axis(axes, dict(sorted(values.items())))
    axes.set_xlabel(key_text(key))
    speedup_axis(axes, points)


def draw_speedups(axes: Axes, sweep: SweepResult) -> None:
    """Draw the speedup over the last key that varies, by bars where its values are no numbers.

    Raises:
        SimnetError: nothing varies, or no point has a baseline.
    """
    points = [point for point in sweep.points if point.speedup is not None]
    if not points or not sweep.varied:
        raise SimnetError("plot: no speedups to draw: give a baseline, and two values of some key")
    key = main_key(sweep)
    others = [one for one in sweep.varied if one != key]
    if {*sweep.varied} <= {*NODES_KEYS, *BANDWIDTH_KEYS}:
        (speedup_over_nodes if key in NODES_KEYS else speedup_over_bandwidth)(axes, points)
        axes.legend()
    elif numbers(points, key) is None:
        speedup_of_each(axes, points, keys=sweep.varied)
    else:
        speedup_over(axes, points, key=key, others=others)
        if others:
            axes.legend()


def draw_breakdown(axes: Axes, result: RunResult) -> None:
    """Draw where the time of a step goes: stacked bars of strategy and baseline."""
    point = point_result({}, result)
    scale, unit = _time_unit(_slowest(point))
    names = titles([point])
    for index, (metrics, _, _, _) in enumerate(_strategies([point])):
        for lengths, left, style in _pieces(metrics, index=index, scale=scale):
            axes.barh([index], lengths, 0.6, left=left, **style)
    axes.set_yticks(range(len(names)), [textwrap.fill(name, LABEL_CHARACTERS) for name in names])
    axes.invert_yaxis()
    axes.set_xlabel(f"time of a step [{unit}]")
    patches = [Patch(**part_patch(key)) for key in STEP_PARTS]
    axes.legend(handles=patches, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)


def speedup_of_each(axes: Axes, points: Sequence[PointResult], *, keys: Sequence[str]) -> None:
    """Draw speedup as a bar to the right of the values of keys."""
    speedups = [point.speedup or 0.0 for point in points]
    axes.barh(range(len(points)), speedups, 0.6, color=STRATEGY_COLOUR)
    tops = [point.intervals.get("speedup", (speedup, speedup)) for point, speedup in zip(points, speedups, strict=True)]
    for row, (speedup, (low, high)) in enumerate(zip(speedups, tops, strict=True)):
        if high > low:
            axes.plot([low, high], [row, row], color=current().ink, linewidth=thin(1.0), marker="|")
        axes.annotate(
            speedup_text(speedup), (max(speedup, high), row), (thin(4), 0), textcoords="offset points", va="center"
        )
    axes.axvline(1.0, color=current().ink, linewidth=thin(), label=SAME_TIME)
    _rows(axes, points, keys)
    axes.set_xlim(0, max(1.25 * max(speedups), *(1.25 * high for _, high in tops), 1.5))
    axes.set_xlabel(speedup_label(points))


def _strategies(points: Sequence[PointResult]) -> Iterable[tuple[Sequence[StrategyResult], str, str, str]]:
    """Yield the results of the strategy and of the baseline, each with its colour, marker and dash."""
    yield [point.result for point in points], STRATEGY_COLOUR, "o", "-"
    baseline = [point.baseline for point in points if point.baseline is not None]
    if len(baseline) == len(points):
        yield baseline, BASELINE_COLOUR, "s", "--"


def _ideal_samples_per_s(points: Sequence[PointResult]) -> dict[int, float]:
    """Return the throughput in compute time alone by nodes, ascending; nothing where no point computes.

    The compute time is the least of all points that accumulate as many micro-batches.
    """
    least_s: dict[int, float] = {}
    for point in points:
        parts = (point.baseline or point.result).breakdown
        compute_s = parts.forward_s + parts.backward_s + parts.optimizer_s
        count = point.scenario.grad_accumulation
        least_s[count] = min(compute_s, least_s.get(count, compute_s))
    if not all(least_s.values()):
        return {}
    return {
        point.num_nodes: point.result.samples_per_s
        * point.result.iteration_s
        / least_s[point.scenario.grad_accumulation]
        for point in sorted(points, key=lambda point: point.num_nodes)
    }


def _slowest(point: PointResult) -> float:
    return max(point.result.iteration_s, point.baseline.iteration_s if point.baseline else 0.0)


def _time_unit(seconds: float) -> tuple[float, str]:
    """Return the factor from seconds to the unit in which an axis up to `seconds` reads well."""
    return (1.0, "s") if seconds >= 1 else (1e3, "ms")


def ascending(points: Sequence[PointResult], key: str) -> list[PointResult]:
    """Return points by the number that a key is set to."""
    order = numbers(points, key) or []
    return [points[index] for index in sorted(range(len(points)), key=lambda index: order[index])]


def _columns(axes: Axes, shown: Sequence[PointResult], labels: Sequence[str]) -> None:
    """Draw a stack for each strategy above each label."""
    slowest_s = max(_slowest(point) for point in shown)
    scale, unit = _time_unit(slowest_s)
    for index, (result, _, _, _) in enumerate(_strategies(shown)):
        _stack(axes, result, index=index, scale=scale, offset=0.4 * index)
    pairs = len(list(_strategies(shown)))
    stride = -(-len(shown) // MAX_TICKS)
    axes.set_xticks([place + 0.2 * (pairs - 1) for place in range(0, len(shown), stride)], list(labels)[::stride])
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel(f"iteration time [{unit}]")
    axes.set_ylim(0, HEADROOM * scale * slowest_s)


def _rows(axes: Axes, points: Sequence[PointResult], keys: Sequence[str]) -> None:
    """Name the rows of bars, the first one on top, by the values of one key, or of several with their names."""
    names = [value_label(point, keys[0]) if len(keys) == 1 else label(point, keys) for point in points]
    texts = [textwrap.fill(clipped(name, 3 * LABEL_CHARACTERS), LABEL_CHARACTERS) for name in names]
    axes.set_yticks(range(len(points)), texts)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(points) - 0.5, -0.5)
    if len(keys) == 1 and keys[0] not in (*WORKLOAD_KEYS, *PART_KEYS):
        axes.set_ylabel(key_text(keys[0]))


def numbers_axis(axes: Axes, labels: dict[float, str]) -> None:
    """Put a tick at each number that was simulated, on a logarithmic axis where they span much."""
    values = list(labels)
    if values[0] > 0 and values[-1] / values[0] > MAX_LINEAR_SPAN:
        axes.set_xscale("log", base=2)
    stride = -(-len(values) // MAX_TICKS)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(values[::stride], list(labels.values())[::stride])


def _stack(axes: Axes, result: Sequence[StrategyResult], *, index: int, scale: float, offset: float) -> None:
    """Draw a column a point, hatched for the baseline, which is the strategy of index 1."""
    for heights, bottom, style in _pieces(result, index, scale):
        axes.bar([place + offset for place in range(len(result))], heights, 0.36, bottom=bottom, **style)


def _stack_sideways(axes: Axes, result: Sequence[StrategyResult], *, index: int, scale: float, offset: float) -> None:
    """Draw a row a point, as `_stack` does columns."""
    for widths, left, style in _pieces(result, index, scale):
        axes.barh([place + offset for place in range(len(result))], widths, 0.36, left=left, **style)


def _pieces(
    result: Sequence[StrategyResult], index: int, scale: float
) -> Iterator[tuple[FloatArray, FloatArray, dict[str, Any]]]:
    """Yield each part of the breakdown: its lengths and starts at the points in the shown unit, and its style."""
    start = np.zeros(len(result))
    hatch = BASELINE_HATCH if index else ""
    for key, (_, colour) in STEP_PARTS.items():
        lengths = np.array([getattr(metrics.breakdown, key) * scale for metrics in result])
        yield (
            lengths,
            start,
            {
                "color": colour,
                "hatch": hatch + (current().exposed_hatch if key == "exposed_comm_s" else ""),
                "edgecolor": current().ground,
                "linewidth": thin(current().edge_pt),
            },
        )
        start = start + lengths


def _speedups(
    axes: Axes, at: Sequence[float], line: Sequence[PointResult], *, label: str, style: dict[str, Any]
) -> None:
    """Draw a line of speedups, and their 90 % intervals as a band if they have some."""
    axes.plot(at, [point.speedup or 0.0 for point in line], label=label, **style)
    bands = [point.intervals.get("speedup") for point in line]
    known = [(x, band) for x, band in zip(at, bands, strict=True) if band is not None]
    if known:
        places, ends = zip(*known, strict=True)
        low, high = zip(*ends, strict=True)
        axes.fill_between(places, low, high, color=style["color"], alpha=0.2, linewidth=0)


def _throughput_band(axes: Axes, line: Sequence[PointResult], colour: str) -> None:
    """Draw the 90 % intervals of the strategy's throughput, from those of its time, where every point has one."""
    times = [point.intervals.get("iteration_s") for point in line]
    ends = [
        [point.result.samples_per_s * point.result.iteration_s / end_s for end_s in interval]
        for point, interval in zip(line, times, strict=True)
        if interval is not None
    ]
    if len(ends) == len(line):
        low, high = [min(pair) for pair in ends], [max(pair) for pair in ends]
        axes.fill_between([point.num_nodes for point in line], low, high, color=colour, alpha=0.2, linewidth=0)


def line_style(index: int, count: int) -> dict[str, Any]:
    """Return colour, marker and dash of one of `count` lines in order, distinct also in black and white."""
    first, last = current().shades
    colour = colormaps["viridis"](first + (last - first) * index / max(1, count - 1))
    return {"color": colour, "marker": MARKERS[index % len(MARKERS)], "linestyle": DASHES[index % len(DASHES)]}


def _nodes_axis(axes: Axes, points: Sequence[PointResult]) -> None:
    _log_axis(axes, node_counts(points), base=2)
    axes.set_xlabel(nodes_label(points))


def nodes_label(points: Sequence[PointResult]) -> str:
    """Return the label of an axis of nodes."""
    return f"nodes (of {gpus_text(*(point.ranks_per_node for point in points))})"


def _log_axis(axes: Axes, values: Sequence[float], *, base: int) -> None:
    """Make the x axis logarithmic, with a tick at each value that was simulated."""
    axes.set_xscale("log", base=base)
    axes.xaxis.set_major_locator(FixedLocator(list(values)))
    axes.xaxis.set_minor_locator(NullLocator())
    plain_numbers(axes.xaxis)


def speedup_label(points: Sequence[PointResult]) -> str:
    """Return the label of an axis of speedups, such as "speedup over DDP (fp32, ring)"."""
    return f"speedup over {titles(points)[-1]}"


def speedup_axis(axes: Axes, points: Sequence[PointResult]) -> None:
    """Make the y axis logarithmic, so that twice as fast and half as fast are as far from 1.0."""
    axes.axhline(1.0, color=current().ink, linewidth=thin(), label=SAME_TIME)
    axes.set_yscale("log", base=2)
    # Not `set_ylim`, which would end the fitting of an axis that panels share.
    axes.update_datalim([(1.0, speedup) for speedup in LEAST_SPEEDUPS_SHOWN], updatex=False)
    axes.autoscale_view(scalex=False)
    plain_numbers(axes.yaxis)
    axes.yaxis.set_minor_locator(LogLocator(base=2, subs=(1.25, 1.5, 1.75)))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if _is_narrow(axes) else ""))
    axes.set_ylabel(textwrap.fill(speedup_label(points), LONGEST_LABEL))


def _is_narrow(axes: Axes) -> bool:
    """Return whether an axis of speedups has too few powers of two to be read by them."""
    lowest, highest = axes.get_ylim()
    return bool(highest / lowest < 5)

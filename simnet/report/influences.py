"""The uncertain values that a result hangs on, in words and as a tornado figure."""

from typing import TYPE_CHECKING

from simnet.core.units import format_seconds
from simnet.engine.result import Influence, RunResult
from simnet.report import figure as looks
from simnet.report.figure import BLUE, VERMILION
from simnet.report.labels import titles
from simnet.report.text import printable, speedup_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NAMED, MOST_DRAWN = 3, 10
NEAR_ONE = 1.095
ROW_IN, MARGIN_IN = 0.27, 0.85
NOUNS = {
    "workload.compute": "compute",
    "workload.compute_factor": "compute on this GPU",
    "workload.forward": "forward",
    "workload.backward": "backward",
    "workload.optimizer": "the optimizer",
    "calibration.codec_efficiency": "the codec",
    "calibration.memory_bandwidth": "the GPU's memory",
    "calibration.inter_node.efficiency": "links between nodes",
    "calibration.intra_node.efficiency": "links inside nodes",
    "calibration.all_to_all_efficiency": "exchanges of all with all",
    "calibration.inter_node.latency": "latency between nodes",
    "calibration.intra_node.latency": "latency inside nodes",
    "calibration.nccl.below_1_mib": "a message below 1 MiB in NCCL",
    "calibration.nccl.below_16_mib": "a message of 1 to 16 MiB in NCCL",
    "calibration.nccl.from_16_mib": "a message from 16 MiB on in NCCL",
    "calibration.nccl.inter_node_efficiency": "NCCL between nodes",
    "calibration.nccl.intra_node_efficiency": "NCCL inside nodes",
    "calibration.nccl.nvls_efficiency": "NCCL through NVSwitches",
    "calibration.nccl.ll_tree_rate": "a tree of NCCL in LL",
    "calibration.kernel_launch": "the launch of a kernel",
    "calibration.collective_launch": "the launch of a collective",
    "calibration.message_cost": "posting a message",
    "calibration.poll_cost": "polling",
    "calibration.backward_slowdown": "compute during communication",
    "calibration.hook_slowdown": "backward with hooks",
    "calibration.compute_spread": "the wait for the slowest GPU",
    "calibration.host_pause": "pauses of hosts",
    "calibration.intra_node.overlap_efficiency": "links inside nodes during compute",
    "calibration.inter_node.overlap_efficiency": "links between nodes during compute",
}
PLURAL = ("links", "exchanges")
"""First words of nouns in the plural."""
RATES = ("efficiency", "bandwidth", "tree_rate")
"""Ends of keys whose values make things faster the larger they are."""


def sentence(result: RunResult) -> str:
    """Return what a result would be at the ends that change it most: "if the codec is 3.8 times slower: 7.4x"."""
    texts = [_clause(result, one, *_worst(result, one)) for one in result.hangs_on[:MOST_NAMED]]
    return "; ".join(texts)


def _worst(result: RunResult, one: Influence) -> tuple[float, float]:
    """Return the end that changes the result more: the factor on the value, and the result there."""
    middle = usual(result)
    return max(zip(one.interval, one.values, strict=True), key=lambda end: abs(end[1] / middle - 1))


def _clause(result: RunResult, one: Influence, factor: float, value: float) -> str:
    return f"if {change_text(one.key, factor)}: {value_text(result, value)}"


def change_text(key: str, factor: float) -> str:
    """Return what a factor on a value means: "the codec is 3.8 times slower"."""
    called = noun(key)
    verb = "takes" if not key.endswith(RATES) else "are" if called.startswith(PLURAL) else "is"
    return f"{called} {verb} {_factor_text(key, factor)}"


def _factor_text(key: str, factor: float) -> str:
    if not key.endswith(RATES):
        return f"{_number(factor)} times as long"
    return f"{_number(max(factor, 1 / factor))} times {'slower' if factor < 1 else 'faster'}"


def interval_text(key: str, interval: tuple[float, float]) -> str:
    """Return what the ends of an interval mean: "1.9 times slower to 1.1 times faster", "0.5 to 2 times as long"."""
    low, high = interval
    if low == 1:
        return f"up to {_factor_text(key, high)}"
    if key.endswith(RATES):
        if high == 1:
            return f"up to {_factor_text(key, low)}"
        return f"{_factor_text(key, low)} to {_factor_text(key, high)}"
    return f"{_number(low)} to {_factor_text(key, high)}"


def _number(factor: float) -> str:
    """Return two digits, but of 1.04 not "1"."""
    return f"{factor:.{2 + (1 <= factor < NEAR_ONE)}g}"


def noun(key: str) -> str:
    """Return what people call the value of a dotted key: "links between nodes"."""
    if key in NOUNS:
        return NOUNS[key]
    _, _, rest = key.partition(".")
    part, _, name = rest.partition(".")
    if part == "kernels":
        return f"kernel {printable(name.partition('.')[0])}"
    if part == "libraries":
        library, _, own = name.partition(".")
        return f"{own.replace('_', ' ')} of {printable(library)}"
    return printable(rest.replace("_", " "))


def usual(result: RunResult) -> float:
    """Return what influences change: the speedup, without a baseline the time of an iteration [s]."""
    return result.result.iteration_s if result.speedup is None else result.speedup


def value_text(result: RunResult, value: float) -> str:
    """Return another value of what influences change, as people write it."""
    return format_seconds(value) if result.speedup is None else speedup_text(value)


def tornado(result: RunResult) -> "Figure":
    """Draw the result at both ends of the interval of each value that it hangs on, the largest effect on top."""
    shown = result.hangs_on[:MOST_DRAWN]
    figure = looks.new(looks.current().page_in, MARGIN_IN + ROW_IN * (len(shown) + 1))
    axes = figure.subplots()
    for place, one in enumerate(shown):
        _bars(axes, result, one, -place)
    _interval(axes, result, -len(shown))
    axes.axvline(usual(result), color=looks.current().ink, linewidth=looks.thin())
    axes.set_yticks(range(0, -len(shown) - 1, -1), [*(noun(one.key) for one in shown), "all, and the model's error"])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xscale("log")
    _ticks(axes, result)
    pair = " over ".join(map(looks.label, titles([result])))
    axes.set_xlabel(f"speedup, {pair}" if result.speedup is not None else f"time of an iteration [s], {pair}")
    figure.set_label(f"What the result hangs on: {axes.get_xlabel()} at both ends of each value's interval.")
    return figure


def _bars(axes: "Axes", result: RunResult, one: Influence, place: int) -> None:
    middle = usual(result)
    for factor, value in zip(one.interval, one.values, strict=True):
        if abs(value / middle - 1) < 1e-3:
            continue
        colour = VERMILION if value < middle else BLUE
        axes.barh(place, value - middle, left=middle, height=0.6, color=colour, hatch="" if value < middle else "///",
                  edgecolor=looks.current().ground, linewidth=0)  # fmt: skip
        side = -1 if value < middle else 1
        axes.annotate(
            _factor_text(one.key, factor), (value, place), (looks.thin(4) * side, 0), textcoords="offset points",
            ha="right" if side < 0 else "left", va="center", fontsize=looks.thin(7),
        )  # fmt: skip


def _interval(axes: "Axes", result: RunResult, place: int) -> None:
    metric = "iteration_s" if result.speedup is None else "speedup"
    if metric in result.intervals:
        low, high = result.intervals[metric]
        axes.plot(
            [low, high],
            [place, place],
            color=looks.current().ink,
            linewidth=looks.thin(1.4),
            marker="|",
            markersize=looks.thin(7),
        )


def _ticks(axes: "Axes", result: RunResult) -> None:
    """Write the axis so that a reader finds the ends, with a margin for the factors beside the bars."""
    metric = "iteration_s" if result.speedup is None else "speedup"
    ends = [*result.intervals.get(metric, ()), *(value for one in result.hangs_on for value in one.values)]
    low, high = min([*ends, usual(result)]), max([*ends, usual(result)])
    margin = (high / low) ** (0.2 * (looks.PAGE_IN / looks.current().page_in) ** 2)
    axes.set_xlim(low / margin, high * margin)
    subs = (1.0, 2.0, 5.0) if high / low > 20 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    looks.log_numbers(axes.xaxis, subs)

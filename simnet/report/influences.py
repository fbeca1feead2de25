"""The uncertain values that a result is sensitive to, in words."""

from simnet.core.units import format_seconds
from simnet.engine.result import RunResult
from simnet.report.text import printable, speedup_text

MOST_NAMED = 3
NEAR_ONE = 1.095
NOUNS = {
    "workload.compute": "compute",
    "workload.compute_factor": "compute on this GPU",
    "workload.forward": "forward",
    "workload.backward": "backward",
    "workload.optimizer": "the optimizer",
    "calibration.codec_efficiency": "encode and decode",
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
PLURAL = ("links", "exchanges", "encode")
"""First words of nouns in the plural."""
RATES = ("efficiency", "bandwidth", "tree_rate")
"""Ends of keys whose values make things faster the larger they are."""


def sentence(result: RunResult) -> str:
    """Return what a result is at the ends that change it most: "encode and decode (7.36x if 3.8 times slower)"."""
    middle = usual(result)
    texts = []
    for influence in result.sensitive_to[:MOST_NAMED]:
        ends = zip(influence.interval, influence.values, strict=True)
        factor, value = max(ends, key=lambda end: abs(end[1] / middle - 1))
        texts.append(f"{noun(influence.key)} ({value_text(result, value)} if {factor_text(influence.key, factor)})")
    return "; ".join(texts)


def change_text(key: str, factor: float) -> str:
    """Return what a factor on a value means: "the codec is 3.8 times slower"."""
    called = noun(key)
    verb = "takes" if not key.endswith(RATES) else "are" if called.startswith(PLURAL) else "is"
    return f"{called} {verb} {factor_text(key, factor)}"


def factor_text(key: str, factor: float) -> str:
    """Return what a factor on a value means, without its noun: "3.8 times slower"."""
    if not key.endswith(RATES):
        return f"{_number(factor)} times as long"
    return f"{_number(max(factor, 1 / factor))} times {'slower' if factor < 1 else 'faster'}"


def interval_text(key: str, interval: tuple[float, float]) -> str:
    """Return what the ends of an interval mean: "1.9 times slower to 1.1 times faster", "0.5 to 2 times as long"."""
    low, high = interval
    if low == 1:
        return f"up to {factor_text(key, high)}"
    if key.endswith(RATES):
        if high == 1:
            return f"up to {factor_text(key, low)}"
        return f"{factor_text(key, low)} to {factor_text(key, high)}"
    return f"{_number(low)} to {factor_text(key, high)}"


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
        library, _, value = name.partition(".")
        return f"{value.replace('_', ' ')} of {printable(library)}"
    return printable(rest.replace("_", " "))


def usual(result: RunResult) -> float:
    """Return what influences change: the speedup, without a baseline the time of an iteration [s]."""
    return result.result.iteration_s if result.speedup is None else result.speedup


def value_text(result: RunResult, value: float) -> str:
    """Return another value of what influences change, as people write it."""
    return format_seconds(value) if result.speedup is None else speedup_text(value)

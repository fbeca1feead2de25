"""The page of one run: the scenario, strategy and baseline side by side, what faults cost, what it is sensitive to."""

import textwrap
from collections.abc import Callable, Iterator

from msgspec.structs import fields

from simnet.cluster.faults.node_failure import NodeFailure
from simnet.cluster.hardware import Cluster, Fault
from simnet.core.schema import tag_of
from simnet.core.units import Quantity, format_bytes, format_seconds
from simnet.engine.result import LostTime, RunResult, StepTimes, StrategyResult
from simnet.engine.scenario import Scenario
from simnet.report.figure import STEP_PARTS
from simnet.report.rows import BY_NAME, METRICS
from simnet.report.table import Column, Page, Table
from simnet.report.text import (
    DAY_S,
    WIDTH,
    calibration_title,
    clipped,
    count_text,
    hanging,
    names,
    nodes_text,
    part_title,
    percent,
    printable,
    short_text,
    sides,
    speedup_text,
    value_text,
    workload_title,
)

LABEL_WIDTH = 28
VALUE_WIDTH = 22
SHARE_WIDTH = 9
PERCENTILES = ("p50_s", "p95_s", "p99_s", "longest_s")
Cell = tuple[str, str]


def result_page(run_result: RunResult) -> Page:
    """Return what `simnet simulate` prints: at most 100 columns of plain text, every number with its unit."""
    question = textwrap.wrap(run_result.scenario.question, WIDTH)
    lost: list[str | Table] = []
    if run_result.result.lost_time is not None:
        lost = [*lost_time_lines(run_result), ""]
    return Page(
        [
            *([*question, ""] if question else []),
            *(line for label, text in assumptions(run_result).items() for line in hanging(f"{label:<13}", text)),
            "",
            comparison(run_result),
            "",
            *lost,
            *(line for sentence in verdict(run_result) for line in hanging("", sentence)),
            *(line for note in run_result.notes for line in hanging("note: ", note)),
        ]
    )


def run_line(result: RunResult) -> str:
    """Return speedup, interval and step of a run: "bert: 10.1x (9.04x to 11.0x), binsgdm 76.7 ms a step"."""
    strategy, *baseline = names([result])
    ends = result.intervals.get("speedup")
    between = f" ({' to '.join(map(speedup_text, ends))})" if ends else ""
    step = f"{strategy} {format_seconds(result.result.iteration_s)} a step"
    against = f" against {baseline[0]}" if baseline else ""
    speedup = "" if result.speedup is None else f"{speedup_text(result.speedup)}{between}, "
    return f"{printable(result.scenario.name)}: {speedup}{step}{against}"


def assumptions(run_result: RunResult) -> dict[str, str]:
    """Return what a run assumes: its parts, with the kind of their numbers, and the executor."""
    scenario = run_result.scenario
    simulated = f"{count_text(run_result.world_size, 'rank')}, {run_result.result.fidelity} executor"
    if run_result.version:
        simulated += f", simnet {run_result.version}"
    return {
        "cluster": _cluster(scenario),
        "workload": _workload(run_result),
        "calibration": f"{calibration_title(scenario)} ({scenario.calibration.kind})",
        "simulated": simulated,
    }


def _cluster(scenario: Scenario) -> str:
    cluster = scenario.cluster
    nics = "" if cluster.nics_per_node == 1 else f"{cluster.nics_per_node} x "
    gpus = f"{cluster.ranks_per_node} {cluster.gpu}" if cluster.gpu else count_text(cluster.ranks_per_node, "GPU")
    nodes = f"{nodes_text(cluster.num_nodes)} x {gpus}"
    nic, inside = cluster.inter_node.bytes_per_s.text(), cluster.intra_node.bytes_per_s.text()
    return f"{part_title(cluster.name, scenario.name)}: {nodes}, NIC {nics}{nic}, in the node {inside} (nominal rates)"


def _workload(run_result: RunResult) -> str:
    scenario = run_result.scenario
    workload = scenario.workload
    gradients = f"gradients {format_bytes(run_result.gradient_bytes)}"
    samples = f"{count_text(workload.batch_per_rank, 'sample')} per rank"
    factor = "" if workload.compute_factor == 1 else f" x {workload.compute_factor:g}"
    return (
        f"{workload_title(scenario)}: {gradients}, {samples}{_accumulation(scenario)} (compute times "
        f"{compute_kind(scenario)}{factor})"
    )


def _accumulation(scenario: Scenario) -> str:
    """Return the micro-batches of an iteration where somebody has asked for them: " x 4 (global batch 4096)"."""
    run = scenario.run
    if run.global_batch is not None:
        return f" x {scenario.grad_accumulation} (global batch {run.global_batch})"
    return f" x {run.grad_accumulation}" if scenario.grad_accumulation > 1 else ""


def compute_kind(scenario: Scenario) -> str:
    """Say where the compute times come from: the kinds of the rows that fit, or the scenario's own text."""
    workload, gpu = scenario.workload, scenario.cluster.gpu
    if workload.work_on(scenario.cluster.gpu) is not None:
        return "roofline estimate"
    fitting = {
        row.kind
        for row in workload.compute
        if row.gpu == (gpu or row.gpu) and row.precision == (workload.precision or row.precision)
    }
    return " or ".join(sorted(fitting)) or "given"


def comparison(run_result: RunResult) -> Table:
    """Return a line for each metric, and for each strategy two cells: a value and its share."""
    columns = [Column("", width=LABEL_WIDTH)]
    for name in names([run_result]):
        columns += [
            Column(_title(name), "right", width=VALUE_WIDTH, gap=0),
            Column("", "right", width=SHARE_WIDTH, gap=0),
        ]
    rows = [
        (label, *(text for cell in cells for text in cell)) for label, cells in _rows(run_result, sides(run_result))
    ]
    return Table(columns, rows)


def _title(name: str) -> str:
    """Return the name of a strategy, a line for each setting."""
    return "\n".join(line for part in name.split(", ") for line in textwrap.wrap(part, VALUE_WIDTH))


def _rows(run_result: RunResult, results: list[StrategyResult]) -> Iterator[tuple[str, list[Cell]]]:
    """Yield the label of each line and a cell for each strategy."""
    varies = any(result.varies for result in results)
    yield "mean step" if varies else "step time", [(format_seconds(side.iteration_s), "") for side in results]
    if varies:
        for name in PERCENTILES:
            yield f"  {BY_NAME[name].text}", [_beside_mean(getattr(side, name), side, "+") for side in results]
    for key, (label, _) in STEP_PARTS.items():
        yield f"  {label}", [_beside_mean(getattr(side.breakdown, key), side) for side in results]
    if any(result.memory for result in results):
        yield "memory of a GPU", [_memory(result) for result in results]
    for label, cell in _lines(run_result.scenario):
        texts = [cell(result) for result in results]
        if any(texts):
            yield label, [(text, "") for text in texts]


def _beside_mean(seconds: float, result: StrategyResult, sign: str = "") -> Cell:
    """Return a time and its share of the mean iteration; with a sign, that by which it exceeds the mean."""
    share = seconds / result.iteration_s - bool(sign)
    return format_seconds(seconds), percent(share, f"{sign}.1")


def _memory(result: StrategyResult) -> Cell:
    """Return what a GPU holds, and the share of its memory."""
    memory = result.memory
    if memory is None:
        return "unknown", ""
    size = format_bytes(memory.total_bytes) + (" or more" if memory.unknown else "")
    if memory.gpu_bytes is None:
        return size, ""
    return size, percent(memory.total_bytes / memory.gpu_bytes, ".0")


def _lines(scenario: Scenario) -> Iterator[tuple[str, Callable[[StrategyResult], str]]]:
    """Yield every further line and how its cells are written; one whose cells are all empty is left out."""
    steps, tokens = scenario.run.steps, scenario.workload.tokens_per_sample
    further: dict[str, dict[str, Callable[[StrategyResult], str]]] = {
        "wait_s": {"  held up most by": _latest},
        "dense_iteration_s": {"mean step, dense ones counted": _mean_step},
    }
    if tokens:
        further["samples_per_s"] = {
            "  tokens a second": lambda side: short_text(tokens * side.samples_per_s),
            "  tokens a day": lambda side: short_text(tokens * side.samples_per_s * DAY_S),
        }
    written: dict[str, Callable[[StrategyResult], str]] = {
        "wait_s": lambda side: format_seconds(side.wait_s) if side.wait_s else "",
        "trained_fraction": _trained,
    }
    for field in sorted((field for field in METRICS if field.line), key=lambda field: field.line):
        yield (
            f"time of {steps:,} steps" if steps and field.name == "total_s" else field.text,
            written.get(field.name, field.cell),
        )
        yield from further.get(field.name, {}).items()


def _trained(result: StrategyResult) -> str:
    known = result.availability
    return "" if known is None else f"{percent(known.fraction)} ({percent(known.low)} to {percent(known.high)})"


def _latest(result: StrategyResult) -> str:
    """Return the rank for which others wait longest, and for how long in a mean iteration."""
    if result.waits is None or not result.waits.late:
        return ""
    latest = result.waits.late[0]
    return f"rank {latest.rank}: {format_seconds(latest.held_s)}"


def _mean_step(result: StrategyResult) -> str:
    return format_seconds(result.step_s) if result.dense_iteration_s is not None and result.dense_fraction else ""


def verdict(run_result: RunResult) -> Iterator[str]:
    """Yield intervals, speedups, and what they are most sensitive to, a sentence each."""
    called = names([run_result])
    for key, name in zip(("iteration_s", "baseline_iteration_s"), called, strict=False):
        if between := _between(run_result, key, format_seconds):
            yield f"step time of {name}{between}"
    over = f"{called[0]} over {_compared_with(run_result, called)}"
    for key, of in (("speedup", ""), ("end_to_end_speedup", " end to end")):
        speedup: float | None = getattr(run_result, key)
        if run_result.baseline is not None and speedup is not None:
            yield f"speedup {speedup_text(speedup)}{_between(run_result, key, speedup_text)}{of}, {over}"
    yield from filter(None, [reference_sentence(run_result)])
    if run_result.sensitive_to:
        yield f"most sensitive to: {sensitivity_sentence(run_result)}"


def _compared_with(run_result: RunResult, called: list[str]) -> str:
    """Return what a speedup is over: "tuned DDP (bf16, hierarchical)", or the name of the scenario's baseline."""
    return run_result.references.tuned if run_result.references else called[-1]


def reference_sentence(run_result: RunResult) -> str:
    """Return the speedup over flat DDP and the scenario's own baseline, with their steps; "" without references."""
    known = run_result.references
    if known is None:
        return ""
    if known.flat_s is None:
        flat = f"{known.flat} does not fit the GPU, and is compared with nothing"
    else:
        flat = f"{speedup_text(run_result.speedup_over_flat)} over {known.flat} ({format_seconds(known.flat_s)} a step)"
    if known.named_s is None:
        return flat
    over_named = speedup_text(run_result.speedup_over_named)
    return f"{flat}; {over_named} over {known.named} ({format_seconds(known.named_s)} a step)"


def _between(run_result: RunResult, name: str, written: Callable[[float], str]) -> str:
    """Return an interval in brackets, if there is one."""
    if name not in run_result.intervals:
        return ""
    low, high = run_result.intervals[name]
    return f" (90 % interval {written(low)} to {written(high)})"


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


def sensitivity_sentence(result: RunResult) -> str:
    """Return what a result is at the ends that change it most: "encode and decode (7.36x if 3.8 times slower)"."""
    middle = usual(result)
    texts = []
    for influence in result.sensitive_to[:MOST_NAMED]:
        ends = zip(influence.interval, influence.values, strict=True)
        factor, value = max(ends, key=lambda end: abs(end[1] / middle - 1))
        texts.append(f"{noun(influence.key)} ({outcome_text(result, value)} if {factor_text(influence.key, factor)})")
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


def outcome_text(result: RunResult, value: float) -> str:
    """Return another value of what influences change, as people write it."""
    return format_seconds(value) if result.speedup is None else speedup_text(value)


FAULT_WIDTH, NAME_WIDTH = 29, 16
MOST_VALUES = 4
"""Values of a list that are written out."""
SMALLEST = 1e-6
"""Of a step: a difference below this is rounding."""
TOGETHER, INTERACTION = "all together", "of it by interaction"
WHAT = "lost to each fault in a step: with it less without it, the other faults as they are; % of the mean step"


def lost_time_lines(result: RunResult) -> Iterator[str | Table]:
    """Yield the table of a result that says what its faults cost, and what the table does not hold."""
    yield from hanging("", WHAT)
    yield lost_time_table(result)
    yield from (line for sentence in _sentences(result) for line in hanging("", sentence))


def losing(result: RunResult) -> dict[str, tuple[StrategyResult, LostTime]]:
    """Return the strategies of a result that say what they lose, by name."""
    sides = (result.result, result.baseline)
    known = [(side, side.lost_time) for side in sides if side is not None and side.lost_time is not None]
    return dict(zip(names([result]), known, strict=False))


def lost_time_table(result: RunResult) -> Table:
    """Return a row for each fault, with mean, share of the mean step, median and 95th percentile for each strategy."""
    sides = losing(result)
    columns = [Column("", width=FAULT_WIDTH)]
    for name in sides:
        head = clipped(name, NAME_WIDTH)
        columns += [
            Column(f"{head}\nmean", "right", width=9, gap=0),
            Column("\n", "right", width=8, gap=0),
            Column("\np50", "right", width=9, gap=0),
            Column("\np95", "right", width=9, gap=0),
        ]
    rows: list[list[str]] = []
    for label, times in rows_of(result):
        first, *more = textwrap.wrap(label, FAULT_WIDTH, subsequent_indent="  ")
        cells = [cell for lost, (side, _) in zip(times, sides.values(), strict=True) for cell in _cells(lost, side)]
        rows.append([first, *cells])
        rows += [[line, *("" for _ in cells)] for line in more]
    return Table(columns, rows)


def rows_of(result: RunResult) -> Iterator[tuple[str, list[StepTimes]]]:
    """Yield each fault in words and what it costs each strategy; then all together, and the interaction."""
    lost = [side for _, side in losing(result).values()]
    for place, cost in enumerate(lost[0].faults if lost else ()):
        yield fault_text(fault_at(result.scenario.cluster, cost.key)), [side.faults[place].lost for side in lost]
    if lost and len(lost[0].faults) > 1:
        yield TOGETHER, [side.together for side in lost]
        yield INTERACTION, [side.interaction for side in lost]


def fault_at(cluster: Cluster, key: str) -> Fault:
    """Return the fault of a dotted key, such as "cluster.faults.0"."""
    _, name, place = key.split(".")
    fault: Fault = getattr(cluster, name)[int(place)]
    return fault


def fault_text(fault: Fault) -> str:
    """Return a fault in words: "slow rank: node 3, compute slowdown 1.3"."""
    title = fault.title or tag_of(fault).replace("_", " ")
    settings = ", ".join(_settings(fault))
    return printable(f"{title}: {settings}" if settings else title)


def _settings(fault: Fault) -> Iterator[str]:
    """Yield what a fault says beyond its defaults."""
    for field in fields(fault):
        value = getattr(fault, field.name)
        if value != field.default:
            yield f"{field.encode_name.replace('_', ' ')} {_value(value)}"


def _value(value: object) -> str:
    if isinstance(value, Quantity):
        return value.text()
    if isinstance(value, tuple | list):
        return f"({len(value)} values)" if len(value) > MOST_VALUES else " ".join(map(_value, value))
    return f"{value:g}" if isinstance(value, float) else value_text(value)


def signed(seconds: float, step_s: float) -> str:
    """Return a difference of times: "+38.2 ms"; "0" where it is rounding."""
    if abs(seconds) < SMALLEST * step_s:
        return "0"
    return f"{'+' if seconds > 0 else '-'}{format_seconds(float(f'{abs(seconds):.3g}'))}"


def _cells(lost: StepTimes, side: StrategyResult) -> tuple[str, str, str, str]:
    mean_s = side.iteration_s
    share = percent(lost.mean_s / mean_s) if abs(lost.mean_s) >= SMALLEST * mean_s else ""
    return signed(lost.mean_s, mean_s), share, signed(lost.p50_s, mean_s), signed(lost.p95_s, mean_s)


def _sentences(result: RunResult) -> Iterator[str]:
    """Yield what a reader of the table must know."""
    _, lost = next(iter(losing(result).values()))
    if len(lost.faults) > 1:
        yield (
            "interaction: lost to all together less the sum of the rows above; above 0 faults hide each other, and to "
            "remove one alone gains less"
        )
    availability = result.result.availability
    if availability is not None and any(isinstance(fault, NodeFailure) for fault in result.scenario.cluster.faults):
        yield f"failing nodes cost no step: they take {percent(1 - availability.fraction)} of the day"

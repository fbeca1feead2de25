"""Draw the table of one run: the question, the scenario, and a column each for the strategy and its baseline."""

import textwrap
from collections.abc import Callable, Iterator

from simnet.core.units import format_bytes, format_seconds
from simnet.engine.result import RunResult, StrategyResult
from simnet.engine.scenario import Scenario
from simnet.report.figure import STEP_PARTS
from simnet.report.labels import names, sides
from simnet.report.rows import BY_NAME, METRICS
from simnet.report.table import Column, Page, Table
from simnet.report.text import (
    DAY_S,
    WIDTH,
    calibration_title,
    count_text,
    hanging,
    nodes_text,
    part_title,
    percent,
    printable,
    short_text,
    speedup_text,
    workload_title,
)
from simnet.workload import priced_work

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
        from simnet.report.lost_time import lost_time_lines  # which few ask for

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
    if priced_work.work_to_price(workload, scenario.cluster) is not None:
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
        from simnet.report.influences import sentence  # with the figures, which most runs need not load

        yield f"most sensitive to: {sentence(run_result)}"


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

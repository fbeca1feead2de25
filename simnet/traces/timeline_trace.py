"""Write the timeline of a result as a trace of torch's profiler (Kineto), which Perfetto, HTA and `simnet step` read.

A file is one rank, as Kineto's are: rank 0, which stands for all where ranks are alike, or the slowest one. The
baseline has a file of its own. Iterations repeat the simulated one. What the host does is not simulated: launches stand
where their kernels begin.

Source: libkineto's output_json.cpp and CuptiActivity.cpp (events, categories and arguments).
"""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from simnet.core.errors import SimnetError
from simnet.core.files import is_special, write_file
from simnet.engine.plan import StrategyPlan
from simnet.engine.prepared_scenario import PreparedScenario
from simnet.engine.result import RunResult, StrategyResult
from simnet.traces.trace_events import TraceOfRank

ITERATIONS = 3
"""HTA leaves the last one out."""
MAX_ITERATIONS = 1000
MAX_EVENTS = 2_000_000
"""Of kernels and collectives: about 1 GB."""
Event = dict[str, Any]


def write_trace(run_result: RunResult, path: Path, iterations: int = ITERATIONS) -> None:
    """Write the trace of the strategy, and that of its baseline beside it (`baseline_path`).

    A device or pipe takes the strategy's alone; a file that ends with .gz is packed.

    Args:
        run_result: of a simulation, with its spans.
        path: of the strategy's file.
        iterations: how often the simulated iteration is written, one after the other.

    Raises:
        SimnetError: the result has no spans, the numbers are out of range, or a file cannot be written.
    """
    prepared = PreparedScenario(run_result.scenario)
    files = {path: _bytes(run_result, run_result.result, prepared, path, iterations)}
    if run_result.baseline is not None and not is_special(path):
        beside = baseline_path(path)
        files[beside] = _bytes(run_result, run_result.baseline, prepared, beside, iterations)
    for each, data in files.items():
        write_file(each, data)


def baseline_path(path: Path) -> Path:
    """Return the path of the baseline's trace.

    Example:
        >>> print(baseline_path(Path("out/step.json.gz")))
        out/step.baseline.json.gz
    """
    endings = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    return path.with_name(f"{path.name.removesuffix(endings)}.baseline{endings}")


def _bytes(
    run_result: RunResult, result: StrategyResult, prepared: PreparedScenario, path: Path, iterations: int
) -> bytes:
    _check(run_result, result, iterations)
    is_baseline = result is run_result.baseline
    strategy = run_result.scenario.baseline if is_baseline else run_result.scenario.strategy
    assert strategy is not None
    plan = prepared.plan(strategy)
    traced = TraceOfRank(run_result, result, plan, prepared)
    title = f"{result.strategy}{' (baseline)' if is_baseline else ''}, simulated"
    trace = {
        **_header(run_result, traced, title, plan),
        "traceEvents": list(_events(traced, title, iterations)),
        "traceName": path.name,
    }
    data = msgspec.json.encode(trace)
    return gzip.compress(data, mtime=0) if path.suffix == ".gz" else data


def _check(run_result: RunResult, result: StrategyResult, iterations: int) -> None:
    name = run_result.scenario.name
    if not 1 <= iterations <= MAX_ITERATIONS:
        raise SimnetError(f"trace: {iterations} iterations: must be 1 to {MAX_ITERATIONS}; give a number of these")
    if not result.spans or any(span.operation is None for span in result.spans):
        raise SimnetError(f"trace: {name}: a result without a timeline, as files hold it: simulate the scenario again")
    if len(result.spans) * iterations > MAX_EVENTS:
        most = MAX_EVENTS // len(result.spans)
        raise SimnetError(
            f"trace: {name}: {iterations} iterations of {len(result.spans)} operations: at most {MAX_EVENTS} "
            f"operations in a file; write at most {most} iterations"
        )


def _header(run_result: RunResult, traced: TraceOfRank, title: str, plan: StrategyPlan) -> Event:
    gpu = run_result.scenario.cluster.gpu or ""
    return {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "deviceProperties": [{"id": number, "name": gpu} for number in range(run_result.ranks_per_node)],
        "distributedInfo": {
            "backend": "nccl",
            "rank": traced.rank,
            "world_size": run_result.world_size,
            "pg_count": len(traced.groups.config()),
            "pg_config": traced.groups.config(),
        },
        "simnet": {
            "version": run_result.version,
            "scenario": run_result.scenario.name,
            "strategy": title,
            "rank": traced.rank,
            "stands_for": "every rank" if traced.is_folded else "the slowest rank",
            "notes": list(_notes(plan)),
        },
    }


def _notes(plan: StrategyPlan) -> Iterator[str]:
    yield "the host is not simulated: launches stand where their kernels begin"
    steps, inner = plan.program.num_steps, plan.program.inner
    if inner is not None:
        yield f"{inner.number} further steps of each period, all alike and without communication, are left out"
    if steps > 1:
        yield f"each ProfilerStep holds {steps} optimizer steps, after which they repeat"


def _events(traced: TraceOfRank, title: str, iterations: int) -> Iterator[Event]:
    yield from traced.names(title)
    for number in range(iterations):
        yield from traced.iteration(number)

"""Advice on a cluster as it is: settings are tuned where all nodes are alike, then run with the faults that it has."""

from collections.abc import Callable

from msgspec.structs import replace

from simnet.compare.advice import Advice, FaultyStep, RankedSystem
from simnet.compare.training_record import TrainingRecord
from simnet.compare.tune import PLAIN
from simnet.compare.verdict import PAYS, Speedup
from simnet.result import StrategyResult
from simnet.scenario import Scenario
from simnet.simulation import simulate
from simnet.workers import run_where_it_pays

DENSE_FORMS = 3
"""Forms of DDP beside which systems are ranked: in two precisions, and plain."""
_PLAIN = "plain DDP"
ITERATIONS = 40
"""Iterations of each system where the scenario does not say: its median is sure to a few per cent, its tail less."""


def without_faults(scenario: Scenario) -> Scenario:
    """Return a scenario with nodes that are all alike."""
    cluster = replace(scenario.cluster, slow_nodes=(), faults=())
    return replace(scenario, cluster=cluster, run=replace(scenario.run, iterations=None))


def num_runs(scenario: Scenario, systems: int) -> int:
    """Return how often an advice on so many systems tells of its progress, at most."""
    return systems + (systems + DENSE_FORMS) if scenario.cluster.all_faults else systems


def with_faults(advice: Advice, scenario: Scenario, jobs: int, progress: Callable[[int], object]) -> Advice:
    """Return an advice whose systems are ranked by the median of their iterations on the cluster as it is.

    Speedups, of steps and to targets, change as the medians do.

    Args:
        advice: on the cluster with nodes that are all alike.
        scenario: with the faults.
        jobs: number of processes at most.
        progress: called with 1 whenever a system is done.

    Raises:
        SimnetError: as `simulate`.
    """
    iterations = scenario.run.iterations or min(ITERATIONS, scenario.num_iterations)
    run = replace(scenario.run, iterations=iterations, draws=0, steps=None)
    asked = {row.name: replace(scenario, strategy=row.strategy, baseline=None, run=run) for row in advice.systems}
    asked[_PLAIN] = replace(scenario, strategy=PLAIN, baseline=None, run=run)
    results = {}
    for name, result in run_where_it_pays(tuple(asked.items()), _simulated, jobs, work_there=_simulated):
        results[name] = result
        progress(1)
    baseline, plain_s = results[advice.baseline], results[_PLAIN].p50_s
    rows = [_as_it_is(row, results[row.name], baseline, plain_s) for row in advice.systems]
    return replace(
        advice,
        scenario=scenario,
        plain_iteration_s=plain_s,
        systems=tuple(sorted(rows, key=lambda row: row.iteration_s)),
        iterations=iterations,
    )


def _simulated(asked: tuple[str, Scenario]) -> tuple[str, StrategyResult]:
    name, scenario = asked
    result = simulate(scenario).result
    return name, replace(result, spans=())


def _as_it_is(row: RankedSystem, found: StrategyResult, baseline: StrategyResult, plain_s: float) -> RankedSystem:
    step = FaultyStep(
        p50_s=found.p50_s,
        p95_s=found.p95_s,
        speedup_p50=baseline.p50_s / found.p50_s,
        speedup_p95=baseline.p95_s / found.p95_s,
    )
    change = step.speedup_p50 / row.speedup.value
    return replace(
        row,
        iteration_s=step.p50_s,
        speedup=_scaled(row.speedup, change),
        records=tuple(_scaled_record(record, change) for record in row.records),
        speedup_vs_plain=plain_s / step.p50_s,
        headroom_s=baseline.p50_s / PAYS - step.p50_s,
        longest_pause_s=found.longest_pause_s,
        faulty=step,
    )


def _scaled_record(record: TrainingRecord, change: float) -> TrainingRecord:
    return replace(record, speedup=None if record.speedup is None else _scaled(record.speedup, change))


def _scaled(speedup: Speedup, change: float) -> Speedup:
    interval = speedup.interval and (speedup.interval[0] * change, speedup.interval[1] * change)
    slow = speedup.if_kernels_slow
    return replace(
        speedup,
        value=speedup.value * change,
        interval=interval,
        if_kernels_slow=None if slow is None else slow * change,
    )

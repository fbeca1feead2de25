"""Advice on a cluster as it is: settings are tuned where all nodes are alike, then run with the faults that it has."""

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from simnet.analysis.advice import Advice, FaultyStep, RankedSystem
from simnet.analysis.tune import PLAIN
from simnet.analysis.verdict import PAYS, Speedup
from simnet.analysis.whatif import free_communication
from simnet.analysis.workers import run_where_it_pays
from simnet.engine.prepared_scenario import PreparedScenario, StageTimes
from simnet.engine.scenario import Scenario, with_settings
from simnet.engine.simulation import simulate

DENSE_FORMS = 4
"""Forms of DDP beside which systems are ranked: in two precisions, plain, and without communication."""
_PLAIN, _WITHOUT_COMM = "plain DDP", "without communication"
ITERATIONS = 40
"""Iterations of each system where the scenario does not say: its median is sure to a few per cent, its tail less."""


def num_runs(scenario: Scenario, systems: int) -> int:
    """Return how often an advice on so many systems tells of its progress, at most."""
    return systems + (systems + DENSE_FORMS) if scenario.cluster.all_faults else systems


def as_run(scenario: Scenario) -> Scenario:
    """Return the scenario whose iterations are simulated with each system."""
    iterations = scenario.run.iterations or min(ITERATIONS, scenario.num_iterations)
    return replace(scenario, baseline=None, run=replace(scenario.run, iterations=iterations, draws=0, steps=None))


def with_faults(advice: Advice, scenario: Scenario, jobs: int, progress: Callable[[int], object]) -> Advice:
    """Return an advice, made where nodes are alike, ranked by the median of iterations of a scenario with faults.

    Speedups, of steps and to targets, change as the medians do. Steps that are not all alike count as they do without
    faults: those of a period with their mean, those of a dense stage with their share. The bandwidths of rows, which
    hold without faults, go. `progress` is called with 1 whenever a system is done.
    """
    as_it_is = as_run(scenario)
    asked = {row.name: with_settings(replace(as_it_is, strategy=row.strategy), row.batches) for row in advice.systems}
    if advice.plain_iteration_s is not None:
        asked[_PLAIN] = replace(as_it_is, strategy=PLAIN)
    asked[_WITHOUT_COMM] = free_communication(asked[advice.baseline])
    results = {}
    for name, times in run_where_it_pays(tuple(asked.items()), _simulated, jobs, work_there=_simulated):
        results[name] = times
        progress(1)
    baseline, plain_s = results[advice.baseline], results[_PLAIN].p50_s if _PLAIN in results else None
    rows = [_as_it_is(row, results[row.name], baseline, plain_s) for row in advice.systems]
    return replace(
        advice,
        scenario=scenario,
        plain_iteration_s=plain_s,
        speedup_without_comm=baseline.p50_s / results[_WITHOUT_COMM].p50_s,
        systems=tuple(sorted(rows, key=RankedSystem.place)),
        iterations=as_it_is.run.iterations or 0,
    )


def median_s(scenario: Scenario) -> float:
    """Return the median of the steps of a scenario's strategy, as `with_faults` ranks them [s]."""
    return _simulated(("", scenario))[1].p50_s


class _PeriodTimes(NamedTuple):
    """Percentiles of the mean step of a period [s]; `longest_pause_s` as in the result."""

    p50_s: float
    p95_s: float
    longest_pause_s: float | None


def _simulated(asked: tuple[str, Scenario]) -> tuple[str, _PeriodTimes]:
    name, scenario = asked
    strategy, times = scenario.strategy, _of_periods(scenario)
    stage = strategy.dense_stage(None)
    if stage is None or not strategy.dense_fraction:
        return name, times
    dense = _of_periods(replace(scenario, strategy=stage.strategy))
    p50_s, p95_s = (
        StageTimes(own_s, dense_s).mean_s(strategy.dense_fraction)
        for own_s, dense_s in ((times.p50_s, dense.p50_s), (times.p95_s, dense.p95_s))
    )
    return name, times._replace(p50_s=p50_s, p95_s=p95_s)


def _of_periods(scenario: Scenario) -> _PeriodTimes:
    result = simulate(scenario).result
    period = PreparedScenario(scenario).plan(scenario.strategy).program.period
    times_s = result.iterations_s
    # Steps of a period differ by design: only their mean says how fast it goes.
    means_s = tuple(sum(times_s[at : at + period]) / period for at in range(0, len(times_s), period))
    whole = replace(result, iterations_s=means_s)
    return _PeriodTimes(whole.p50_s, whole.p95_s, result.longest_pause_s)


def _as_it_is(row: RankedSystem, times: _PeriodTimes, baseline: _PeriodTimes, plain_s: float | None) -> RankedSystem:
    step = FaultyStep(
        p50_s=times.p50_s,
        p95_s=times.p95_s,
        speedup_p50=baseline.p50_s / times.p50_s,
        speedup_p95=baseline.p95_s / times.p95_s,
    )
    # Intervals and targets were found where nodes are alike: faults scale them as they scale the medians.
    change = step.speedup_p50 / row.speedup.value
    return replace(
        row,
        iteration_s=step.p50_s,
        speedup=_scaled(row.speedup, change),
        records=tuple(
            replace(record, speedup=record.speedup and _scaled(record.speedup, change)) for record in row.records
        ),
        speedup_vs_plain=plain_s and plain_s / step.p50_s,
        headroom_s=baseline.p50_s / PAYS - step.p50_s,
        longest_pause_s=times.longest_pause_s,
        faster_in=(),
        pays_in=(),
        curve=(),
        faulty=step,
    )


def _scaled(speedup: Speedup, change: float) -> Speedup:
    interval = speedup.interval and (speedup.interval[0] * change, speedup.interval[1] * change)
    slow = speedup.if_kernels_slow
    return replace(
        speedup,
        value=speedup.value * change,
        interval=interval,
        if_kernels_slow=None if slow is None else slow * change,
    )

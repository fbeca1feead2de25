"""Time lost by cause: a cluster is simulated without each of its faults, one after the other, and without any.

All runs have the same seed, iterations and executor, and a fault draws the same whatever else is there (`variation`):
what differs is what the fault does. Faults of one kind and place that differ in their amount alone take their draws in
order: without the first of two jitters of all ranks, the second draws what the first did.
"""

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from simnet.cluster.hardware import Cluster
from simnet.core.errors import SimnetError
from simnet.engine.result import LostTime, LostToFault, RunResult, StepTimes, StrategyResult
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate

_LISTS = ("slow_nodes", "faults")
Progress = Callable[[int], object]


def check(scenario: Scenario) -> None:
    """Refuse a cluster without faults."""
    if not scenario.cluster.all_faults:
        raise SimnetError(f"{scenario.name}: cluster.faults: []: no fault that time is lost to; add one")


def num_runs(scenario: Scenario, *, num_sides: int = 2) -> int:
    """Return how often `with_lost_time` tells of its progress, of a strategy alone or with what it is compared with."""
    faults = len(scenario.cluster.all_faults)
    return (faults + (faults > 1)) * num_sides


def with_lost_time(result: RunResult, progress: Progress = lambda _: None) -> RunResult:
    """Return a result of a cluster with faults that says of each strategy what it loses to each of them.

    `progress` is called with 1 after each simulation.
    """
    scenario = result.scenario
    check(scenario)
    of_strategy = replace(result.result, lost_time=_lost(scenario, result.result, progress))
    baseline, compared = result.baseline, result.compared
    if baseline is not None and compared is not None:
        baseline = replace(baseline, lost_time=_lost(compared, baseline, progress))
    return replace(result, result=of_strategy, baseline=baseline)


def _lost(scenario: Scenario, whole: StrategyResult, progress: Progress) -> LostTime:
    """Return what the strategy of a scenario with faults loses, of which the whole result is known."""
    # Every run takes the executor that faults need: two executors may differ by more than a small fault costs.
    fidelity = "exact" if whole.fidelity == "exact" else "grouped"
    run = replace(scenario.run, fidelity=fidelity, iterations=scenario.num_iterations, draws=0)
    asked = replace(scenario, baseline=None, run=run)

    def lost_to(cluster: Cluster) -> StepTimes:
        without = simulate(replace(asked, cluster=cluster)).result
        progress(1)
        return whole.times.minus(without.times)

    faults = tuple(LostToFault(key=key, lost=lost_to(rest)) for key, rest in _without_each(scenario.cluster))
    without_any = replace(scenario.cluster, slow_nodes=(), faults=())
    # Without the only fault the cluster is the one without any.
    together = faults[0].lost if len(faults) == 1 else lost_to(without_any)
    interaction = together
    for fault in faults:
        interaction = interaction.minus(fault.lost)
    return LostTime(faults=faults, together=together, interaction=interaction)


def _without_each(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    """Yield the key of each fault, and the cluster without it."""
    for name in _LISTS:
        faults = getattr(cluster, name)
        for place in range(len(faults)):
            yield f"cluster.{name}.{place}", replace(cluster, **{name: faults[:place] + faults[place + 1 :]})

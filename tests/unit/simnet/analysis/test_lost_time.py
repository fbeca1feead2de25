"""Time lost by cause: what each fault costs by itself, and what is left to their interaction."""

import pytest
from msgspec.structs import replace

from simnet.analysis.lost_time import num_runs, with_lost_time
from simnet.cluster.faults import BackgroundTraffic, ComputeJitter, NodeFailure, Pause, SlowRank
from simnet.cluster.hardware import Fault, SlowNode
from simnet.core.errors import SimnetError
from simnet.core.units import Duration
from simnet.engine.result import LostTime, RunResult, StrategyResult
from simnet.engine.scenario import RunSettings, Scenario
from simnet.engine.simulation import simulate
from simnet.strategies import BinSGDM, DenseAllReduce
from tests.helpers.step_samples import WORKLOAD
from tests.helpers.topologies import cluster

STEPS = 6


def asked(*faults: Fault, **more: object) -> Scenario:
    """Return 1-bit on two nodes of two ranks, whose step is compute before all else."""
    slow_nodes = more.pop("slow_nodes", ())
    parts = {"workload": WORKLOAD, "strategy": BinSGDM(), "run": RunSettings(iterations=STEPS)} | more
    return Scenario(cluster=cluster(2, 2, faults=faults, slow_nodes=slow_nodes), **parts)  # type: ignore[arg-type]


def lost(*faults: Fault, **more: object) -> LostTime:
    found = with_lost_time(simulate(asked(*faults, **more))).result.lost_time
    assert found is not None
    return found


def means(found: LostTime) -> list[float]:
    return [one.lost.mean_s for one in found.faults]


def slow(factor: float, node: int = 0) -> SlowRank:
    return SlowRank(node=node, compute_slowdown=factor)


def test_one_slow_rank_costs_what_its_compute_takes_longer() -> None:
    found = lost(slow(1.5))
    compute_s = WORKLOAD.forward_s + WORKLOAD.backward_s
    # The optimizer and kernels are slower, too, and communication hides a part of backward.
    assert 0.4 * compute_s < found.faults[0].lost.mean_s < 0.7 * compute_s
    assert found.together == found.faults[0].lost
    assert found.interaction.mean_s == 0


def test_of_two_slow_ranks_neither_costs_anything_alone_since_the_other_is_there() -> None:
    found = lost(slow(1.5, node=0), slow(1.5, node=1))
    assert means(found) == pytest.approx([0, 0], abs=0.002)
    assert found.interaction.mean_s == pytest.approx(found.together.mean_s, abs=0.004)
    assert found.together.mean_s > 0.04


def test_the_slower_of_two_costs_by_how_much_it_is_slower() -> None:
    first, second = means(lost(slow(1.2, node=0), slow(1.5, node=1)))
    alone = means(lost(slow(1.5, node=1)))[0] - means(lost(slow(1.2, node=0)))[0]
    assert first == pytest.approx(0, abs=0.002)
    assert second == pytest.approx(alone, rel=0.05)


def test_the_rows_and_the_interaction_add_up_to_all_together() -> None:
    found = lost(slow(1.2), ComputeJitter(cv=0.1), Pause(pause=Duration(0.05), probability=0.1))
    for name in ("mean_s", "p50_s", "p95_s"):
        parts = [getattr(one.lost, name) for one in found.faults]
        assert sum(parts) + getattr(found.interaction, name) == pytest.approx(getattr(found.together, name))


def test_without_a_fault_is_what_a_file_without_it_gives() -> None:
    """The others draw the same, since draws do not hang on the place in the list."""
    jitter, pause, traffic = ComputeJitter(cv=0.1), Pause(pause=Duration(0.05), every=5), BackgroundTraffic(share=0.9)
    whole = with_lost_time(simulate(asked(jitter, pause, traffic)))
    without = simulate(asked(pause, traffic)).result
    found = whole.result.lost_time
    assert found is not None
    assert found.faults[0].key == "cluster.faults.0"
    assert found.faults[0].lost.mean_s == pytest.approx(whole.result.iteration_s - without.iteration_s)
    assert found.faults[0].lost.p95_s == pytest.approx(whole.result.p95_s - without.p95_s)


def test_strategy_and_baseline_each_say_what_they_lose() -> None:
    scenario = asked(BackgroundTraffic(share=0.9), baseline=DenseAllReduce())
    found = with_lost_time(simulate(scenario))
    assert found.baseline is not None
    own, other = (_together(side) for side in (found.result, found.baseline))
    alone = with_lost_time(simulate(replace(scenario, strategy=DenseAllReduce(), baseline=None)))
    assert 0 < own < other == pytest.approx(_together(alone.result))


def _together(side: StrategyResult) -> float:
    assert side.lost_time is not None
    return side.lost_time.together.mean_s


def test_slow_nodes_are_faults_and_failing_nodes_cost_no_step() -> None:
    failing = NodeFailure(mean_time_between=Duration(86400), checkpoint=Duration(60), restart=Duration(600))
    found = lost(failing, slow_nodes=(SlowNode(node=1, compute_slowdown=1.5),))
    assert [one.key for one in found.faults] == ["cluster.slow_nodes.0", "cluster.faults.0"]
    assert means(found)[1] == 0
    assert means(found)[0] == pytest.approx(found.together.mean_s)


def test_progress_is_told_after_each_simulation() -> None:
    scenario, told = asked(slow(1.5), slow(1.2, node=1), baseline=DenseAllReduce()), []
    with_lost_time(simulate(scenario), told.append)
    assert sum(told) == num_runs(scenario) == 6


def test_the_exact_executor_stays_the_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def watched(scenario: Scenario) -> RunResult:
        seen.append(scenario.run.fidelity)
        return simulate(scenario)

    monkeypatch.setattr("simnet.analysis.lost_time.simulate", watched)
    run = RunSettings(iterations=2, fidelity="exact")
    exact = lost(slow(1.5), slow(1.2, node=1), run=run)
    assert seen == ["exact"] * 3
    assert exact.together.mean_s == pytest.approx(lost(slow(1.5), slow(1.2, node=1)).together.mean_s, rel=0.05)


def test_a_cluster_without_faults_is_refused() -> None:
    with pytest.raises(SimnetError, match=r"cluster.faults: \[\]: no fault that time is lost to; add one"):
        with_lost_time(simulate(asked()))

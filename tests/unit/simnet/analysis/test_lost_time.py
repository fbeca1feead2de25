"""Time lost by cause: what each fault costs by itself, and what is left to their interaction."""

import pytest

from simnet.analysis.lost_time import num_runs, with_lost_time
from simnet.cluster.faults import SlowRank
from simnet.cluster.hardware import Fault
from simnet.core.errors import SimnetError
from simnet.engine.result import LostTime
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


def test_progress_is_told_after_each_simulation() -> None:
    scenario, told = asked(slow(1.5), slow(1.2, node=1), baseline=DenseAllReduce()), []
    with_lost_time(simulate(scenario), told.append)
    assert sum(told) == num_runs(scenario) == 6


def test_a_cluster_without_faults_is_refused() -> None:
    with pytest.raises(SimnetError, match=r"cluster.faults: \[\]: no fault that time is lost to; add one"):
        with_lost_time(simulate(asked()))

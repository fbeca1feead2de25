"""Time lost by cause: what each fault costs by itself, and what is left to their interaction."""

from typing import Any

import pytest

from simnet.analysis.lost_time import num_runs, with_lost_time
from simnet.cluster.faults import SlowRank
from simnet.engine.result import LostTime
from simnet.engine.scenario import RunSettings, Scenario
from simnet.engine.simulation import simulate
from simnet.strategies import BinSGDM, DenseAllReduce
from tests.helpers.refusals import refused
from tests.helpers.step_samples import WORKLOAD
from tests.helpers.topologies import cluster


def asked(*factors: float, **more: Any) -> Scenario:
    """Return 1-bit on two nodes of two ranks, whose step is compute before all else; ranks of some are slow."""
    faults = tuple(SlowRank(node=node, compute_slowdown=factor) for node, factor in enumerate(factors))
    run = RunSettings(iterations=6)
    return Scenario(cluster=cluster(2, 2, faults=faults), workload=WORKLOAD, strategy=BinSGDM(), run=run, **more)


def lost(*factors: float) -> LostTime:
    lost_time = with_lost_time(simulate(asked(*factors))).result.lost_time
    assert lost_time is not None
    return lost_time


def test_one_slow_rank_costs_what_its_compute_takes_longer() -> None:
    lost_time = lost(1.5)
    compute_s = WORKLOAD.forward_s + WORKLOAD.backward_s
    # The optimizer and kernels are slower, too, and communication hides a part of backward.
    assert 0.4 * compute_s < lost_time.faults[0].lost.mean_s < 0.7 * compute_s
    assert lost_time.together == lost_time.faults[0].lost
    assert lost_time.interaction.mean_s == 0


def test_of_two_slow_ranks_neither_costs_anything_alone_since_the_other_is_there() -> None:
    lost_time = lost(1.5, 1.5)
    assert [fault.lost.mean_s for fault in lost_time.faults] == pytest.approx([0, 0], abs=0.002)
    assert lost_time.interaction.mean_s == pytest.approx(lost_time.together.mean_s, abs=0.004)
    assert lost_time.together.mean_s > 0.04


def test_progress_is_told_after_each_simulation_and_without_faults_there_is_nothing_to_tell() -> None:
    scenario, progress = asked(1.5, 1.2, baseline=DenseAllReduce()), []
    with_lost_time(simulate(scenario), progress.append)
    assert sum(progress) == num_runs(scenario) == 6
    with refused("cluster.faults: []: no fault that time is lost to; add one"):
        with_lost_time(simulate(asked()))

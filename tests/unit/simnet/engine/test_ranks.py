"""How often a step is run where ranks differ, by which recurrence, and which rank counts as the slowest."""

import numpy as np
import pytest

from simnet.cluster import faults
from simnet.cluster.topology import Topology
from simnet.collectives import ring
from simnet.engine import ranks
from simnet.engine.timeline import Streams
from simnet.strategies.program import Communicate, Compute
from tests.helpers.programs import plan_of, run_ranks
from tests.helpers.topologies import topology


def jittery(num_ranks: int) -> Topology:
    return topology(num_ranks, 1, faults=(faults.ComputeJitter(cv=0.1),))


def step_of(network: Topology, num_streams: int = 2) -> Streams:
    message = Communicate(schedule=ring.all_reduce(network.group("world")), message_bytes=1e6)
    return ((Compute(part="backward", seconds=0.01),), *[(message, message)] * (num_streams - 1))


def test_what_each_recurrence_is_for() -> None:
    network = jittery(2)
    single, two = plan_of(step_of(network)), plan_of(step_of(network, 3))
    assert single.two_streams is not None
    assert two.two_streams is None
    assert not two.can_sweep, "two streams use the same links"


def test_a_run_of_many_steps_runs_one_of_them_again_for_its_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    network, passes = jittery(4), []
    counted = ranks._Iteration.run
    monkeypatch.setattr(ranks._Iteration, "run", lambda iteration: passes.append(1) or counted(iteration))
    timeline = run_ranks(step_of(network), network, steps=20)
    assert len(passes) == 21
    assert len(timeline.spans) == 3


def test_ranks_that_end_together_but_for_rounding_are_told_by_the_first() -> None:
    assert ranks.slowest_rank(np.array([0.5, 1.0 - 1e-15, 1.0])) == 1
    assert ranks.slowest_rank(np.array([0.5, 1.0 - 1e-9, 1.0])) == 2

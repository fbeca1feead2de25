"""Ranks take the same times by a recurrence over collectives as one by one in the order of time."""

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.cluster import faults
from simnet.cluster.hardware import SlowNode
from simnet.cluster.schedule import Group
from simnet.cluster.topology import Topology
from simnet.collectives import direct, ring
from simnet.core.units import Duration
from simnet.engine import ranks
from simnet.engine.collective_times import Changes
from simnet.engine.random_factors import Variation, Varied
from simnet.engine.ranks import RanksIteration, RunStep
from simnet.engine.shared_nics import SharedNics
from simnet.engine.timeline import Streams
from simnet.strategies.program import Communicate, Compute, OperationId
from tests.helpers.programs import plan_of, run_ranks, run_step
from tests.helpers.topologies import CALIBRATIONS, topology

if TYPE_CHECKING:
    from simnet.core.bounded_types import FloatArray

NOTHING = {"schedule": ring.all_reduce(Group(0, 1, 1, 1, 1)), "message_bytes": 0.0}
NEAR = 1e-9
"""Relative to the whole run: sums of the same times in another order."""
FAULTS = st.one_of(
    st.builds(SlowNode, node=st.just(0), compute_slowdown=st.sampled_from([1.0, 1.7]), nic_slowdown=st.just(2.0)),
    st.builds(faults.SlowRank, node=st.just(0), compute_slowdown=st.sampled_from([1.3, 3.0])),
    st.builds(faults.ComputeJitter, cv=st.sampled_from([0.05, 0.5])),
    st.builds(faults.CollectiveJitter, cv=st.just(0.2)),
    st.builds(faults.Pause, pause=st.just(Duration(0.05)), probability=st.just(0.3)),
    st.builds(
        faults.SlowLink,
        place=st.just(0),
        rate=st.just(0.3),
        from_s=st.just(Duration(0.03)),
        to_s=st.just(Duration(0.05)),
        every_s=st.just(Duration(0.1)),
    ),
)


@st.composite
def networks(draw: st.DrawFn) -> Topology:
    drawn = draw(st.lists(FAULTS, min_size=1, max_size=3, unique_by=type))
    return topology(draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.sampled_from(CALIBRATIONS)), faults=drawn)


@st.composite
def two_streams(draw: st.DrawFn, network: Topology) -> Streams:
    """Return a stream of compute and one of collectives with kernels, each of which waits for some of the other's."""
    streams: tuple[list[Compute | Communicate], list[Compute | Communicate]] = [], []
    groups = [network.group(kind) for kind in ("world", "intra_node", "inter_node")]
    makes = [ring.all_reduce, ring.all_gather, ring.hierarchical_all_reduce, direct.all_to_all]
    for _ in range(draw(st.integers(1, 12))):
        stream = draw(st.integers(0, 1))
        other = streams[1 - stream]
        after = (
            (OperationId(1 - stream, draw(st.integers(0, len(other) - 1))),) if other and draw(st.booleans()) else ()
        )
        if stream and draw(st.booleans()):
            make = draw(st.sampled_from(makes))
            group = groups[0] if make is ring.hierarchical_all_reduce else draw(st.sampled_from(groups))
            size = draw(st.sampled_from([0.0, 1e5, 2e7]))
            streams[1].append(Communicate(schedule=make(group), message_bytes=size, after=after))
        else:
            part = draw(st.sampled_from(["forward", "backward", "encode"]))
            seconds = draw(st.sampled_from([0.0, 1e-3, 0.02]))
            streams[stream].append(Compute(part=part, seconds=seconds, after=after))
    return tuple(streams[0]), tuple(streams[1])


def same(iteration: RanksIteration, other: RanksIteration) -> None:
    limit = NEAR * max(float(other.ends_s.max()), 1e-3)
    for name in ("ends_s", "comm_s", "waits_s", "held_s"):
        assert getattr(iteration, name) == pytest.approx(getattr(other, name), abs=limit), name
    for part, seconds in other.busy_s.items():
        assert iteration.busy_s[part] == pytest.approx(seconds, abs=limit), part
    assert iteration.off_s == pytest.approx(other.off_s, rel=1e-6, abs=limit)


class _Alone(SharedNics):
    """Rails that are not followed: ranks that are run one by one do not meet in all rails at once."""

    def ends_s(self, *_arguments: object) -> None:
        return None


def run_by(network: Topology, step: RunStep, varied: Varied, starts_s: "FloatArray", how: str) -> RanksIteration:
    """Run a step by one of the recurrences."""
    iteration = ranks._Iteration(
        step, network, Changes(network), 1.0 if how == "plain" else 1.4, starts_s, starts_s, varied
    )
    iteration._nics = _Alone(network)
    if how == "one by one":
        iteration._once = iteration._one_by_one
    if how == "sweep":
        iteration._plan.__dict__["two_streams"] = None
    return iteration.run()


@given(networks(), st.data())
def test_ranks_take_the_same_times_by_a_sweep_and_one_by_one(network, data):
    streams = data.draw(two_streams(network))
    sent = tuple(
        operation if isinstance(operation, Communicate) else Communicate(**NOTHING, after=operation.after)
        for operation in streams[1]
    )
    varied = Variation(network, 3).of(0, len(sent))
    starts_s = np.zeros(network.world_size)
    expected = run_by(network, run_step((streams[0], sent), network), varied, starts_s, "one by one")
    same(run_by(network, run_step((streams[0], sent), network), varied, starts_s, "sweep"), expected)


def jittery(num_ranks: int) -> Topology:
    return topology(num_ranks, 1, faults=(faults.ComputeJitter(cv=0.1),))


def step_of(network: Topology, num_streams: int = 2) -> Streams:
    message = Communicate(schedule=ring.all_reduce(network.group("world")), message_bytes=1e6)
    return ((Compute(part="backward", seconds=0.01),), *[(message, message)] * (num_streams - 1))


def test_what_each_recurrence_is_for():
    network = jittery(2)
    single, two = plan_of(step_of(network)), plan_of(step_of(network, 3))
    assert single.two_streams is not None
    assert two.two_streams is None
    assert not two.can_sweep, "two streams use the same links"


def test_a_run_of_many_steps_runs_one_of_them_again_for_its_spans(monkeypatch):
    network, passes = jittery(4), []
    counted = ranks._Iteration.run
    monkeypatch.setattr(ranks._Iteration, "run", lambda iteration: passes.append(1) or counted(iteration))
    timeline = run_ranks(step_of(network), network, steps=20)
    assert len(passes) == 21
    assert len(timeline.spans) == 3


def test_ranks_that_end_together_but_for_rounding_are_told_by_the_first():
    assert ranks.slowest_rank(np.array([0.5, 1.0 - 1e-15, 1.0])) == 1
    assert ranks.slowest_rank(np.array([0.5, 1.0 - 1e-9, 1.0])) == 2

"""The recurrence over collectives gives what the grouped executor gives from one end of an operation to the next."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simnet.cluster import faults
from simnet.cluster.hardware import Calibration, Fault, LinkCalibration, SlowNode
from simnet.cluster.topology import Topology
from simnet.collectives import direct, hierarchical, ring
from simnet.core.units import Duration
from simnet.engine import uneven_iterations
from simnet.engine.grouped_runner import GroupedRunner, RanksIteration
from simnet.engine.random_factors import Variation
from simnet.engine.rank_recurrence import RankRecurrence, holds_for
from simnet.engine.timeline import Streams
from simnet.engine.uneven_iterations import RunStep, run_grouped
from simnet.strategies.program import Communicate, Compute, OperationId
from tests.helpers.topologies import CALIBRATIONS, topology

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
    found = draw(st.lists(FAULTS, min_size=1, max_size=3, unique_by=type))
    return topology(draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.sampled_from(CALIBRATIONS)), faults=found)


@st.composite
def two_streams(draw: st.DrawFn, network: Topology) -> Streams:
    """Return a stream of compute and one of collectives with kernels, each of which waits for some of the other's."""
    streams: tuple[list[Compute | Communicate], list[Compute | Communicate]] = [], []
    groups = [network.group(kind) for kind in ("world", "intra_node", "inter_node")]
    makes = [ring.all_reduce, ring.all_gather, hierarchical.all_reduce, direct.all_to_all]
    for _ in range(draw(st.integers(1, 12))):
        stream = draw(st.integers(0, 1))
        other = streams[1 - stream]
        after = (
            (OperationId(1 - stream, draw(st.integers(0, len(other) - 1))),) if other and draw(st.booleans()) else ()
        )
        if stream and draw(st.booleans()):
            make = draw(st.sampled_from(makes))
            group = groups[0] if make is hierarchical.all_reduce else draw(st.sampled_from(groups))
            size = draw(st.sampled_from([0.0, 1e5, 2e7]))
            streams[1].append(Communicate(schedule=make(group), message_bytes=size, after=after))
        else:
            part = draw(st.sampled_from(["forward", "backward", "encode"]))
            seconds = draw(st.sampled_from([0.0, 1e-3, 0.02]))
            streams[stream].append(Compute(part=part, seconds=seconds, after=after))
    return tuple(streams[0]), tuple(streams[1])


def same(one: RanksIteration, other: RanksIteration) -> None:
    limit = NEAR * max(float(other.ends_s.max()), 1e-3)
    for name in ("ends_s", "comm_s", "waits_s", "held_s"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), abs=limit), name
    for part, seconds in other.busy_s.items():
        assert one.busy_s[part] == pytest.approx(seconds, abs=limit), part
    assert one.off_s == pytest.approx(other.off_s, rel=1e-6, abs=limit)


@settings(max_examples=settings.default.max_examples * 4)
@given(networks(), st.data())
def test_the_recurrence_gives_what_the_grouped_executor_gives(network, data):
    streams = data.draw(two_streams(network))
    slowdown, variation = data.draw(st.sampled_from([1.0, 1.4])), Variation(network, 3)
    assert holds_for(streams, network)
    number = sum(isinstance(one, Communicate) for one in streams[1])
    general, quick = GroupedRunner(network, slowdown), RankRecurrence(network, slowdown)
    starts_s = np.zeros(network.world_size)
    for step in range(2):
        varied = variation.of(step, number)
        expected = general.run(streams, starts_s, varied)
        same(quick.run(streams, starts_s, varied), expected)
        starts_s = expected.ends_s


def jittery(num_ranks: int, fault: Fault | None = None, calibration: Calibration | None = None) -> Topology:
    return topology(num_ranks, 1, calibration, faults=(fault or faults.ComputeJitter(cv=0.1),))


def step_of(network: Topology, num_streams: int = 2) -> Streams:
    message = Communicate(schedule=ring.all_reduce(network.group("world")), message_bytes=1e6)
    return ((Compute(part="backward", seconds=0.01),), *[(message, message)] * (num_streams - 1))


def test_programs_with_a_third_stream_or_links_that_compute_slows_are_not_for_it():
    slowed = Calibration(inter_node=LinkCalibration(overlap_efficiency=0.5))
    assert holds_for(step_of(jittery(2)), jittery(2))
    assert not holds_for(step_of(jittery(2), 3), jittery(2))
    assert not holds_for(step_of(jittery(2)), jittery(2, calibration=slowed))


def test_a_run_of_many_steps_goes_from_end_to_end_in_one_of_them_alone(monkeypatch):
    network, passes = jittery(4), []
    counted = GroupedRunner.run
    monkeypatch.setattr(GroupedRunner, "run", lambda *given, **more: passes.append(1) or counted(*given, **more))
    for num_streams, expected in ((2, 1), (3, 21)):
        passes.clear()
        run_grouped([RunStep(step_of(network, num_streams))] * 20, network, 1.0, Variation(network, 0), lambda: None)
        assert len(passes) == expected


def test_ranks_that_end_together_but_for_rounding_are_told_by_the_first():
    assert uneven_iterations.slowest_rank(np.array([0.5, 1.0 - 1e-15, 1.0])) == 1
    assert uneven_iterations.slowest_rank(np.array([0.5, 1.0 - 1e-9, 1.0])) == 2

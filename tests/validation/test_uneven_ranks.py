"""The folded, the grouped and the exact executor give the same times, wherever more than one of them holds."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simnet.cluster import faults
from simnet.cluster.hardware import Calibration, Fault, SlowNode
from simnet.cluster.schedule import Group, GroupKind
from simnet.cluster.topology import Topology
from simnet.collectives import algorithms, direct, ring
from simnet.engine import shared_nics
from simnet.engine.collective_times import rank_times
from simnet.engine.every_send import Exact, never_share_links
from simnet.engine.timeline import Streams, Timeline
from simnet.strategies.program import Communicate, Compute, OperationId
from tests.helpers.programs import numbers_on, plan_of, run_exact, run_ranks
from tests.helpers.random_faults import comings, constant_faults, varying
from tests.helpers.topologies import CALIBRATIONS, NCCL_COSTS, leaves, topology

NEAR = 1e-9
"""Relative: times this near each other differ by rounding alone."""
ABOUT = 1.5
"""What the grouped executor says that it may be off is an estimate: of rails that start apart, how far apart."""
WITH_NCCL = Calibration(nccl=NCCL_COSTS)


@st.composite
def streams_on(
    draw: st.DrawFn, network: Topology, kinds: tuple[GroupKind, ...] = ("world", "intra_node", "inter_node")
) -> Streams:
    """Return a program of one stream that computes and one that communicates."""
    groups = [network.group(kind) for kind in kinds]
    seconds = st.sampled_from([0.0, 1e-3, 0.02, 0.1])
    compute = [Compute(part="backward", seconds=draw(seconds)) for _ in range(draw(st.integers(1, 4)))]
    communication: list[Compute | Communicate] = []
    for index in range(len(compute)):
        after = (OperationId(0, index),)
        communication.append(Compute(part="encode", seconds=draw(seconds) / 10, after=after, bucket=index))
        for _ in range(draw(st.integers(1, 2))):
            group = draw(st.sampled_from(groups))
            make = draw(st.sampled_from([ring.all_gather, ring.all_reduce, ring.reduce_scatter, direct.all_to_all]))
            size = draw(st.sampled_from([0.0, 1.0, 1e5, 2e7]))
            communication.append(Communicate(schedule=make(group), message_bytes=size, bucket=index))
        chosen = algorithms.choose(draw(st.sampled_from([None, "hierarchical", "auto"])), network, 1e6)
        communication.append(Communicate(schedule=chosen, message_bytes=draw(st.sampled_from([1.0, 3e7]))))
    last = (OperationId(1, len(communication) - 1),)
    compute.append(Compute(part="optimizer", seconds=draw(seconds), after=last))
    return tuple(compute), tuple(communication)


def runs(
    network: Topology, streams: Streams, steps: int = 1, slowdown: float = 1.0, seed: int = 0
) -> tuple[Timeline, Timeline]:
    """Return what the grouped and the exact executor say."""
    return run_ranks(streams, network, steps, slowdown, seed), run_exact(streams, network, steps, slowdown, seed)


def agree(grouped: Timeline, exact: Timeline) -> None:
    assert grouped.iteration_s == pytest.approx(exact.iteration_s, rel=NEAR)
    assert grouped.iterations_s == pytest.approx(exact.iterations_s, rel=1e-7, abs=NEAR * sum(exact.iterations_s))
    assert grouped.comm_s == pytest.approx(exact.comm_s, rel=NEAR, abs=NEAR)
    for part, seconds in {name: getattr(exact.breakdown, name) for name in exact.breakdown.__struct_fields__}.items():
        assert getattr(grouped.breakdown, part) == pytest.approx(seconds, rel=NEAR, abs=NEAR * exact.iteration_s)
    assert grouped.waits is not None
    assert exact.waits is not None
    assert grouped.waits.mean_s == pytest.approx(exact.waits.mean_s, abs=NEAR * sum(exact.iterations_s))


@st.composite
def clusters(draw: st.DrawFn, *more: st.SearchStrategy[Fault]) -> Topology:
    num_nodes, per_node = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    calibration = draw(st.sampled_from([*CALIBRATIONS, WITH_NCCL]))
    fabric = leaves(num_nodes // 2, 3.0) if num_nodes % 2 == 0 and draw(st.booleans()) else None
    kinds = [constant_faults(num_nodes, per_node), *more]
    found = draw(st.lists(st.one_of(kinds), min_size=1, max_size=3))
    nodes = [fault.node for fault in found if isinstance(fault, SlowNode)]
    found = [fault for fault in found if not isinstance(fault, SlowNode) or nodes.count(fault.node) == 1]
    links = [fault.target for fault in found if isinstance(fault, faults.SlowLink)]
    found = [fault for fault in found if not isinstance(fault, faults.SlowLink) or links.count(fault.target) == 1]
    delayed = [fault.target for fault in found if isinstance(fault, faults.AddedLatency)]
    found = [one for one in found if not isinstance(one, faults.AddedLatency) or delayed.count(one.target) == 1]
    return topology(num_nodes, per_node, calibration, fabric=fabric, faults=tuple(found))


@pytest.mark.slow
@settings(max_examples=settings.default.max_examples * 3)
@given(clusters(), st.data())
def test_the_grouped_and_the_exact_executor_agree_on_clusters_with_faults(network, data):
    streams = data.draw(streams_on(network))
    grouped, exact = runs(network, streams, slowdown=data.draw(st.sampled_from([1.0, 1.4])))
    if grouped.off_s == 0:
        agree(grouped, exact)
    else:
        assert abs(grouped.iteration_s - exact.iteration_s) <= ABOUT * grouped.off_s + NEAR * exact.iteration_s


@pytest.mark.slow
@given(clusters(varying), st.data())
def test_the_exact_executor_says_the_same_by_arrays_and_by_events(network, data):
    streams = data.draw(streams_on(network, ("world", "intra_node")))
    assert never_share_links(one.schedule for one in streams[1] if isinstance(one, Communicate))
    by_events = run_exact(streams, network, 2, 1.2, 1)
    by_arrays = run_exact(streams, network, 2, 1.2, 1, partial(Exact, regular=rank_times))
    agree(by_arrays, by_events)


@pytest.mark.slow
@given(clusters(varying), st.integers(1, 4), st.data())
def test_they_agree_over_several_iterations_that_vary(network, steps, data):
    grouped, exact = runs(network, data.draw(streams_on(network)), steps, seed=data.draw(st.integers(0, 9)))
    if grouped.off_s == 0:
        agree(grouped, exact)
    else:
        assert abs(grouped.iteration_s - exact.iteration_s) <= ABOUT * grouped.off_s + NEAR * exact.iteration_s


@given(clusters(comings), st.data())
def test_they_are_as_near_as_the_grouped_one_says_where_links_come_and_go(network, data):
    grouped, exact = runs(network, data.draw(streams_on(network)), steps=2)
    assert abs(grouped.iteration_s - exact.iteration_s) <= ABOUT * grouped.off_s + NEAR * exact.iteration_s


@given(st.integers(1, 5), st.integers(1, 4), st.sampled_from([*CALIBRATIONS, WITH_NCCL]), st.data())
def test_all_three_agree_where_all_nodes_are_alike(num_nodes, per_node, calibration, data):
    network = topology(num_nodes, per_node, calibration)
    streams = data.draw(streams_on(network))
    slowdown = data.draw(st.sampled_from([1.0, 1.4]))
    folded = plan_of(streams).timeline(numbers_on(network, slowdown))
    grouped, exact = runs(network, streams, slowdown=slowdown)
    if not grouped.off_s:
        assert [folded.iteration_s] * 2 == pytest.approx([grouped.iteration_s, exact.iteration_s], rel=NEAR)
        agree(grouped, exact)


def test_a_step_alone_is_the_same_whether_it_is_one_of_several_or_not():
    network = topology(2, 2)
    message = Communicate(schedule=ring.all_reduce(network.group("world")), message_bytes=1e6)
    streams = ((Compute(part="backward", seconds=0.1),), (message,))
    alone = run_exact(streams, network)
    assert runs(network, streams, steps=3)[1].iterations_s == pytest.approx([alone.iteration_s] * 3, rel=NEAR)


@pytest.mark.parametrize("most_sends", [shared_nics.MOST_SENDS, 0])
def test_rails_over_some_of_the_nodes_share_nics_with_those_of_their_nodes_alone(monkeypatch, most_sends):
    monkeypatch.setattr(shared_nics, "MOST_SENDS", most_sends)
    network = topology(4, 2, faults=(faults.SlowRank(node=0, local_rank=0, compute_slowdown=1.3),))
    pairs = Group(first=0, size=2, stride=2, num_nodes=4, ranks_per_node=2)
    sent = Communicate(schedule=ring.all_reduce(pairs), message_bytes=2e7)
    encode = Compute(part="encode", seconds=0.0, after=(OperationId(0, 0),))
    grouped, exact = runs(network, ((Compute(part="backward", seconds=0.01),), (encode, sent, sent)))
    assert abs(grouped.iteration_s - exact.iteration_s) <= grouped.off_s + NEAR * exact.iteration_s
    assert (grouped.off_s == 0) is (most_sends > 0)

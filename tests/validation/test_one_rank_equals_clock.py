"""The rank that stands for all takes the times of the discrete-event clock, however its program overlaps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from simnet.collectives import algorithms, direct, ring
from simnet.core import files
from simnet.engine import recurrence
from simnet.engine.prepared_scenario import PreparedScenario
from simnet.engine.scenario import load_experiment
from simnet.engine.timeline import Streams, Timeline
from simnet.strategies.program import Communicate, Compute, OperationId
from tests.helpers import folded
from tests.helpers.programs import numbers_on, plan_of, run_exact
from tests.helpers.topologies import CALIBRATIONS, leaves, topology

SLOWED = [
    replace(
        calibration,
        intra_node=replace(calibration.intra_node, overlap_efficiency=0.3),
        inter_node=replace(calibration.inter_node, overlap_efficiency=0.8),
    )
    for calibration in CALIBRATIONS
]
seconds = st.floats(0.0, 0.5) | st.sampled_from([0.0, 1e-3, 0.1])
sizes = st.floats(0.0, 1e9) | st.sampled_from([0.0, 1.0, 1e6])


def both(streams: Streams, network, slowdown: float) -> tuple[Timeline, Timeline]:
    loop = plan_of(streams).timeline(numbers_on(network, slowdown))
    return loop, folded.run(streams, network, slowdown)


def same(loop: Timeline, clock: Timeline) -> None:
    near = 1e-9 * clock.iteration_s
    assert loop.iteration_s == pytest.approx(clock.iteration_s, rel=1e-9)
    assert loop.comm_s == pytest.approx(clock.comm_s, rel=1e-9)
    for part in clock.breakdown.__struct_fields__:
        assert getattr(loop.breakdown, part) == pytest.approx(getattr(clock.breakdown, part), rel=1e-9, abs=near), part
    spans = [{one.operation: one for one in found.spans if one.end_s - one.start_s > near} for found in (loop, clock)]
    assert spans[0].keys() == spans[1].keys()
    for which, one in spans[0].items():
        other = spans[1][which]
        assert (one.name, one.algorithm, one.bucket) == (other.name, other.algorithm, other.bucket)
        assert [one.start_s, one.end_s] == pytest.approx([other.start_s, other.end_s], rel=1e-9, abs=near)


@st.composite
def programs(draw, calibrations=CALIBRATIONS) -> tuple[Streams, object, float]:
    num_nodes, per_node = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    fabric = leaves(num_nodes // 2, 3.0) if num_nodes % 2 == 0 and draw(st.booleans()) else None
    network = topology(num_nodes, per_node, draw(st.sampled_from(calibrations)), fabric=fabric)
    groups = [network.group(kind) for kind in ("world", "intra_node", "inter_node")]
    number = draw(st.integers(1, 6))
    compute = [Compute(part="backward", seconds=draw(seconds)) for _ in range(number)]
    communication = []
    for index in range(number):
        group, make = draw(st.sampled_from(groups)), draw(st.sampled_from([ring.all_gather, direct.all_to_all]))
        after = (OperationId(0, draw(st.integers(index, number - 1))),)
        communication.append(Compute(part="encode", seconds=draw(seconds) / 10, after=after, bucket=index))
        communication.append(Communicate(schedule=make(group), message_bytes=draw(sizes), bucket=index))
        chosen = algorithms.choose(draw(st.sampled_from(["ring", "tree", "auto"])), network, 1e5)
        communication.append(Communicate(schedule=chosen, message_bytes=draw(sizes)))
    compute.append(Compute(part="optimizer", seconds=draw(seconds), after=(OperationId(1, len(communication) - 1),)))
    return (tuple(compute), tuple(communication)), network, draw(st.sampled_from([1.0, 1.3, 2.0]))


@settings(max_examples=settings.default.max_examples * 3 // 2)
@given(programs())
def test_random_programs_take_the_same_times(given_program):
    streams, network, slowdown = given_program
    same(*both(streams, network, slowdown))


@given(programs(SLOWED))
def test_random_programs_take_the_same_times_where_compute_slows_links(given_program):
    streams, network, slowdown = given_program
    same(*both(streams, network, slowdown))


@given(programs(SLOWED + CALIBRATIONS))
def test_times_without_spans_are_those_with_them(given_program):
    streams, network, slowdown = given_program
    plan, at = plan_of(streams), numbers_on(network, slowdown)
    assert plan.two_streams is not None
    assert plan.iteration_s(at) == pytest.approx(plan.timeline(at).iteration_s, rel=1e-9)


@pytest.mark.slow
def test_shipped_experiments_take_the_same_times():
    settings = {name: PreparedScenario(load_experiment(name).at({})) for name in files.names("experiments")}
    without_faults = {name: setting for name, setting in settings.items() if setting.topology.is_symmetric}
    assert len(without_faults) >= 15
    for setting in without_faults.values():
        for strategy in filter(None, (setting.scenario.strategy, setting.scenario.baseline)):
            loop, clock = both(setting.timed(setting.plan(strategy)), setting.topology, 1.1)
            same(loop, clock)


@st.composite
def programs_on_two_levels(draw) -> tuple[Streams, object, float]:
    """Return streams of which one communicates inside nodes while another does between them."""
    calibration = draw(st.sampled_from([*CALIBRATIONS, *SLOWED]))
    network = topology(draw(st.integers(2, 9)), draw(st.integers(2, 5)), calibration)
    compute, inside, between = [], [], []
    for index in range(draw(st.integers(1, 6))):
        before = (OperationId(1, draw(st.integers(0, index - 1))),) if index and draw(st.booleans()) else ()
        compute.append(Compute(part="backward", seconds=draw(seconds), after=before))
        shards = draw(st.sampled_from([ring.all_gather, direct.all_to_all, ring.reduce_scatter]))(
            network.group("intra_node")
        )
        after = (OperationId(0, index),)
        inside.append(Communicate(schedule=shards, message_bytes=draw(sizes), bucket=index, after=after))
        replicas = ring.all_reduce(network.group("inter_node"))
        after = (OperationId(1, index),) if draw(st.booleans()) else ()
        between.append(Communicate(schedule=replicas, message_bytes=draw(sizes), bucket=index, after=after))
    last = OperationId(1, len(inside) - 1), OperationId(2, len(between) - 1)
    compute.append(Compute(part="optimizer", seconds=draw(seconds), after=last))
    return (tuple(compute), tuple(inside), tuple(between)), network, draw(st.sampled_from([1.0, 1.3, 2.0]))


@given(programs_on_two_levels())
def test_one_stream_inside_nodes_and_one_between_them_take_the_same_times(given_program):
    streams, network, slowdown = given_program
    loop, clock = both(streams, network, slowdown)
    same(loop, clock)
    plan = plan_of(streams)
    assert plan.can_sweep
    if not network.compute_slows_links:
        swept = recurrence.sweep(plan.steps, plan.prices(numbers_on(network)), slowdown, start_s=np.zeros(1))
        assert swept == pytest.approx(clock.iteration_s, rel=1e-9)


@st.composite
def on_the_same_links(draw) -> tuple[Streams, object, float]:
    """Return streams that communicate beside each other on any links, and one that computes."""
    network = topology(
        draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.sampled_from([*CALIBRATIONS, *SLOWED]))
    )
    groups = [network.group(kind) for kind in ("world", "intra_node", "inter_node")]
    compute = tuple(Compute(part="backward", seconds=draw(seconds)) for _ in range(draw(st.integers(1, 4))))
    streams = [compute]
    for _ in range(draw(st.integers(2, 3))):
        sent = []
        for _ in range(draw(st.integers(1, 4))):
            group, make = draw(st.sampled_from(groups)), draw(st.sampled_from([ring.all_reduce, direct.all_to_all]))
            after = draw(st.sampled_from([(), (OperationId(0, draw(st.integers(0, len(compute) - 1))),)]))
            size = draw(st.floats(0.0, 1e9) | st.sampled_from([1.0, 1e6]))
            sent.append(Communicate(schedule=make(group), message_bytes=size, after=after))
        streams.append(tuple(sent))
    return tuple(streams), network, draw(st.sampled_from([1.0, 1.3]))


@given(on_the_same_links())
def test_collectives_that_share_links_take_the_same_times_and_are_as_near_to_every_send_as_said(given_program):
    streams, network, slowdown = given_program
    loop, clock = both(streams, network, slowdown)
    same(loop, clock)
    if network.compute_slows_links:
        return  # it slows the bytes of each round there, and here those that follow all latencies
    every_send = run_exact(streams, network, 1, slowdown)
    assert abs(loop.iteration_s - every_send.iteration_s) <= loop.off_s + 1e-9 * every_send.iteration_s

"""Exact executor == folded executor == closed form on symmetric idle clusters, for every algorithm."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.cluster import nccl_model
from simnet.cluster.hardware import Calibration, LinkCalibration
from simnet.cluster.kernel_times import HostCost
from simnet.collectives import algorithms, broadcast, closed_form, direct, link_loads, ring, tree
from simnet.collectives.closed_form import AlphaBeta, Shape
from simnet.core.units import Duration, Size
from tests.helpers.topologies import (
    INTER_ALPHA_S,
    INTER_BYTES_PER_S,
    INTRA_ALPHA_S,
    INTRA_BYTES_PER_S,
    NCCL_COSTS,
    leaves,
    run_exact,
    run_folded,
    topology,
)

REL = 1e-9
INTRA = AlphaBeta(alpha_s=INTRA_ALPHA_S, bytes_per_s=INTRA_BYTES_PER_S)
INTER = AlphaBeta(alpha_s=INTER_ALPHA_S, bytes_per_s=INTER_BYTES_PER_S)
IDEAL = Calibration()
COSTLY = Calibration(
    inter_node=LinkCalibration(efficiency=((Size(1e3), 0.2), (Size(1e6), 0.9))),
    intra_node=LinkCalibration(efficiency=0.7, alpha_s=Duration(3e-6)),
    collective_launch_s=Duration(20e-6),
    message_s=Duration(2e-6),
    poll_s=Duration(1e-7),
    all_to_all_efficiency=0.6,
    flat_ring_latency="mean",
)
SHARED = Calibration(
    inter_node=LinkCalibration(efficiency=0.9),
    host=HostCost(
        launch_s=Duration(2e-3), round_s=Duration(4e-3), message_s=Duration(1e-3), s_per_byte=Duration(0.5e-9)
    ),
)
"""Cores that are slower than some rounds and faster than others."""
NCCL = Calibration(
    collective_launch_s=Duration(1e-3),  # what other collectives pay, which NCCL's costs hold themselves
    message_s=Duration(1e-3),
    nccl=NCCL_COSTS,
)


def schedules(topology):
    """Return every collective that a strategy uses, on every group; the tree only where it is level (see below)."""
    world, intra_node, inter_node = (topology.group(kind) for kind in ("world", "intra_node", "inter_node"))
    found = [
        schedule
        for algorithm in algorithms.every()
        if algorithm.fits(world) and not (algorithm.needs_nccl and topology.nccl is None)
        for schedule in algorithm.variants(world)
        if not schedule.folded_is_upper_bound
    ]
    for group in (world, intra_node, inter_node):
        found += [ring.reduce_scatter(group), ring.all_gather(group), direct.all_to_all(group)]
    if world.num_nodes & (world.num_nodes - 1) == 0:
        found.append(tree.all_reduce(world, 5))
    return found


SHAPES = [(1, 1), (1, 4), (2, 1), (2, 2), (3, 1), (3, 4), (4, 2), (5, 3), (6, 2), (8, 4), (16, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(("num_nodes", "ranks_per_node"), SHAPES)
@pytest.mark.parametrize("calibration", [IDEAL, COSTLY, SHARED, NCCL], ids=["ideal", "costly", "shared", "nccl"])
def test_exact_equals_folded_equals_sum_of_phases(num_nodes, ranks_per_node, calibration):
    network = topology(num_nodes, ranks_per_node, calibration)
    for schedule in schedules(network):
        if calibration is not IDEAL and schedule.label == "tree":
            continue  # ranks post different numbers of sends in a round, so posting costs do not fall together
        exact_s, _ = run_exact(network, schedule, 44e6)
        assert run_folded(network, schedule, 44e6) == pytest.approx(exact_s, rel=REL), schedule.name
        assert link_loads.duration_s(network, schedule, 44e6) == pytest.approx(exact_s, rel=REL), schedule.name


@pytest.mark.parametrize("message_bytes", [8e3, 1e6, 8e9])
@pytest.mark.parametrize("num_nodes", [2, 4, 7])
def test_a_collective_takes_its_cores_or_its_wire_whichever_is_longer(num_nodes, message_bytes):
    network = topology(num_nodes, 1, SHARED)
    world, sent = network.group("world"), message_bytes / num_nodes
    wire_s = sent / 0.9 / INTER_BYTES_PER_S
    peers = num_nodes - 1
    ring_s = max(2e-3 + 2 * peers * (5e-3 + 0.5e-9 * sent), 2 * peers * (INTER_ALPHA_S + wire_s))
    direct_s = max(2e-3 + 4e-3 + peers * (1e-3 + 0.5e-9 * sent), INTER_ALPHA_S + peers * wire_s)
    assert run_folded(network, ring.all_reduce(world), message_bytes) == pytest.approx(ring_s, rel=REL)
    assert run_folded(network, direct.all_to_all(world), message_bytes) == pytest.approx(direct_s, rel=REL)


@pytest.mark.parametrize(("num_nodes", "nodes_per_leaf"), [(4, 2), (6, 2), (8, 4), (8, 2)])
@pytest.mark.parametrize("oversubscription", [1.0, 4.0])
def test_exact_equals_folded_on_an_oversubscribed_fabric(num_nodes, nodes_per_leaf, oversubscription):
    network = topology(num_nodes, 2, NCCL, fabric=leaves(nodes_per_leaf, oversubscription))
    for schedule in schedules(network):
        if schedule.label != "tree":
            exact_s, _ = run_exact(network, schedule, 44e6)
            assert run_folded(network, schedule, 44e6) == pytest.approx(exact_s, rel=REL), schedule.name


@pytest.mark.parametrize("num_nodes", [3, 5, 6, 7, 11, 13, 24])
@pytest.mark.parametrize("num_chunks", [1, 4, 16])
def test_folded_tree_bounds_the_exact_one_from_above_where_the_tree_is_ragged(num_nodes, num_chunks):
    """A ragged tree is not symmetric: folded lets every round wait for its busiest node, at most 12 % too long."""
    network = topology(num_nodes, 2)
    schedule = tree.all_reduce(network.group("world"), num_chunks)
    exact_s, _ = run_exact(network, schedule, 44e6)
    folded_s = run_folded(network, schedule, 44e6)
    assert exact_s * (1 - REL) <= folded_s <= exact_s * 1.12


@given(num_nodes=st.integers(1, 12), ranks_per_node=st.integers(1, 9), message_bytes=st.floats(1.0, 1e10))
def test_folded_equals_the_closed_forms(num_nodes, ranks_per_node, message_bytes):
    network = topology(num_nodes, ranks_per_node)
    shape = Shape(num_nodes=num_nodes, ranks_per_node=ranks_per_node, intra_node=INTRA, inter_node=INTER)
    world, slowest = network.group("world"), INTER if num_nodes > 1 else INTRA
    ranks = network.world_size
    expected = {
        ring.all_reduce(world): closed_form.ring_all_reduce_s(ranks, message_bytes, slowest),
        ring.all_gather(world): closed_form.ring_all_gather_s(ranks, message_bytes, slowest),
        ring.hierarchical_all_reduce(world): closed_form.hierarchical_all_reduce_s(shape, message_bytes),
        direct.all_to_all(world): closed_form.all_to_all_s(shape, message_bytes),
    }
    if num_nodes in (4, 8):
        expected |= {
            tree.all_reduce(world, c): closed_form.tree_all_reduce_s(shape, message_bytes, c) for c in (1, 3, 8)
        }
    if ranks_per_node in (1, 2, 4, 8):
        expected[broadcast.tree(world)] = closed_form.tree_broadcast_s(shape, message_bytes)
    for way, chunks in product(("broadcast", "reduce"), (1, 3, 8)):
        pipeline_s = closed_form.pipeline_broadcast_s(shape, message_bytes, chunks)
        expected[broadcast.pipeline(world, chunks, way)] = pipeline_s
    for schedule, seconds in expected.items():
        assert run_folded(network, schedule, message_bytes) == pytest.approx(seconds, rel=REL), schedule.name
    for algorithm in algorithms.every():
        seconds = algorithm.closed_form_s(shape, message_bytes) if algorithm.fits(world) else None
        if seconds is not None:
            fastest_s = min(run_folded(network, one, message_bytes) for one in algorithm.variants(world))
            assert fastest_s == pytest.approx(seconds, rel=REL), algorithm.name


@given(num_nodes=st.integers(1, 12), ranks_per_node=st.integers(1, 9), message_bytes=st.floats(1.0, 1e10))
def test_nccls_all_reduce_takes_the_fitted_closed_form(num_nodes, ranks_per_node, message_bytes):
    network = topology(num_nodes, ranks_per_node, NCCL)
    if network.world_size == 1:
        return
    found = nccl_model.candidates(NCCL.nccl, num_nodes, ranks_per_node)
    at = nccl_model.rates(NCCL.nccl, INTRA_BYTES_PER_S, INTER_BYTES_PER_S)
    each_s = [nccl_model.seconds(one, at, message_bytes) for one in found]
    assert [run_folded(network, one, message_bytes) for one in algorithms.nccl_variants(network.group("world"))] == (
        pytest.approx(each_s, rel=REL)
    )
    chosen = algorithms.choose(None, network, message_bytes)
    assert run_folded(network, chosen, message_bytes) == pytest.approx(min(each_s), rel=REL)


def test_the_mean_latency_of_a_flat_ring_is_that_of_nccls_cost_model():
    """NCCL: (2(n-1) - 2(N-1)) intra + 2(N-1) inter for n ranks on N nodes (src/graph/tuning.cc), here for n >> 1."""
    network = topology(64, 8, Calibration(flat_ring_latency="mean"))
    nccl_s = (2 * 511 - 2 * 63) * INTRA_ALPHA_S + 2 * 63 * INTER_ALPHA_S
    assert run_folded(network, ring.all_reduce(network.group("world")), 0.0) == pytest.approx(nccl_s, rel=0.02)

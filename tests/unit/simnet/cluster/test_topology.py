"""Links, their efficiency and latency, as a cluster and its calibration give them."""

import pytest
from msgspec.structs import replace

from simnet.cluster.hardware import Calibration, LinkCalibration, SlowNode
from simnet.collectives import link_loads, tree
from simnet.core.units import Duration, Size
from tests.helpers.topologies import leaves, topology

CURVE = LinkCalibration(efficiency=((Size(1e3), 0.2), (Size(1e5), 0.6), (Size(1e7), 0.9)))


@pytest.mark.parametrize(
    ("send_bytes", "expected"),
    [(1.0, 0.2), (1e3, 0.2), (1e4, 0.4), (1e5, 0.6), (1e6, 0.75), (1e7, 0.9), (1e12, 0.9), (0.0, 0.2)],
)
def test_efficiency_is_log_linear_between_the_points_and_constant_beyond(send_bytes, expected):
    assert topology(2, 2, Calibration(inter_node=CURVE)).inter_node.efficiency(send_bytes) == pytest.approx(expected)


def test_a_calibrated_latency_replaces_that_of_the_cluster():
    network = topology(2, 2, Calibration(inter_node=LinkCalibration(alpha_s=Duration(1e-3))))
    assert network.inter_node.alpha_s == 1e-3
    assert network.intra_node.alpha_s == 0.5e-6


def test_a_send_loads_ports_in_the_node_nics_between_nodes_and_uplinks_between_leaves():
    network = topology(4, 2, fabric=leaves(2, 4.0))
    kinds = {dst: [link.kind for link in network.path(0, dst)] for dst in (1, 2, 4)}
    assert kinds == {
        1: ["port_tx", "port_rx"],
        2: ["nic_tx", "nic_rx"],
        4: ["nic_tx", "nic_rx", "leaf_up", "leaf_down"],
    }
    assert network.leaf_bytes_per_s == pytest.approx(2 * 1.25e9 / 4)


def test_slow_nodes_have_slower_nics_and_compute_and_break_the_symmetry():
    slowed = topology(2, 2, slow_nodes=(SlowNode(node=1, nic_slowdown=4.0, compute_slowdown=2.0),))
    rates = [slowed.capacity(slowed.path(src, dst)[0]) for src, dst in ((0, 2), (2, 0))]
    assert rates == pytest.approx([1.25e9, 1.25e9 / 4])
    assert [slowed.compute_factor(rank) for rank in range(4)] == [1.0, 1.0, 2.0, 2.0]
    assert not slowed.is_symmetric
    assert not topology(3, 2, fabric=leaves(2, 1.0)).is_symmetric, "the last leaf is half full"
    assert topology(4, 2, fabric=leaves(2, 1.0)).is_symmetric


@pytest.mark.parametrize("num_nodes", [2, 3, 7, 12, 33, 64])
def test_a_few_nodes_of_each_kind_tell_the_load_of_the_whole_tree(num_nodes):
    network = topology(num_nodes, 2)
    few = tree.all_reduce(network.group("world"), 3)
    every = replace(few, busiest_nodes=())
    assert link_loads.duration_s(network, few, 1e7) == link_loads.duration_s(network, every, 1e7)
    assert link_loads.nic_bytes_per_node(network, few, 1e7) == link_loads.nic_bytes_per_node(network, every, 1e7)

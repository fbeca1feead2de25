"""Small topologies for the tests of the engine."""

from typing import Any

import simpy

from simnet.cluster import topology as topologies
from simnet.cluster.hardware import Calibration, Cluster, Fabric, Link, LinkCalibration
from simnet.cluster.kernel_times import HostCost
from simnet.cluster.nccl_costs import NcclCosts
from simnet.cluster.schedule import Schedule
from simnet.cluster.topology import Topology
from simnet.core.units import Bandwidth, Duration, Size
from simnet.engine.every_send import Exact
from tests.helpers.folded import Folded

INTRA_BYTES_PER_S, INTRA_ALPHA_S = 300e9, 0.5e-6
INTER_BYTES_PER_S, INTER_ALPHA_S = 1.25e9, 5e-6
NCCL_COSTS = NcclCosts(
    start_s=Duration(44e-6),
    ll_start_s=Duration(8e-6),
    ll_hop_s=Duration(1.4e-6),
    inter_node_hop_s=Duration(7e-6),
    ll_efficiency=0.07,
    exposed=0.5,
    intra_node_efficiency=0.8,
    inter_node_efficiency=0.6,
)

CALIBRATIONS = [
    Calibration(),
    Calibration(
        inter_node=LinkCalibration(efficiency=((Size(1e3), 0.2), (Size(1e6), 0.9))),
        intra_node=LinkCalibration(efficiency=0.7, alpha_s=Duration(3e-6)),
        collective_launch_s=Duration(20e-6),
        message_s=Duration(2e-6),
        poll_s=Duration(1e-7),
        all_to_all_efficiency=0.6,
    ),
    Calibration(host=HostCost(launch_s=Duration(2e-4), round_s=Duration(4e-5), s_per_byte=Duration(0.5e-9))),
]


def link(bytes_per_s: float, alpha_s: float) -> Link:
    return Link(bytes_per_s=Bandwidth(bytes_per_s), alpha_s=Duration(alpha_s))


def cluster(num_nodes: int, ranks_per_node: int, **more: Any) -> Cluster:
    parts = {
        "intra_node": link(INTRA_BYTES_PER_S, INTRA_ALPHA_S),
        "inter_node": link(INTER_BYTES_PER_S, INTER_ALPHA_S),
    }
    return Cluster(num_nodes=num_nodes, ranks_per_node=ranks_per_node, **{**parts, **more})


def topology(num_nodes: int, ranks_per_node: int, calibration: Calibration | None = None, **more: Any) -> Topology:
    return topologies.build(cluster(num_nodes, ranks_per_node, **more), calibration or Calibration())


def leaves(nodes_per_leaf: int, oversubscription: float) -> Fabric:
    return Fabric(nodes_per_leaf=nodes_per_leaf, oversubscription=oversubscription)


def run_exact(topology: Topology, schedule: Schedule, message_bytes: float) -> tuple[float, Exact]:
    """Return when the last rank is done, and the executor to look at its network."""
    env = simpy.Environment()
    executor = Exact(env, topology)
    ends: list[float] = []

    def rank(number: int) -> Any:
        _, end_s = yield from executor.run(number, 0, schedule, message_bytes)
        ends.append(end_s)

    for number in range(topology.world_size):
        env.process(rank(number))
    env.run()
    assert len(ends) == topology.world_size, "a rank never finished"
    return max(ends), executor


def run_folded(topology: Topology, schedule: Schedule, message_bytes: float) -> float:
    env = simpy.Environment()
    executor = Folded(env, topology)
    process = env.process(executor.run(0, 0, schedule, message_bytes))
    env.run()
    return process.value[1]

"""Schedules with a protocol: pipelines, whose rounds are one stream on the links, at the costs of NCCL.

A pipeline takes its latency, then all its links carry bytes at once, at the pace of the busiest one.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import NamedTuple

from simnet.cluster import nccl_model
from simnet.cluster.hardware import LinkId, LinkKind
from simnet.cluster.schedule import Group, Schedule
from simnet.cluster.topology import Topology, path
from simnet.collectives.representatives import busiest, representatives
from simnet.core.errors import SimnetError
from simnet.core.lanes import least

PORTS = ("port_tx", "port_rx")


class PipelineCost(NamedTuple):
    """What a schedule with a protocol takes: one latency, and factors on the bytes that it sends over links.

    Attributes:
        latency_s: what of the time its bytes do not take [s].
        intra_node: factor on bytes over the ports of ranks, by which the nominal rate gives the real time.
        inter_node: the same of NICs and uplinks.
    """

    latency_s: float
    intra_node: float
    inter_node: float

    def inflation(self, kind: LinkKind) -> float:
        """Return the factor of a link."""
        return self.intra_node if kind in PORTS else self.inter_node


def cost(topology: Topology, schedule: Schedule, message_bytes: float) -> PipelineCost:
    """Return what a schedule with a protocol takes of a message, from the costs of NCCL."""
    costs, group = topology.nccl, schedule.group
    if costs is None:
        raise SimnetError(
            f"{schedule.name}: needs calibration.nccl, which simnet calibrate writes; fit nccl-tests logs"
        )
    assert schedule.protocol
    found = nccl_model.candidate(
        costs, schedule.collective, schedule.algorithm, schedule.protocol, group.nodes, group.members_per_node
    )
    most = dict(most_chunks(schedule, topology.nodes_per_leaf))
    nominal = topology.intra_node.bytes_per_s, topology.inter_node.bytes_per_s
    at = nccl_model.rates(costs, *nominal)
    rails = rails_per_node(group)
    slower = costs.factor(message_bytes * rails)

    # The closed form says what the busiest link carries as if at full rate; the schedule says what it really carries.
    def factor(carried: float, kind: LinkKind, efficiency: float) -> float:
        return slower * carried * schedule.num_chunks / most[kind] / efficiency if kind in most else 1.0

    # Of a message of no bytes all hops count, as its factor does.
    latency_s = nccl_model.latency_s(found, at, message_bytes * rails, topology.nccl_added_s)
    return PipelineCost(
        slower * latency_s,
        factor(found.intra_bytes, "port_tx", at.in_node(found.limit) / nominal[0]),
        # The closed form knows one group; the NICs of a node carry what all of its rails send.
        factor(found.inter_bytes * rails, "nic_tx", at.inter_node / nominal[1]),
    )


def least_latency_s(topology: Topology, schedule: Schedule) -> float:
    """Return what a schedule with a protocol takes at least, whatever its message [s].

    Hops that hide behind bytes take no more time than these: a message of no bytes takes the least.
    """
    costs = topology.nccl
    assert costs is not None
    plain_s = cost(topology, schedule, 0.0).latency_s / costs.below_1_mib
    return plain_s * least(costs.below_1_mib, costs.below_16_mib, costs.from_16_mib)


def added_latency_s(schedule: Schedule, added_s: Collection[float]) -> float:
    """Return what latencies that faults add to the links of a group add to a pipeline on it [s].

    A chunk passes every link of a ring, of an all-reduce twice; in a tree, those between the deepest leaf and the root.

    Args:
        schedule: the pipeline.
        added_s: of every link that carries it [s].
    """
    nodes = schedule.group.nodes
    passes = 2 if schedule.collective == "all_reduce" else 1
    in_a_row = sum(added_s)
    if schedule.algorithm in {"tree", "nvls_tree"}:
        in_a_row = min(in_a_row, 2 * math.ceil(math.log2(max(nodes, 2))) * max(added_s, default=0.0))
    return passes * in_a_row


def rails_per_node(group: Group) -> int:
    """Return how many equal groups run side by side through the NICs of a node."""
    return group.ranks_per_node // group.members_per_node if group.nodes > 1 else 1


def count_chunks(schedule: Schedule, ranks: Iterable[int], nodes_per_leaf: int) -> Counter[LinkId]:
    """Return the chunks on each link in all rounds together, as these ranks send them."""
    per_node = schedule.group.ranks_per_node
    found: Counter[LinkId] = Counter()
    for rank in ranks:
        for round_ in schedule.rounds:
            for index, times in round_.distinct_loads or tuple((index, 1) for index in range(round_.repeat)):
                for send in round_.sends(rank, index):
                    for link in path(rank, send.dst, per_node, nodes_per_leaf):
                        found[link] += send.width * times
    return found


@lru_cache(maxsize=16_384)
def most_chunks(schedule: Schedule, nodes_per_leaf: int) -> tuple[tuple[LinkKind, float], ...]:
    """Return the chunks on the busiest link of each kind in all rounds together."""
    counted = count_chunks(schedule, representatives(schedule, nodes_per_leaf), nodes_per_leaf)
    # Local rank 0 was enumerated for all: NICs and uplinks carry what each local rank sends.
    rails = schedule.group.ranks_per_node if schedule.rails_are_symmetric else 1
    most = busiest(counted, every_link=not schedule.nodes_are_symmetric)
    return tuple((kind, number if kind in PORTS else number * rails) for kind, number in most)

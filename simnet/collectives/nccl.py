"""NCCL's all-reduce and all-gather: a ring, or a double binary tree, in one of three protocols, by the message's size.

The schedules are those of the ring and of the tree. As pipelines they load the same links, and `nccl_model` times them.
"""

from functools import lru_cache

from msgspec.structs import replace

from simnet import nccl_model
from simnet.collectives import ring, tree
from simnet.collectives.pipelines import rails_per_node
from simnet.collectives.schedule import Group, Schedule
from simnet.nccl_costs import NcclCosts
from simnet.nccl_model import PROTOCOLS, Algorithm, Protocol
from simnet.network.topology import Topology


def choose(topology: Topology, costs: NcclCosts, message_bytes: float) -> Schedule:
    """Return the fastest all-reduce over all ranks for a message, by the closed form alone."""
    found = nccl_model.fastest(
        nccl_model.known_candidates(costs, topology.num_nodes, topology.ranks_per_node),
        nccl_model.rates(costs, topology.intra_node.bytes_per_s, topology.inter_node.bytes_per_s),
        message_bytes,
    )
    return all_reduce(topology.group("world"), found.algorithm, found.protocol)


def variants(group: Group) -> tuple[Schedule, ...]:
    """Return every algorithm in every protocol; trees run only across nodes."""
    names: tuple[Algorithm, ...] = ("ring", "tree") if group.nodes > 1 else ("ring",)
    return tuple(all_reduce(group, algorithm, protocol) for algorithm in names for protocol in PROTOCOLS)


@lru_cache(maxsize=16_384)
def all_reduce(group: Group, algorithm: Algorithm, protocol: Protocol) -> Schedule:
    """Return an all-reduce by an algorithm in a protocol.

    In a tree every rank is the head of a chain through its node for its slice of the message, as NCCL gives each
    channel another head: a reduce-scatter in the node, and the trees between the nodes' heads.
    """
    if algorithm == "ring":
        return replace(ring.all_reduce(group), protocol=protocol)
    # As one stream the tree has no rounds that wait for their busiest node: the folded time is the time itself.
    return replace(tree.all_reduce(group), protocol=protocol, folded_is_upper_bound=False)


def choose_all_gather(topology: Topology, group: Group, message_bytes: float) -> Schedule:
    """Return the all-gather of a message to which each rank of a group adds 1/n.

    It is NCCL's ring in its fastest protocol where the calibration holds its costs for as many nodes, else a plain one.
    """
    costs, gather = topology.nccl, ring.all_gather(group)
    if costs is None or not costs.holds_for(group.nodes) or not gather.rounds:
        return gather
    found = nccl_model.fastest(
        nccl_model.gather_candidates(costs, group.nodes, group.members_per_node),
        nccl_model.rates(costs, topology.intra_node.bytes_per_s, topology.inter_node.bytes_per_s),
        message_bytes * rails_per_node(group),
    )
    return _in_protocol(gather, found.protocol)


@lru_cache(maxsize=16_384)
def _in_protocol(schedule: Schedule, protocol: Protocol) -> Schedule:
    return replace(schedule, protocol=protocol)

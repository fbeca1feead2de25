"""NCCL's collectives: a ring, or for an all-reduce a double binary tree, in one of three protocols, by message size.

The schedules are those of the ring and of the tree. As pipelines they load the same links, and `nccl_model` times them.
"""

from collections.abc import Callable
from functools import lru_cache

from msgspec.structs import replace

from simnet.cluster import nccl_model
from simnet.cluster.nccl_costs import NcclCosts
from simnet.cluster.nccl_model import PROTOCOLS, Algorithm
from simnet.cluster.schedule import Group, Protocol, Schedule, any_of
from simnet.cluster.topology import Topology
from simnet.collectives import broadcast, ring, tree
from simnet.collectives.broadcast import Way
from simnet.collectives.pipelines import rails_per_node


def choose(topology: Topology, costs: NcclCosts, message_bytes: float, group: Group | None = None) -> Schedule:
    """Return the fastest all-reduce of a group, by default all ranks, for a message by the closed form alone."""
    group = group or topology.group("world")
    if topology.lanes:
        return any_of(variants(group, costs))
    found = _fastest(topology, costs, nccl_model.known_candidates, group, message_bytes)
    return all_reduce(group, found.algorithm, found.protocol)


def variants(group: Group, costs: NcclCosts | None = None) -> tuple[Schedule, ...]:
    """Return every algorithm in every protocol; trees run only across nodes, through NVSwitches where the costs say."""
    names: tuple[Algorithm, ...] = ("ring", "tree") if group.nodes > 1 else ("ring",)
    found = tuple(all_reduce(group, algorithm, protocol) for algorithm in names for protocol in PROTOCOLS)
    if costs is None:
        return found
    if group.nodes > 1 and nccl_model.has_nvls(costs, group.members_per_node):
        found = (*found, all_reduce(group, "nvls_tree", "Simple"))
    return tuple(one for one in found if one.protocol and costs.allows(one.algorithm, one.protocol))


@lru_cache(maxsize=16_384)
def all_reduce(group: Group, algorithm: Algorithm, protocol: Protocol) -> Schedule:
    """Return an all-reduce by an algorithm in a protocol.

    In a tree every rank is the head of a chain through its node for its slice of the message, as NCCL gives each
    channel another head: a reduce-scatter in the node, and the trees between the nodes' heads.
    """
    if algorithm == "ring":
        return replace(ring.all_reduce(group), protocol=protocol)
    # As one stream the tree has no rounds that wait for their busiest node: the folded time is the time itself.
    return replace(tree.all_reduce(group), algorithm=algorithm, protocol=protocol, folded_is_upper_bound=False)


def choose_all_gather(topology: Topology, group: Group, message_bytes: float) -> Schedule:
    """Return the all-gather of a message to which each rank of a group adds 1/n.

    It is NCCL's ring in its fastest protocol where the calibration holds its costs for as many nodes, else a plain one.
    """
    return _half_ring(topology, ring.all_gather(group), message_bytes)


def choose_reduce_scatter(topology: Topology, group: Group, message_bytes: float) -> Schedule:
    """Return the reduce-scatter of a message of each rank: the other half of the ring, at the same costs."""
    return _half_ring(topology, ring.reduce_scatter(group), message_bytes)


def _half_ring(topology: Topology, half: Schedule, message_bytes: float) -> Schedule:
    costs, group = topology.nccl, half.group
    if costs is None or not costs.holds_for(group.nodes) or not half.rounds:
        return half
    if topology.lanes:
        return any_of([_in_protocol(half, one) for one in PROTOCOLS if costs.allows("ring", one)])
    found = _fastest(topology, costs, nccl_model.gather_candidates, group, message_bytes)
    return _in_protocol(half, found.protocol)


def choose_broadcast(topology: Topology, group: Group, message_bytes: float, way: Way) -> Schedule | None:
    """Return a broadcast or reduce through the ring in its fastest protocol; None without costs for these nodes."""
    costs, passed_on = topology.nccl, broadcast.pipeline(group, 1, way)
    if costs is None or not costs.holds_for(group.nodes) or not passed_on.rounds:
        return None
    if topology.lanes:
        return any_of([_counted_in_full(passed_on, one) for one in PROTOCOLS if costs.allows("ring", one)])
    found = _fastest(topology, costs, nccl_model.broadcast_candidates, group, message_bytes)
    return _counted_in_full(passed_on, found.protocol)


def _fastest(
    topology: Topology,
    costs: NcclCosts,
    candidates: Callable[[NcclCosts, int, int], tuple[nccl_model.Candidate, ...]],
    group: Group,
    message_bytes: float,
) -> nccl_model.Candidate:
    return nccl_model.fastest(
        candidates(costs, group.nodes, group.members_per_node),
        nccl_model.rates(costs, topology.intra_node.bytes_per_s, topology.inter_node.bytes_per_s),
        message_bytes * rails_per_node(group),
        topology.nccl_added_s,
    )


@lru_cache(maxsize=16_384)
def _counted_in_full(schedule: Schedule, protocol: Protocol) -> Schedule:
    """Return a pipeline whose chunks are counted over all repetitions, since they are one stream on the links."""
    rounds = tuple(replace(one, distinct_loads=None) for one in schedule.rounds)
    return replace(schedule, algorithm="ring", protocol=protocol, rounds=rounds)


@lru_cache(maxsize=16_384)
def _in_protocol(schedule: Schedule, protocol: Protocol) -> Schedule:
    return replace(schedule, protocol=protocol)

"""Hierarchical all-reduce: reduce-scatter in the node, all-reduce of each slice between nodes, all-gather in the node.

All local ranks run their slice's inter-node ring at once and share the node's NICs, so only 2(N-1)/N of the message
leaves a node. Source: the 2D decomposition of Cho et al., "BlueConnect", MLSys 2019.
"""

from functools import lru_cache

from simnet.collectives import ring
from simnet.collectives.schedule import Group, Round, Schedule


@lru_cache(maxsize=256)
def all_reduce(group: Group) -> Schedule:
    """Return the three phases as one schedule over all ranks.

    Args:
        group: the world group; its nodes and local ranks make the two levels.
    """
    intra, inter = levels(group)
    nodes = inter.size

    def slice_of(_rank: int, position: int) -> tuple[int, int]:
        return position * nodes, nodes

    def piece_of(rank: int, position: int) -> tuple[int, int]:
        return intra.position(rank) * nodes + position, 1

    rounds: tuple[Round, ...] = (
        *ring.reduce_scatter_rounds(intra, slice_of),
        *ring.reduce_scatter_rounds(inter, piece_of),
        *ring.all_gather_rounds(inter, piece_of),
        *ring.all_gather_rounds(intra, slice_of),
    )
    return Schedule(
        name="hierarchical all_reduce",
        group=group,
        num_chunks=intra.size * nodes,
        rounds=rounds,
        lanes_alike=True,
    )


@lru_cache(maxsize=256)
def levels(group: Group) -> tuple[Group, Group]:
    """Return the intra-node and the inter-node groups of a world group."""
    shape = {"num_nodes": group.num_nodes, "ranks_per_node": group.ranks_per_node}
    return Group(kind="intra_node", **shape), Group(kind="inter_node", **shape)

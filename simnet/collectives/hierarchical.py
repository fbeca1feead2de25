"""Hierarchical all-reduce: reduce-scatter in the node, all-reduce of each slice between nodes, all-gather in the node.

All local ranks run their slice's inter-node ring at once and share the node's NICs, so only 2(N-1)/N of the message
leaves a node. Source: the 2D decomposition of Cho et al., "BlueConnect", MLSys 2019.
"""

from functools import lru_cache

from simnet.cluster.schedule import Group, Schedule
from simnet.collectives import ring
from simnet.collectives.ring import Slices


@lru_cache(maxsize=16_384)
def all_reduce(group: Group) -> Schedule:
    """Return the three phases as one schedule.

    Args:
        group: its parts in nodes and its rails make the two levels.
    """
    intra_node, inter_node = group.levels()
    nodes = inter_node.size
    slice_of, piece_of = Slices(nodes), Slices(1, intra_node, nodes)
    return Schedule(
        collective="all_reduce",
        algorithm="hierarchical",
        group=group,
        num_chunks=intra_node.size * nodes,
        rounds=(
            *ring.reduce_scatter_rounds(intra_node, slice_of),
            *ring.reduce_scatter_rounds(inter_node, piece_of),
            *ring.all_gather_rounds(inter_node, piece_of),
            *ring.all_gather_rounds(intra_node, slice_of),
        ),
        rails_are_symmetric=True,
    )

"""Double binary tree all-reduce between nodes, pipelined in chunks, inside a reduce-scatter and all-gather of the node.

Each half of the message goes up and down one of two trees; a node inside one tree is a leaf of the other, so both
directions of every NIC are used. Source: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan", Parallel Computing 35(12), 2009, as used by NCCL 2.4. Differs: NCCL reduces along a chain in the
node and keeps several chunks in flight on a connection; here the node scatters slices to its ranks, and a chunk costs
one latency a level.
"""

from functools import lru_cache

from simnet.collectives import ring
from simnet.collectives.hierarchical import levels
from simnet.collectives.schedule import Group, Round, Schedule, Send

Parents = tuple[int, ...]
"""The parent of each node, -1 at the root."""


CHUNKS = (1, 2, 4, 8, 16, 32, 64)
"""Into how many chunks half a slice may be cut; more pipeline better but pay more latencies."""


@lru_cache(maxsize=256)
def all_reduce(group: Group, num_chunks: int = 1) -> Schedule:
    """Return the all-reduce with each half of a slice cut into `num_chunks` chunks."""
    intra, inter = levels(group)
    nodes, per_slice = inter.size, 2 * num_chunks

    def slice_of(_rank: int, position: int) -> tuple[int, int]:
        return position * per_slice, per_slice

    return Schedule(
        name="tree all_reduce",
        group=group,
        num_chunks=intra.size * per_slice,
        rounds=(
            *ring.reduce_scatter_rounds(intra, slice_of),
            *_tree_rounds(inter, nodes, num_chunks, up=True),
            *_tree_rounds(inter, nodes, num_chunks, up=False),
            *ring.all_gather_rounds(intra, slice_of),
        ),
        nodes_alike=False,
        busiest_nodes=_one_of_each_kind(nodes),
        lanes_alike=True,
        bounded=nodes & (nodes - 1) != 0,
    )


def _tree_rounds(inter: Group, nodes: int, num_chunks: int, *, up: bool) -> tuple[Round, ...]:
    """Return the pipelined rounds up both trees (adding) or down both (copying)."""
    if nodes == 1:
        return ()
    trees = two_trees(nodes)
    tables = tuple((parents, depths(parents), children(parents)) for parents in trees)
    deepest = max(max(levels_of) for _, levels_of, _ in tables)

    def sends(rank: int, index: int) -> tuple[Send, ...]:
        node, lane = inter.position(rank), inter.group_id(rank)
        found: list[Send] = []
        for tree, (parents, level, below) in enumerate(tables):
            chunk = index - (deepest - level[node] if up else level[node])
            if 0 <= chunk < num_chunks:
                number = (lane * 2 + tree) * num_chunks + chunk
                targets = (parents[node],) if up else below[node]
                found += [Send(inter.rank_at(rank, t), number, 1, up) for t in targets if t >= 0]
        return tuple(found)

    return (Round(repeat=deepest + num_chunks - 1, sends=sends),)


def _one_of_each_kind(nodes: int) -> tuple[int, ...]:
    """Return one node of each combination of level and number of children in the two trees, and their children."""
    tables = tuple((depths(parents), children(parents)) for parents in two_trees(nodes))
    kinds = {tuple((level[n], len(below[n])) for level, below in tables): n for n in range(nodes)}
    return tuple(sorted({*kinds.values(), *(c for n in kinds.values() for _, below in tables for c in below[n])}))


@lru_cache(maxsize=256)
def two_trees(nodes: int) -> tuple[Parents, Parents]:
    """Return two binary trees over the nodes; the second is the first shifted by one, or mirrored if `nodes` is even.

    The first hangs the in-order tree of nodes 1 to nodes - 1 below node 0: node i is a parent of i +- its lowest
    set bit / 2, so odd nodes are leaves.
    """
    first = tuple(_parent(node, nodes) for node in range(nodes))
    if nodes % 2:
        second = [(first[(node - 1) % nodes] + 1) % nodes if first[(node - 1) % nodes] >= 0 else -1
                  for node in range(nodes)]  # fmt: skip
    else:
        second = [nodes - 1 - first[nodes - 1 - node] if first[nodes - 1 - node] >= 0 else -1 for node in range(nodes)]
    return first, tuple(second)


def _parent(node: int, nodes: int) -> int:
    """Return the parent in the in-order binary tree of NCCL, -1 for node 0."""
    if node == 0:
        return -1
    bit = node & -node
    above = (node ^ bit) | (bit << 1)
    return above if above < nodes else node ^ bit


def depths(parents: Parents) -> tuple[int, ...]:
    """Return the level of each node, 0 at the root."""
    found: dict[int, int] = {}

    def level(node: int) -> int:
        if node not in found:
            found[node] = 0 if parents[node] < 0 else level(parents[node]) + 1
        return found[node]

    return tuple(level(node) for node in range(len(parents)))


def children(parents: Parents) -> tuple[tuple[int, ...], ...]:
    """Return the children of each node."""
    below: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents):
        if parent >= 0:
            below[parent].append(node)
    return tuple(tuple(nodes) for nodes in below)

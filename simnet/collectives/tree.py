"""Double binary tree all-reduce between nodes, pipelined in chunks, inside a reduce-scatter and all-gather of the node.

Each half of the message goes up and down one of two trees; a node inside one tree is a leaf of the other, so both
directions of every NIC are used. Source: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan", Parallel Computing 35(12), 2009, as used by NCCL 2.4. Differs: NCCL reduces along a chain in the
node and keeps several chunks in flight on a connection; here the node scatters slices to its ranks, and a chunk costs
one latency a level.
"""

from functools import lru_cache

from msgspec import Struct

from simnet.cluster.schedule import Group, Round, Schedule, Send
from simnet.collectives import ring
from simnet.collectives.ring import Slices

Parents = tuple[int, ...]
"""The parent of each node, -1 at the root."""
Table = tuple[Parents, tuple[int, ...], tuple[tuple[int, ...], ...]]
"""One tree: parents, depths and children of its nodes."""

CHUNKS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of chunks of half a slice: more chunks keep more levels busy, but pay more latencies."""


class TreeSends(Struct, frozen=True):
    """What a node sends in one repetition: in each tree one chunk, to its parent (up) or to its children (down).

    The pipeline: chunk c starts one repetition after chunk c - 1 and climbs one level a repetition. Up, the deepest
    leaves send chunk c in repetition c; a node at depth d has the sums of its children, and sends, deepest - d
    repetitions later, in repetition c + (deepest - d). Down, the root sends chunk c in repetition c and a node at depth
    d passes it on in repetition c + d.
    """

    intra_node: Group
    inter_node: Group
    num_chunks: int
    up: bool

    def __call__(self, rank: int, index: int) -> tuple[Send, ...]:
        """Return the sends of a rank in a repetition."""
        inter_node, deepest = self.inter_node, _deepest(self.inter_node.size)
        node, rail = inter_node.position(rank), self.intra_node.position(rank)
        sends: list[Send] = []
        for tree, (parents, depth, below) in enumerate(_tables(inter_node.size)):
            chunk = index - (deepest - depth[node] if self.up else depth[node])
            if 0 <= chunk < self.num_chunks:
                # Each rail reduces its own slice, half of it in either tree.
                number = (rail * 2 + tree) * self.num_chunks + chunk
                targets = (parents[node],) if self.up else below[node]
                sends += [Send(inter_node.rank_at(rank, t), number, 1, self.up) for t in targets if t >= 0]
        return tuple(sends)


@lru_cache(maxsize=16_384)
def all_reduce(group: Group, num_chunks: int = 1) -> Schedule:
    """Return the all-reduce with each half of a slice cut into `num_chunks` chunks."""
    intra_node, inter_node = group.levels()
    nodes, per_slice = inter_node.size, 2 * num_chunks
    slice_of = Slices(per_slice)
    return Schedule(
        collective="all_reduce",
        algorithm="tree",
        group=group,
        num_chunks=intra_node.size * per_slice,
        rounds=(
            *ring.reduce_scatter_rounds(intra_node, slice_of),
            *_tree_rounds(intra_node, inter_node, num_chunks, up=True),
            *_tree_rounds(intra_node, inter_node, num_chunks, up=False),
            *ring.all_gather_rounds(intra_node, slice_of),
        ),
        nodes_are_symmetric=False,
        busiest_nodes=_one_of_each_kind(nodes),
        rails_are_symmetric=True,
        folded_is_upper_bound=nodes & (nodes - 1) != 0,
    )


def _tree_rounds(intra_node: Group, inter_node: Group, num_chunks: int, *, up: bool) -> tuple[Round, ...]:
    """Return the pipelined rounds up both trees (adding) or down both (copying)."""
    if inter_node.size == 1:
        return ()
    # The first chunk climbs `deepest` levels; each further chunk arrives one repetition later. From then until the last
    # chunk sets out every level has a chunk to send.
    deepest = _deepest(inter_node.size)
    repeat, full = deepest + num_chunks - 1, max(num_chunks - deepest + 1, 1)
    return (
        Round(
            repeat=repeat,
            sends=TreeSends(intra_node, inter_node, num_chunks, up),
            distinct_loads=tuple(
                (index, full if index == deepest - 1 else 1)
                for index in range(repeat)
                if not deepest <= index < deepest - 1 + full
            ),
            inter_node=True,
        ),
    )


@lru_cache(maxsize=4096)
def _tables(nodes: int) -> tuple[Table, ...]:
    return tuple((parents, depths(parents), children(parents)) for parents in two_trees(nodes))


@lru_cache(maxsize=4096)
def _deepest(nodes: int) -> int:
    return max(max(depth) for _, depth, _ in _tables(nodes))


@lru_cache(maxsize=4096)
def _one_of_each_kind(nodes: int) -> tuple[int, ...]:
    """Return one node of each combination of level and number of children in the two trees, and their children."""
    # Nodes of one combination load their NICs equally in every repetition. Its children send what the node
    # receives and must be enumerated with it; a parent sends as much as it receives.
    tables = _tables(nodes)
    kinds = {tuple((depth[n], len(below[n])) for _, depth, below in tables): n for n in range(nodes)}
    return tuple(sorted({*kinds.values(), *(c for n in kinds.values() for _, _, below in tables for c in below[n])}))


@lru_cache(maxsize=4096)
def two_trees(nodes: int) -> tuple[Parents, Parents]:
    """Return two binary trees over the nodes; the second is the first shifted by one, or mirrored if `nodes` is even.

    The first hangs the in-order tree of nodes 1 to nodes - 1 below node 0: node i is a parent of i +- its lowest
    set bit / 2, so odd nodes are leaves.
    """
    first = tuple(_parent(node, nodes) for node in range(nodes))
    # Shifted or mirrored, inner nodes of the first tree are leaves of the second, so that every NIC works both ways.
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
    # With `bit` the lowest set bit of a node, its parent has the next higher one as its lowest: that is either
    # node - bit or node + bit. Where node + bit is no node, the parent is node - bit, further up the tree.
    bit = node & -node
    above = (node ^ bit) | (bit << 1)
    return above if above < nodes else node ^ bit


def depths(parents: Parents) -> tuple[int, ...]:
    """Return the level of each node, 0 at the root."""
    levels: dict[int, int] = {}

    def level(node: int) -> int:
        if node not in levels:
            levels[node] = 0 if parents[node] < 0 else level(parents[node]) + 1
        return levels[node]

    return tuple(level(node) for node in range(len(parents)))


def children(parents: Parents) -> tuple[tuple[int, ...], ...]:
    """Return the children of each node."""
    below: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents):
        if parent >= 0:
            below[parent].append(node)
    return tuple(tuple(nodes) for nodes in below)

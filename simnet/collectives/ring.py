"""Ring reduce-scatter, all-gather and all-reduce: every rank sends one chunk a round to its next neighbour.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009.
Differs: a slice is passed on before its chunk is complete, in all three alike, since NCCL builds them of the same
primitives (src/device/all_reduce.h, all_gather.h and reduce_scatter.h: recvReduceSend, recvCopySend).
"""

from collections.abc import Callable
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from simnet.cluster.schedule import CollectiveName, Group, Round, Schedule, Send

ChunksOf = Callable[[int, int], tuple[int, int]]
"""(rank, position) -> the first chunk that this position owns in the rank's group, and how many it owns."""


class Slices(Struct, frozen=True):
    """Every position owns `width` chunks in a row, from `offset(rank) + position * width` on.

    The offset is `rail_width` times the rank's position among the rails: the slice of the node that its rail reduces.
    """

    width: int = 1
    rails: Group | None = None
    rail_width: int = 0

    def __call__(self, rank: int, position: int) -> tuple[int, int]:
        """Return the first chunk and how many."""
        offset = self.rails.position(rank) * self.rail_width if self.rails is not None else 0
        return offset + position * self.width, self.width


ONE_CHUNK = Slices()


class RingSends(Struct, frozen=True):
    """One hop to the next neighbour.

    A chunk that is reduced starts at the position after its owner and comes to rest at the owner, size - 1 hops later:
    in repetition i, position p passes on the chunk of owner p - i - 1. A gather starts at the owner itself.
    """

    group: Group
    chunks_of: ChunksOf
    reduce: bool

    def __call__(self, rank: int, index: int) -> tuple[Send, ...]:
        """Return the one send of a rank in a repetition."""
        position = self.group.position(rank)
        owner = (position - index - self.reduce) % self.group.size
        first, count = self.chunks_of(rank, owner)
        return (Send(self.group.rank_at(rank, position + 1), first, count, self.reduce),)


def reduce_scatter_rounds(group: Group, chunks_of: ChunksOf = ONE_CHUNK) -> tuple[Round, ...]:
    """Return size - 1 rounds after which each position holds the sum of the chunks that it owns."""
    return _rounds(group, chunks_of, reduce=True)


def all_gather_rounds(group: Group, chunks_of: ChunksOf = ONE_CHUNK) -> tuple[Round, ...]:
    """Return size - 1 rounds after which every position holds what each of them owned."""
    return _rounds(group, chunks_of, reduce=False)


def _rounds(group: Group, chunks_of: ChunksOf, *, reduce: bool) -> tuple[Round, ...]:
    times = group.size - 1
    if not times:
        return ()
    # One hop in `members_per_node` leaves the node: the last member's.
    crossing = 1 / group.members_per_node if group.nodes > 1 else None
    return (
        Round(
            repeat=times,
            sends=RingSends(group, chunks_of, reduce),
            distinct_loads=((0, times),),
            crossing_fraction=crossing,
            inter_node=None if group.is_mixed else group.nodes > 1,
            same_pairs=True,
            passes_on=True,
        ),
    )


@lru_cache(maxsize=16_384)
def all_reduce(group: Group) -> Schedule:
    """Return the flat ring all-reduce: reduce-scatter, then all-gather; 2(n-1)/n of the message leaves each rank."""
    return _schedule("all_reduce", group, reduce_scatter_rounds(group) + all_gather_rounds(group))


@lru_cache(maxsize=16_384)
def hierarchical_all_reduce(group: Group) -> Schedule:
    """Return rings at two levels: reduce-scatter in the node, all-reduce of each slice between nodes, all-gather.

    All local ranks run their slice's ring between nodes at once and share the node's NICs, so only 2(N-1)/N of the
    message leaves a node. Source: the 2D decomposition of Cho et al., "BlueConnect", MLSys 2019.
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
            *reduce_scatter_rounds(intra_node, slice_of),
            *reduce_scatter_rounds(inter_node, piece_of),
            *all_gather_rounds(inter_node, piece_of),
            *all_gather_rounds(intra_node, slice_of),
        ),
        rails_are_symmetric=True,
    )


@lru_cache(maxsize=16_384)
def reduce_scatter(group: Group) -> Schedule:
    """Return the ring reduce-scatter; (n-1)/n of the message leaves each rank."""
    return _schedule("reduce_scatter", group, reduce_scatter_rounds(group))


@lru_cache(maxsize=16_384)
def all_gather(group: Group) -> Schedule:
    """Return the ring all-gather of a message to which each rank adds 1/n; (n-1)/n of it leaves each rank."""
    return _schedule("all_gather", group, all_gather_rounds(group))


class WholeSends(Struct, frozen=True):
    """The whole message to the next neighbour."""

    group: Group

    def __call__(self, rank: int, index: int) -> tuple[Send, ...]:  # noqa: ARG002 - the one repetition
        """Return the one send of a rank."""
        return (Send(self.group.rank_at(rank, self.group.position(rank) + 1), 0, 1, False),)


@lru_cache(maxsize=16_384)
def hop(group: Group) -> Schedule:
    """Return one hop: every rank sends its message to the next one and receives that of the one before."""
    if group.size == 1:
        return _schedule("send_recv", group, ())
    crossing = 1 / group.members_per_node if group.nodes > 1 else None
    inter_node = None if group.is_mixed else group.nodes > 1
    round_ = Round(repeat=1, sends=WholeSends(group), crossing_fraction=crossing, inter_node=inter_node, is_whole=True)
    return replace(_schedule("send_recv", group, (round_,)), num_chunks=1)


def _schedule(collective: CollectiveName, group: Group, rounds: tuple[Round, ...]) -> Schedule:
    return Schedule(
        collective=collective,
        algorithm="ring",
        group=group,
        num_chunks=group.size,
        rounds=rounds,
        rails_are_symmetric=not group.is_mixed,
    )

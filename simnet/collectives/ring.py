"""Ring reduce-scatter, all-gather and all-reduce: every rank sends one chunk a round to its next neighbour.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009.
"""

from collections.abc import Callable
from functools import lru_cache

from simnet.collectives.schedule import Group, Round, Schedule, Send

ChunksOf = Callable[[int, int], tuple[int, int]]
"""(rank, position) -> the first chunk that this position owns in the rank's group, and how many it owns."""


def one_chunk(_rank: int, position: int) -> tuple[int, int]:
    """Let the position own the chunk of its own number."""
    return position, 1


def reduce_scatter_rounds(group: Group, chunks_of: ChunksOf = one_chunk) -> tuple[Round, ...]:
    """Return size - 1 rounds after which each position holds the sum of the chunks that it owns."""

    def sends(rank: int, index: int) -> tuple[Send, ...]:
        position = group.position(rank)
        first, count = chunks_of(rank, (position - index - 1) % group.size)
        return (Send(group.rank_at(rank, position + 1), first, count, True),)

    return _rounds(group, sends)


def all_gather_rounds(group: Group, chunks_of: ChunksOf = one_chunk) -> tuple[Round, ...]:
    """Return size - 1 rounds after which every position holds what each of them owned."""

    def sends(rank: int, index: int) -> tuple[Send, ...]:
        position = group.position(rank)
        first, count = chunks_of(rank, (position - index) % group.size)
        return (Send(group.rank_at(rank, position + 1), first, count, False),)

    return _rounds(group, sends)


def _rounds(group: Group, sends: Callable[[int, int], tuple[Send, ...]]) -> tuple[Round, ...]:
    times = group.size - 1
    crossing = 1 / group.ranks_per_node if group.kind == "world" and group.num_nodes > 1 else None
    return (Round(repeat=times, sends=sends, alike=((0, times),), crossing=crossing),) if times else ()


@lru_cache(maxsize=256)
def all_reduce(group: Group) -> Schedule:
    """Return the flat ring all-reduce: reduce-scatter, then all-gather; 2(n-1)/n of the message leaves each rank."""
    rounds = reduce_scatter_rounds(group) + all_gather_rounds(group)
    return _schedule("ring all_reduce", group, rounds)


@lru_cache(maxsize=256)
def reduce_scatter(group: Group) -> Schedule:
    """Return the ring reduce-scatter; (n-1)/n of the message leaves each rank."""
    return _schedule("ring reduce_scatter", group, reduce_scatter_rounds(group))


@lru_cache(maxsize=256)
def all_gather(group: Group) -> Schedule:
    """Return the ring all-gather of a message of which each rank gives 1/n; (n-1)/n of it leaves each rank."""
    return _schedule("ring all_gather", group, all_gather_rounds(group))


def _schedule(name: str, group: Group, rounds: tuple[Round, ...]) -> Schedule:
    return Schedule(name=name, group=group, num_chunks=group.size, rounds=rounds, lanes_alike=group.kind != "world")

"""Recursive halving and doubling all-reduce: exchange halves with partners at distance 1, 2, 4, ...

Nearest partners first, so that ranks of one node add up before anything leaves the node.
Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
Differs: only for a power of two of ranks per node and of nodes; elsewhere MPICH adds a step that doubles the traffic.
"""

from functools import lru_cache

from msgspec import Struct

from simnet.cluster.schedule import Group, Round, Schedule, Send


class HalvingSends(Struct, frozen=True):
    """Half of what a rank still holds (reducing) or has got (gathering), to the partner that differs in bit `level`."""

    group: Group
    level: int
    reduce: bool

    def __call__(self, rank: int, _index: int) -> tuple[Send, ...]:
        """Return the one send of a rank."""
        group, level = self.group, self.level
        position = group.position(rank)
        partner = position ^ (1 << level)
        owner = partner if self.reduce else position
        first = _first_chunk(group.size, owner, level + 1)
        return (Send(group.rank_at(rank, partner), first, group.size >> (level + 1), self.reduce),)


def fits(group: Group) -> bool:
    """Tell whether the algorithm exists for this group."""
    return all(size & (size - 1) == 0 for size in (group.nodes, group.members_per_node))


@lru_cache(maxsize=16_384)
def all_reduce(group: Group) -> Schedule:
    """Return log2(n) rounds of halving, then as many of doubling; 2(n-1)/n of the message leaves each rank."""
    depth = group.size.bit_length() - 1
    halving = tuple(_round(group, level, reduce=True) for level in range(depth))
    doubling = tuple(_round(group, level, reduce=False) for level in reversed(range(depth)))
    return Schedule(
        collective="all_reduce",
        algorithm="halving_doubling",
        group=group,
        num_chunks=group.size,
        rounds=halving + doubling,
        rails_are_symmetric=True,
    )


def _round(group: Group, level: int, *, reduce: bool) -> Round:
    leaves_node = 1 << level >= group.members_per_node
    return Round(repeat=1, sends=HalvingSends(group, level, reduce), distinct_loads=((0, 1),), inter_node=leaves_node)


def _first_chunk(size: int, position: int, levels: int) -> int:
    """Return where the range starts that `position` is left with after `levels` halvings."""
    # Each halving keeps the lower half where the bit is 0 and the upper half where the bit is 1.
    return sum((size >> (bit + 1)) * (position >> bit & 1) for bit in range(levels))

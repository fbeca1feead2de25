"""Recursive halving and doubling all-reduce: exchange halves with partners at distance 1, 2, 4, ...

Nearest partners first, so that ranks of one node add up before anything leaves the node.
Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
Differs: only for a power of two of ranks per node and of nodes; elsewhere MPICH adds a step that doubles the traffic.
"""

from functools import lru_cache

from simnet.collectives.schedule import Group, Round, Schedule, Send


def fits(group: Group) -> bool:
    """Tell whether the algorithm exists for this group."""
    sizes = (group.size,) if group.kind != "world" else (group.num_nodes, group.ranks_per_node)
    return all(size & (size - 1) == 0 for size in sizes)


@lru_cache(maxsize=256)
def all_reduce(group: Group) -> Schedule:
    """Return log2(n) rounds of halving, then as many of doubling; 2(n-1)/n of the message leaves each rank."""
    depth = group.size.bit_length() - 1
    halving = tuple(_round(group, level, reduce=True) for level in range(depth))
    doubling = tuple(_round(group, level, reduce=False) for level in reversed(range(depth)))
    return Schedule(
        name="halving_doubling all_reduce",
        group=group,
        num_chunks=group.size,
        rounds=halving + doubling,
        lanes_alike=True,
    )


def _round(group: Group, level: int, *, reduce: bool) -> Round:
    """Exchange with the partner whose position differs in bit `level`."""
    count = group.size >> (level + 1)

    def sends(rank: int, _index: int) -> tuple[Send, ...]:
        position = group.position(rank)
        partner = position ^ (1 << level)
        owner = partner if reduce else position
        return (Send(group.rank_at(rank, partner), _first_chunk(group.size, owner, level + 1), count, reduce),)

    return Round(repeat=1, sends=sends, alike=((0, 1),))


def _first_chunk(size: int, position: int, levels: int) -> int:
    """Return where the range starts that `position` is left with after `levels` halvings."""
    return sum((size >> (bit + 1)) * (position >> bit & 1) for bit in range(levels))

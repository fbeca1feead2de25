"""Exchanges with partners directly: with all of them at once, as NCCL's grouped sends, or by halving and doubling."""

from functools import lru_cache

from msgspec import Struct

from simnet.cluster.schedule import Group, Round, Schedule, Send


class DirectSends(Struct, frozen=True):
    """The chunk of one partner a repetition: first the members of the node, then those of other nodes in turn."""

    group: Group

    def __call__(self, rank: int, index: int) -> tuple[Send, ...]:
        """Return the one send of a rank in a repetition."""
        group, width = self.group, self.group.members_per_node
        node, local = divmod(group.position(rank), width)
        inside = _inside(group)
        if index < inside:
            target = node * width + (local + index + 1) % width
        else:
            # Repetitions that leave the node go through all its members, so that any `width` of them in a row load
            # every NIC alike.
            nodes, members = divmod(index - inside, width)
            target = (node + nodes + 1) * width + (local + members) % width
        dst = group.rank_at(rank, target)
        return (Send(dst, group.position(dst), 1, True),)


def _inside(group: Group) -> int:
    """Return how many partners are in the node."""
    return group.members_per_node - 1


@lru_cache(maxsize=16_384)
def all_to_all(group: Group) -> Schedule:
    """Return the all-to-all that hands chunk c of every rank to position c; (n-1)/n of the message leaves each rank.

    As the first half of a compressed all-reduce it is a reduce-scatter whose owner adds up what it receives.
    """
    inside, times = _inside(group), group.size - 1
    loads = tuple((index, number) for index, number in ((0, inside), (inside, times - inside)) if number)
    inter_node = None if group.is_mixed else group.nodes > 1
    rounds = Round(repeat=times, sends=DirectSends(group), at_once=True, distinct_loads=loads, inter_node=inter_node)
    return Schedule(
        collective="all_to_all",
        algorithm="direct",
        group=group,
        num_chunks=group.size,
        rounds=(rounds,) if times else (),
        rails_are_symmetric=not group.is_mixed,
    )


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


def halves(group: Group) -> bool:
    """Tell whether a group can be halved, in its nodes and between them, until single ranks are left."""
    return all(size & (size - 1) == 0 for size in (group.nodes, group.members_per_node))


@lru_cache(maxsize=16_384)
def halving_doubling_all_reduce(group: Group) -> Schedule:
    """Return log2(n) rounds of halving, then as many of doubling; 2(n-1)/n of the message leaves each rank.

    Nearest partners first, so that ranks of one node add up before anything leaves the node.
    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
    Differs: only for a power of two of ranks per node and of nodes; elsewhere MPICH adds a step that doubles the
    traffic.
    """
    depth = group.size.bit_length() - 1
    halving = tuple(_halving_round(group, level, reduce=True) for level in range(depth))
    doubling = tuple(_halving_round(group, level, reduce=False) for level in reversed(range(depth)))
    return Schedule(
        collective="all_reduce",
        algorithm="halving_doubling",
        group=group,
        num_chunks=group.size,
        rounds=halving + doubling,
        rails_are_symmetric=True,
    )


def _halving_round(group: Group, level: int, *, reduce: bool) -> Round:
    leaves_node = 1 << level >= group.members_per_node
    return Round(repeat=1, sends=HalvingSends(group, level, reduce), distinct_loads=((0, 1),), inter_node=leaves_node)


def _first_chunk(size: int, position: int, levels: int) -> int:
    """Return where the range starts that `position` is left with after `levels` halvings."""
    # Each halving keeps the lower half where the bit is 0 and the upper half where the bit is 1.
    return sum((size >> (bit + 1)) * (position >> bit & 1) for bit in range(levels))

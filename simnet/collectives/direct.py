"""Direct all-to-all: every rank sends each other rank its own chunk, all posted at once, as grouped sends of NCCL."""

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

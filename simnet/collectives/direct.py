"""Direct all-to-all: every rank sends each other rank its own chunk, all posted at once, as grouped sends of NCCL."""

from functools import lru_cache

from simnet.collectives.schedule import Group, Round, Schedule, Send


@lru_cache(maxsize=256)
def all_to_all(group: Group) -> Schedule:
    """Return the all-to-all that hands chunk c of every rank to position c; (n-1)/n of the message leaves each rank.

    As the first half of a compressed all-reduce it is a reduce-scatter whose owner adds up what it receives.
    """
    inside = group.ranks_per_node - 1 if group.kind == "world" else 0
    times = group.size - 1

    def sends(rank: int, index: int) -> tuple[Send, ...]:
        target = _target(group, rank, index, inside)
        return (Send(target, group.position(target), 1, True),)

    alike = tuple((index, number) for index, number in ((0, inside), (inside, times - inside)) if number)
    rounds = (Round(repeat=times, sends=sends, at_once=True, alike=alike),) if times else ()
    return Schedule(
        name="direct all_to_all",
        group=group,
        num_chunks=group.size,
        rounds=rounds,
        lanes_alike=group.kind != "world",
    )


def _target(group: Group, rank: int, index: int, inside: int) -> int:
    """Return the partner of repetition `index`: first `inside` ranks of the node, then those of others."""
    if group.kind != "world":
        return group.rank_at(rank, group.position(rank) + index + 1)
    width = group.ranks_per_node
    node, lane = divmod(rank, width)
    if index < inside:
        return node * width + (lane + index + 1) % width
    nodes, lanes = divmod(index - inside, width)
    return group.rank_at(rank, (node + nodes + 1) * width + (lane + lanes) % width)

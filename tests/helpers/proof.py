"""Walk through a schedule on sets of ranks: who contributed to which chunk that which rank holds."""

from collections import Counter

from simnet.cluster.schedule import Schedule

Held = dict[int, Counter[int]]
"""Chunk -> how often each rank's contribution is in it."""


def walk(schedule: Schedule, start: list[Held]) -> list[Held]:
    """Return what every rank holds at the end; `start` is what each holds before, by chunk.

    All sends of a repetition read what was held before it, so a schedule that needs data too early is caught.
    """
    held = [{chunk: Counter(seen) for chunk, seen in mine.items()} for mine in start]
    for round_ in schedule.rounds:
        for index in range(round_.repeat):
            before = [
                {chunk: Counter(seen) for chunk, seen in mine.items()} for mine in (start if round_.at_once else held)
            ]
            for src in range(len(held)):
                for send in round_.sends(src, index):
                    assert send.dst != src, "a rank sends to itself"
                    for chunk in range(send.first, send.first + send.width):
                        assert chunk in before[src], f"rank {src} sends chunk {chunk}, which it does not hold"
                        if send.reduce:
                            held[send.dst].setdefault(chunk, Counter()).update(before[src][chunk])
                        else:
                            held[send.dst][chunk] = Counter(before[src][chunk])
    return held


def own_contributions(schedule: Schedule) -> list[Held]:
    """Let every rank start with its own contribution to every chunk."""
    return [
        {chunk: Counter({rank: 1}) for chunk in range(schedule.num_chunks)} for rank in range(schedule.group.world_size)
    ]


def members(schedule: Schedule, rank: int) -> list[int]:
    """Return the ranks of the group that `rank` is in."""
    return [schedule.group.rank_at(rank, position) for position in range(schedule.group.size)]


def complete(schedule: Schedule, rank: int) -> Counter[int]:
    """Return each member once."""
    return Counter(dict.fromkeys(members(schedule, rank), 1))

"""Work of a trace with what it waits for, made into streams: the one order in which each stream runs, and its waits.

A trace names any earlier work; a stream knows what it has waited for already. A clock for each piece of work (how much
of every stream has ended before it) says which waits are left to be written.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from simnet.core.errors import SimnetError, cut
from simnet.strategies.step_file import RecordedOperation, RecordedStream

Clock = list[int]
"""How many operations of each stream have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedWork:
    """A piece of work of a trace.

    Attributes:
        key: its number in the trace.
        rank_in_time: what the trace says of the order: of two that may run, the smaller one runs first.
        after: numbers of what must have ended.
        stream: key of the stream that runs it; "" for what is no work of the GPU and only passes on its waits.
        operation: what it does; None where there is no stream.
    """

    key: int
    rank_in_time: tuple[float, ...]
    after: frozenset[int]
    stream: str = ""
    operation: RecordedOperation | None = None


def in_streams(work: Sequence[TracedWork], names: Mapping[str, str], where: str) -> tuple[RecordedStream, ...]:
    """Return the work as streams.

    Args:
        work: all of it, each `after` naming others of it.
        names: of the streams by their keys, in their order.
        where: how messages call the trace.

    Raises:
        SimnetError: some of it waits for itself.
    """
    numbers = {name: number for number, name in enumerate(names)}
    streams: list[list[RecordedOperation]] = [[] for _ in names]
    clocks: dict[int, Clock] = {}
    # The clock of each operation by its place, for what another one implies; the last one is the stream's own.
    ended: list[list[Clock]] = [[] for _ in names]
    for one in _in_order(work, where):
        needed = _latest([clocks[key] for key in one.after], len(names))
        if one.operation is None:
            clocks[one.key] = needed
            continue
        stream = numbers[one.stream]
        own = ended[stream][-1] if streams[stream] else [0] * len(names)
        waits = tuple(_waits(needed, own, stream, ended))
        streams[stream].append(msgspec.structs.replace(one.operation, after=waits))
        clock = _latest([own, needed], len(names))
        clock[stream] = len(streams[stream])
        ended[stream].append(clock)
        clocks[one.key] = clock
    pairs = zip(names.values(), streams, strict=True)
    return tuple(RecordedStream(name=name, operations=tuple(operations)) for name, operations in pairs)


def _latest(clocks: Sequence[Clock], length: int) -> Clock:
    return [max(counts) for counts in zip(*clocks, strict=True)] if clocks else [0] * length


def _waits(needed: Clock, own: Clock, stream: int, ended: Sequence[Sequence[Clock]]) -> Iterator[tuple[int, int]]:
    """Yield what is left to wait for: of each other stream the latest, unless another of these waits for that."""
    left = {other: count for other, count in enumerate(needed) if other != stream and count > own[other]}
    for other, count in left.items():
        if not any(third != other and ended[third][many - 1][other] >= count for third, many in left.items()):
            yield other, count - 1


def _in_order(work: Sequence[TracedWork], where: str) -> Iterator[TracedWork]:
    """Yield the work so that all comes after what it waits for, else in the order of the trace."""
    by_key = {one.key: one for one in work}
    followers: dict[int, list[int]] = {key: [] for key in by_key}
    missing = {one.key: len(one.after) for one in work}
    for one in work:
        for key in one.after:
            followers[key].append(one.key)
    ready = [(one.rank_in_time, one.key) for one in work if not one.after]
    heapq.heapify(ready)
    while ready:
        _, key = heapq.heappop(ready)
        del missing[key]
        yield by_key[key]
        for follower in followers[key]:
            missing[follower] -= 1
            if not missing[follower]:
                heapq.heappush(ready, (by_key[follower].rank_in_time, follower))
    if missing:
        raise SimnetError(f"{where}: {_circle(by_key, missing)}: waits must not form a circle; make the trace again")


def _circle(by_key: Mapping[int, TracedWork], stuck: Mapping[int, int]) -> str:
    """Return a circle of waits for people: "node 3 waits for 5, for 3"."""
    chain = [min(stuck)]
    while (following := min(key for key in by_key[chain[-1]].after if key in stuck)) not in chain:
        chain.append(following)
    circle = [*chain[chain.index(following) :], following]
    first, *others = map(str, circle)
    return cut(f"node {first} waits for {', for '.join(others)}", 120)


def merged(streams: Sequence[RecordedStream]) -> tuple[RecordedStream, ...]:
    """Return the streams with neighbours joined that compute in one part of the step, with no wait between them."""
    waited_for = {wait for stream in streams for one in stream.operations for wait in one.after}
    places: dict[tuple[int, int], tuple[int, int]] = {}
    joined: list[list[RecordedOperation]] = []
    for number, stream in enumerate(streams):
        found: list[RecordedOperation] = []
        for position, one in enumerate(stream.operations):
            if found and (number, position - 1) not in waited_for and _is_same(found[-1], one):
                found[-1] = _sum(found[-1], one)
            else:
                found.append(one)
            places[number, position] = (number, len(found) - 1)
        joined.append(found)
    return tuple(
        RecordedStream(
            name=stream.name,
            operations=tuple(
                msgspec.structs.replace(one, after=tuple(places[wait] for wait in one.after)) for one in found
            ),
        )
        for stream, found in zip(streams, joined, strict=True)
    )


def _is_same(first: RecordedOperation, second: RecordedOperation) -> bool:
    return first.kind == second.kind == "compute" and first.part == second.part and not second.after


def _sum(first: RecordedOperation, second: RecordedOperation) -> RecordedOperation:
    return msgspec.structs.replace(
        first,
        flops=first.flops + second.flops,
        num_bytes=first.num_bytes + second.num_bytes,
        seconds=first.seconds + second.seconds,
    )

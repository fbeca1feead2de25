"""Which steps of a recording stand for all: the shortest row of them that repeats."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from binsgdm.recording.rank_streams import Collective, Computed, Mark, Position, Recorded, Tape

Streams = tuple[tuple[Recorded, ...], ...]


class Period(NamedTuple):
    """Steps that stand for all.

    Attributes:
        streams: their operations, stream by stream; positions count from the first of them.
        num_steps: how many they are.
        repeats: whether they were seen twice.
        num_dropped: waits for operations of earlier steps, which are left out.
    """

    streams: Streams
    num_steps: int
    repeats: bool
    num_dropped: int


def find_period(tape: Tape, cuts: Sequence[tuple[int, ...]], skipped: int) -> Period:
    """Return the shortest row of steps that repeats throughout.

    Args:
        tape: of the whole recording.
        cuts: number of operations of every stream at the end of every step; streams that are made later are missing.
        skipped: first steps, which are not looked at.
    """
    ends = [_padded(cut, len(tape.names)) for cut in ((), *cuts)]
    steps = [_steps(tape, *pair) for pair in zip(ends[skipped:], ends[skipped + 1 :], strict=False)]
    shapes = [_shape(step) for step in steps]
    number = len(steps)
    for length in range(1, number // 2 + 1):
        if all(shapes[index] == shapes[index - length] for index in range(length, number)):
            return _mean_of(tape, ends, number, length)
    streams, dropped = _cut_out(tape, ends[skipped], ends[-1])
    return Period(streams, number, number == 1, dropped)


def _padded(cut: tuple[int, ...], number: int) -> tuple[int, ...]:
    return cut + (0,) * (number - len(cut))


def _steps(tape: Tape, begin: tuple[int, ...], end: tuple[int, ...]) -> Streams:
    return _cut_out(tape, begin, end)[0]


def _cut_out(tape: Tape, begin: tuple[int, ...], end: tuple[int, ...]) -> tuple[Streams, int]:
    """Return the operations between two cuts, and how many waits lead out of them."""
    dropped = 0
    streams = []
    for number, (first, last) in enumerate(zip(begin, end, strict=True)):
        row: list[Recorded] = []
        for operation in tape.operations(number)[first:last]:
            kept = _within(operation.after, begin)
            # The first of all starts when the steps before have ended: there a wait says nothing new.
            dropped += len(operation.after) > len(kept) and bool(row)
            row.append(replace(operation, after=kept))
        streams.append(tuple(row))
    return tuple(streams), dropped


def _within(after: Mark, begin: tuple[int, ...]) -> Mark:
    return frozenset(
        Position(stream, position - begin[stream]) for stream, position in after if position >= begin[stream]
    )


def _shape(step: Streams) -> tuple[tuple[object, ...], ...]:
    """Return what makes two steps alike: everything but the seconds, and compute that is next to none."""
    return tuple(tuple(_of_operation(one) for one in stream) for stream in step)


def _of_operation(one: Recorded) -> object:
    if isinstance(one, Collective):
        return one
    return one.part, one.after


def _mean_of(tape: Tape, ends: list[tuple[int, ...]], number: int, length: int) -> Period:
    """Return a period whose work is the mean over all times that it was seen."""
    last = len(ends) - 1
    times = number // length
    rows = [_cut_out(tape, ends[last - (index + 1) * length], ends[last - index * length]) for index in range(times)]
    streams = tuple(
        tuple(_mean([row[0][stream][position] for row in rows]) for position in range(len(operations)))
        for stream, operations in enumerate(rows[0][0])
    )
    return Period(streams, length, True, rows[0][1])


def _mean(operations: list[Recorded]) -> Recorded:
    first = operations[0]
    if not isinstance(first, Computed):
        return first
    works = [one for one in operations if isinstance(one, Computed)]
    return replace(
        first,
        flops=sum(one.flops for one in works) / len(works),
        num_bytes=sum(one.num_bytes for one in works) / len(works),
        seconds=sum(one.seconds for one in works) / len(works),
    )

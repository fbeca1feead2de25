"""What one rank does, as streams of operations, each with the operations that must have ended before it.

The tape knows CUDA's rules and no tensor: operations of one stream run in order; a mark is what a stream has been given
so far (an event); a stream that waits for a mark starts its next operation when the mark is over. Of its steps, the
shortest row that repeats stands for all.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple

Part = Literal["forward", "backward", "encode", "decode", "optimizer"]

COMPUTE = 0
"""The stream of forward, backward and the optimizer."""


class Position(NamedTuple):
    """An operation by its stream and its position there, both from 0."""

    stream: int
    position: int


Mark = frozenset[Position]
NOTHING: Mark = frozenset()


@dataclass(frozen=True, kw_only=True)
class Computed:
    """Work between two marks of one stream.

    Attributes:
        part: of the step.
        flops: of matrix products and convolutions.
        num_bytes: read and written by all other operators.
        seconds: measured; 0 where work is counted.
        after: operations that must have ended.
    """

    part: Part
    flops: float = 0.0
    num_bytes: float = 0.0
    seconds: float = 0.0
    after: Mark = NOTHING

    def plus(self, flops: float, num_bytes: float, seconds: float) -> "Computed":
        """Return it with more work."""
        return Computed(  # `replace` takes twice as long, for each operator
            part=self.part,
            flops=self.flops + flops,
            num_bytes=self.num_bytes + num_bytes,
            seconds=self.seconds + seconds,
            after=self.after,
        )


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A collective of one group.

    Attributes:
        kind: such as "all_reduce".
        group: number of the group.
        message_bytes: the whole array, as nccl-tests counts.
        dtype: of its elements.
        bucket: of DDP; None outside of its hook.
        after: operations that must have ended.
    """

    kind: str
    group: int
    message_bytes: float
    dtype: str
    bucket: int | None = None
    after: Mark = NOTHING


Recorded = Computed | Collective


@dataclass
class _Stream:
    name: str
    operations: list[Recorded] = field(default_factory=list)
    waits: Mark = NOTHING
    is_open: bool = False  # whether the last operation takes on more work


class Tape:
    """Streams, as they are written."""

    def __init__(self) -> None:
        self._streams = [_Stream("compute")]
        self._group_streams: dict[int, int] = {}
        self._lock = threading.RLock()  # a communication thread records beside backward

    def add_stream(self, name: str) -> int:
        """Return the number of a new stream."""
        with self._lock:
            self._streams.append(_Stream(name))
            return len(self._streams) - 1

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all streams."""
        return tuple(stream.name for stream in self._streams)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of operations of every stream; what follows is a new operation."""
        for stream in self._streams:
            stream.is_open = False
        return tuple(len(stream.operations) for stream in self._streams)

    def num_operations(self, stream: int) -> int:
        """Return the number of operations of a stream."""
        return len(self._streams[stream].operations)

    def operations(self, stream: int) -> tuple[Recorded, ...]:
        """Return the operations of a stream."""
        return tuple(self._streams[stream].operations)

    def compute(
        self, stream: int, part: Part, *, flops: float = 0.0, num_bytes: float = 0.0, seconds: float = 0.0
    ) -> None:
        """Add work to a stream."""
        with self._lock:
            if not (flops or num_bytes or seconds):
                return
            on = self._streams[stream]
            last = on.operations[-1] if on.is_open else None
            if isinstance(last, Computed) and last.part == part and not on.waits:
                on.operations[-1] = last.plus(flops, num_bytes, seconds)
                return
            work = Computed(part=part, flops=flops, num_bytes=num_bytes, seconds=seconds)
            self._append(on, stream, work)

    def open(self, stream: int, part: Part) -> Position:
        """Return the place of work of a stream whose time is not known yet."""
        with self._lock:
            on = self._streams[stream]
            last = on.operations[-1] if on.is_open else None
            if not isinstance(last, Computed) or last.part != part or on.waits:
                self._append(on, stream, Computed(part=part))
            return Position(stream, len(on.operations) - 1)

    def end(self, stream: int, part: Part) -> None:
        """Let what a stream waits for be waited for by the end of its part, where no work follows."""
        with self._lock:
            on = self._streams[stream]
            if on.waits:
                self._append(on, stream, Computed(part=part))
                on.is_open = False

    def add_seconds(self, place: Position, seconds: float) -> None:
        """Add time to work."""
        operations = self._streams[place.stream].operations
        work = operations[place.position]
        assert isinstance(work, Computed)
        operations[place.position] = work.plus(0.0, 0.0, seconds)

    def collective(self, stream: int, collective: Collective, group_name: str) -> Mark:
        """Add a collective that a stream starts, and return the mark at which it has ended.

        It runs on the stream of its group, as on a communicator of NCCL, when the starting stream has come to it.
        """
        with self._lock:
            before = self.mark(stream)
            number = self._group_streams.get(collective.group)
            if number is None:
                number = self._group_streams[collective.group] = self.add_stream(group_name)
            on = self._streams[number]
            on.waits |= before
            self._append(on, number, collective)
            on.is_open = False
            return frozenset({Position(number, len(on.operations) - 1)})

    def mark(self, stream: int) -> Mark:
        """Return what must have ended when a stream has come so far."""
        with self._lock:
            on = self._streams[stream]
            on.is_open = False
            done = {Position(stream, len(on.operations) - 1)} if on.operations else set()
            return on.waits | done

    def wait(self, stream: int, mark: Mark) -> None:
        """Let the next operation of a stream start when a mark is over."""
        with self._lock:
            on = self._streams[stream]
            on.waits |= {one for one in mark if one.stream != stream}

    def _append(self, on: _Stream, number: int, operation: Recorded) -> None:
        on.operations.append(replace(operation, after=_latest(on.waits, number)))
        on.waits, on.is_open = NOTHING, True


def _latest(marks: Iterable[Position], stream: int) -> Mark:
    """Return the last position of every other stream: the earlier ones have ended then."""
    last: dict[int, int] = {}
    for number, position in marks:
        if number != stream:
            last[number] = max(position, last.get(number, -1))
    return frozenset(Position(*entry) for entry in last.items())


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
    ends = [cut + (0,) * (len(tape.names) - len(cut)) for cut in ((), *cuts)]
    shapes = [_shape(_cut_out(tape, *pair)[0]) for pair in pairwise(ends[skipped:])]
    number = len(shapes)
    for length in range(1, number // 2 + 1):
        if all(shapes[index] == shapes[index - length] for index in range(length, number)):
            return _mean_of(tape, ends, number, length)
    streams, dropped = _cut_out(tape, ends[skipped], ends[-1])
    return Period(streams, number, number == 1, dropped)


def _cut_out(tape: Tape, begin: tuple[int, ...], end: tuple[int, ...]) -> tuple[Streams, int]:
    """Return the operations between two cuts, and how many waits lead out of them."""
    dropped = 0
    streams = []
    for number, (first, last) in enumerate(zip(begin, end, strict=True)):
        row: list[Recorded] = []
        for operation in tape.operations(number)[first:last]:
            kept = frozenset(Position(to, at - begin[to]) for to, at in operation.after if at >= begin[to])
            # The first of all starts when the steps before have ended: there a wait says nothing new.
            dropped += len(operation.after) > len(kept) and bool(row)
            row.append(replace(operation, after=kept))
        streams.append(tuple(row))
    return tuple(streams), dropped


def _shape(step: Streams) -> tuple[tuple[object, ...], ...]:
    """Return what makes two steps alike: everything but the seconds, and compute that is next to none."""
    return tuple(
        tuple(one if isinstance(one, Collective) else (one.part, one.after) for one in stream) for stream in step
    )


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

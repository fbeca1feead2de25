"""What one rank did in an iteration, as CUDA numbers it: streams, launches, and waits of streams for one another."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from simnet.cluster.schedule import Group
from simnet.engine.result import Span
from simnet.engine.timeline import Streams
from simnet.strategies.program import Communicate, IterationPart, OperationId

COMPUTE_STREAM, FIRST_OTHER_STREAM = 7, 20
"""Numbers that torch's first streams usually have; tools take stream 0 for no stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedWait:
    """A wait of a stream for an event of another one.

    Attributes:
        launch: number of the wait.
        on_launch: number of the record of the event.
        work: place of what is waited for.
    """

    launch: int
    on_launch: int
    work: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedKernel:
    """An operation that ran, with times in whole nanoseconds, so that rounding cannot make slices overlap.

    Attributes:
        span: what ran.
        stream: number of its stream.
        start_ns: when it began, from the start of the iteration.
        end_ns: when it ended.
        launch: number of its launch, in the order of all launches of an iteration, from 1 on.
        waits: what its stream waits for first.
        part: part of the iteration, of compute.
        group: process groups of a collective.
    """

    span: Span
    stream: int
    start_ns: int
    end_ns: int
    launch: int
    waits: tuple[TracedWait, ...]
    part: IterationPart | None = None
    group: Group | None = None


def traced_kernels(spans: Sequence[Span], streams: Streams) -> tuple[TracedKernel, ...]:
    """Return what ran, in the order of launches.

    Args:
        spans: of one rank.
        streams: the program that it ran.
    """
    ordered = sorted(spans, key=lambda span: (span.start_s, span.end_s, span.operation))
    ran = {span.operation: at for at, span in enumerate(ordered) if span.operation is not None}
    found: list[TracedKernel] = []
    launch = 0
    for span in ordered:
        which = span.operation
        assert which is not None, "spans of a simulated program name its operations"
        waits = []
        for work in sorted(_waited(which, streams, ran)):
            launch += 1
            # The record of an event is numbered just after the launch of what it follows.
            waits.append(TracedWait(launch=launch, on_launch=found[work].launch + 1, work=work))
        found.append(_kernel(span, which, streams, launch + 1, tuple(waits)))
        launch += 2
    return tuple(found)


def _kernel(
    span: Span, which: OperationId, streams: Streams, launch: int, waits: tuple[TracedWait, ...]
) -> TracedKernel:
    operation = streams[which.stream][which.position]
    return TracedKernel(
        span=span,
        stream=stream_number(which.stream),
        start_ns=nanoseconds(span.start_s),
        end_ns=nanoseconds(span.end_s),
        launch=launch,
        waits=waits,
        part=None if isinstance(operation, Communicate) else operation.part,
        group=operation.schedule.group if isinstance(operation, Communicate) else None,
    )


def _waited(which: OperationId, streams: Streams, ran: Mapping[OperationId, int]) -> Iterator[int]:
    """Yield the places of what an operation waits for on other streams; what took no time did not run itself."""
    seen: set[OperationId] = set()
    asked = list(streams[which.stream][which.position].after)
    while asked:
        one = OperationId(*asked.pop())
        if one in seen or one.stream == which.stream:
            continue
        seen.add(one)
        if one in ran:
            yield ran[one]
            continue
        asked += streams[one.stream][one.position].after
        if one.position:
            asked.append(OperationId(one.stream, one.position - 1))


def stream_number(stream: int) -> int:
    """Return the number of a program's stream as CUDA might give it."""
    return COMPUTE_STREAM if stream == 0 else FIRST_OTHER_STREAM + stream - 1


def nanoseconds(seconds: float) -> int:
    """Return a time in whole nanoseconds, the resolution of the viewers."""
    return round(seconds * 1e9)


def phases(kernels: Sequence[TracedKernel]) -> Iterator[tuple[IterationPart, int, int]]:
    """Yield forward, backward and optimizer as one host would go through them, each from first start to last end [ns].

    Kernels of a codec belong to the phase in which they run.
    """
    computed = [one for one in kernels if one.stream == COMPUTE_STREAM and one.part not in {None, "encode", "decode"}]
    at = 0
    while at < len(computed):
        last = at
        while last + 1 < len(computed) and computed[last + 1].part == computed[at].part:
            last += 1
        part = computed[at].part
        assert part is not None
        yield part, computed[at].start_ns, computed[last].end_ns
        at = last + 1

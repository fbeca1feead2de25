"""What the spans of a traced step wait for: as CUDA's events say, or else as conservatively as the times allow.

With `enable_cuda_sync_events` the profiler writes every wait of a stream for an event of another one. Without, a
collective is taken to wait for what was launched before it, as NCCL's process group does. Compute is taken to wait for
a collective where it stood still until that had ended; where it is the first that was launched after a collective that
hands out values, and that had ended; and where it is the first of the optimizer.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from simnet.traces.kineto_events import TraceEvent
from simnet.traces.profiler_work import GLOO, TracedSpan

SYNC, STREAM_WAIT = "cuda_sync", "Stream Wait Event"
HANDS_OUT = ("all_gather", "broadcast", "all_to_all")
# Of clocks: a kernel that begins when another one ends may be written as beginning sooner.
TOLERANCE_S = 1e-6
# gloo's threads say that a collective has ended before they end its event, and may sleep between.
GLOO_TOLERANCE = 0.25


@dataclass(frozen=True, kw_only=True)
class StreamWait:
    """A stream that waits for an event of another one.

    Attributes:
        stream: that waits.
        launch: number of the wait; what has a higher one, waits.
        on_stream: on which the event was recorded.
        on_launch: number of the record; what has a lower one, is waited for.
    """

    stream: str
    launch: int
    on_stream: str
    on_launch: int


def stream_waits(events: Sequence[TraceEvent]) -> list[StreamWait]:
    """Return the waits that a trace tells, none if it was profiled without them."""
    return [found for event in events if event.category == SYNC and (found := _wait(event)) is not None]


def _wait(event: TraceEvent) -> StreamWait | None:
    names = ("stream", "correlation", "wait_on_stream", "wait_on_cuda_event_record_corr_id")
    numbers = [event.args.get(name) for name in names]
    if event.name != STREAM_WAIT or not all(type(one) is int and one >= 0 for one in numbers):
        return None
    stream, launch, on_stream, on_launch = numbers
    return StreamWait(stream=f"stream {stream}", launch=launch, on_stream=f"stream {on_stream}", on_launch=on_launch)  # type: ignore[arg-type]


def event_waits(spans: Sequence[TracedSpan], waits: Sequence[StreamWait]) -> list[set[int]]:
    """Return what each span waits for, by place, as the trace tells it."""
    by_stream: dict[str, list[tuple[int, int]]] = {}
    for at, one in enumerate(spans):
        by_stream.setdefault(one.stream, []).append((one.launch, at))
    for launches in by_stream.values():
        launches.sort()
    found: list[set[int]] = [set() for _ in spans]
    for wait in waits:
        waiting, ended = by_stream.get(wait.stream, []), by_stream.get(wait.on_stream, [])
        first = bisect_right(waiting, (wait.launch, len(spans)))
        last = bisect_left(ended, (wait.on_launch, -1)) - 1
        # Of the step before or after, one of both is not there.
        if first < len(waiting) and last >= 0:
            later, earlier = waiting[first][1], ended[last][1]
            if spans[earlier].start_s < spans[later].start_s:
                found[later].add(earlier)
    return found


def likely_waits(spans: Sequence[TracedSpan], main: str) -> list[set[int]]:
    """Return what each span waits for, by place, where the trace does not tell it.

    Args:
        spans: of one step, in the order of their start.
        main: the stream that computes most.
    """
    found: list[set[int]] = [set() for _ in spans]
    launched = sorted((at for at, one in enumerate(spans) if one.message is None), key=lambda at: _launch(spans[at]))
    times = [_launch(spans[at]) for at in launched]
    computed = [at for at, one in enumerate(spans) if one.stream == main and one.message is None]
    optimizer = [at for at in computed if spans[at].part == "optimizer"]
    computed_s, optimizer_s = ([spans[at].start_s for at in places] for places in (computed, optimizer))
    for at, one in enumerate(spans):
        if one.message is None:
            continue
        before = launched[: bisect_left(times, _launch(one))]
        # What is last of these has nearly always ended.
        found[at] |= set(islice((place for place in reversed(before) if _follows(one, spans[place])), 1))
        first = _first_after(spans, computed, computed_s, one)
        if first is not None and (one.message.kind in HANDS_OUT or _stood_still(spans, computed, first, one)):
            found[computed[first]].add(at)
        first = _first_after(spans, optimizer, optimizer_s, one)
        if first is not None:
            found[optimizer[first]].add(at)
    return found


def _launch(span: TracedSpan) -> tuple[float, int]:
    return span.launched_s, span.launch


def _first_after(
    spans: Sequence[TracedSpan], places: Sequence[int], starts: Sequence[float], one: TracedSpan
) -> int | None:
    """Return which of some places, in the order of their start, is the first that follows a collective."""
    for number in range(bisect_left(starts, _ended_s(one)), len(places)):
        span = spans[places[number]]
        if span.launched_s >= one.launched_s and _follows(span, one):
            return number
    return None


def _follows(span: TracedSpan, other: TracedSpan) -> bool:
    return span.start_s >= _ended_s(other) and span.start_s > other.start_s


def _ended_s(span: TracedSpan) -> float:
    """Return from when on something else may have known that a span had ended."""
    is_gloo = span.stream == GLOO
    return span.end_s - (GLOO_TOLERANCE * (span.end_s - span.start_s) if is_gloo else TOLERANCE_S)


def _stood_still(spans: Sequence[TracedSpan], computed: Sequence[int], number: int, collective: TracedSpan) -> bool:
    """Tell whether a stream did nothing from before the end of a collective until one of its spans began."""
    before_s = spans[computed[number - 1]].end_s if number else 0.0
    return before_s < _ended_s(collective)

"""A trace of torch.profiler read as a recorded step: its kernels or operators and collectives become streams.

With a GPU these are its kernels and copies, and a step is what the CPU launched in it. Without, compute is where
operators ran on the CPU, cut wherever a collective was launched, and the backend's threads are a stream of their own.

With `enable_cuda_sync_events` the profiler writes every wait of a stream for an event of another one. Where it does not
say them, a collective is taken to wait for what was launched before it, as NCCL's process group does. Compute is taken
to wait for a collective where it stood still until that had ended; where it is the first that was launched after a
collective that hands out values, and that had ended; and where it is the first of the optimizer.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from statistics import median_low
from typing import Literal

from msgspec.structs import replace

from simnet.core.errors import SimnetError, cut
from simnet.core.units import format_seconds
from simnet.strategies.program import IterationPart
from simnet.strategies.step_file import (
    OperationKind,
    RecordedGroup,
    RecordedLayout,
    RecordedOperation,
    StepSource,
)
from simnet.traces import kineto, layouts
from simnet.traces.kineto import Event, Phases, Span, Trace, TracedCollective
from simnet.traces.layouts import MAX_NAME, WORLD, TracedWork, WorldShape

COMPUTE, BACKEND = "compute", "gloo"
SYNC, STREAM_WAIT = "cuda_sync", "Stream Wait Event"
HANDS_OUT = ("all_gather", "broadcast", "all_to_all")
# Of clocks: a kernel that begins when another one ends may be written as beginning sooner.
TOLERANCE_S = 1e-6
# gloo's threads say that a collective has ended before they end its event, and may sleep between.
GLOO_TOLERANCE = 0.25


@dataclass(kw_only=True)
class _ProfileReader:
    """What is known while the steps of one rank are read, and what was found."""

    trace: Trace
    world: WorldShape
    groups: list[RecordedGroup] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class _StepWork:
    """What ran in one step or several, in the order of its start, and the part of the step of each."""

    step: Span
    spans: Sequence[Event]
    parts: Sequence[IterationPart]

    @cached_property
    def main(self) -> str:
        """The stream that computes most."""
        computed: dict[str, float] = {}
        for span in self.spans:
            if span.collective is None:
                computed[span.stream] = computed.get(span.stream, 0.0) + span.end_s - span.start_s
        return max(computed, key=lambda stream: computed[stream], default=COMPUTE)


def source_of(trace: Trace) -> StepSource:
    """Return where the step comes from."""
    device: Literal["cpu", "cuda"] = "cuda" if trace.on_gpu else "cpu"
    return StepSource(how="profiler", command=trace.where, device=device, gpu=trace.gpu, compute="timed")


def world_of(trace: Trace, num_nodes: int | None, ranks_per_node: int | None) -> WorldShape:
    """Return the nodes and ranks of the world, from the trace and the user."""
    gpus = len(trace.about.devices) if trace.on_gpu else None
    is_alone = not any(event.collective for event in trace.events) and not any(
        kineto.asks(event) for event in trace.events
    )
    distributed = trace.distributed
    says = distributed.world_size or any(group.ranks for group in distributed.pg_config)
    # Neither a collective nor an operator that asks for one: the process was alone.
    world_size = distributed.size if says else 1 if is_alone else None
    return layouts.world_shape(num_nodes, ranks_per_node, world_size, gpus, trace.where)


def layout_of(trace: Trace, world: WorldShape, step: int | None) -> RecordedLayout:
    """Return the step that a rank did: one that was profiled, or all of them where their collectives differ.

    `step` is the number of its ProfilerStep; by default the one of median duration is taken.

    Raises:
        SimnetError: there is no such step, or it is none of symmetric ranks.
    """
    trace.check_launches()
    reader = _ProfileReader(trace=trace, world=world)
    marks = trace.marks
    work = [_work(trace, (mark.start_s, mark.end_s)) for mark in marks]
    sent = [[_message(span, reader) for span in each.spans if span.collective] for each in work]
    alike = [[(message.kind, message.group, message.message_bytes) for message in each] for each in sent]
    if step is not None:
        names = [mark.name for mark in marks]
        if f"ProfilerStep#{step}" not in names:
            raise SimnetError(f"--step: {step}: {trace.where} has {', '.join(names)}; name one of these")
        chosen = work[names.index(f"ProfilerStep#{step}")]
    elif all(messages == alike[0] for messages in alike):
        lengths = [mark.end_s - mark.start_s for mark in marks]
        # The first steps warm up, and one of the others may hold a pause.
        number = lengths.index(median_low(lengths))
        chosen = work[number]
        reader.notes.append(f"{marks[number].name} of {len(marks)}: {format_seconds(lengths[number])}, the median")
    else:
        reader.notes.append(f"the {len(marks)} profiled steps differ in their collectives, and count as one period")
        return _layout(_work(trace, (marks[0].start_s, marks[-1].end_s)), reader, num_steps=len(marks))
    return _layout(chosen, reader, num_steps=1)


def _layout(work: _StepWork, reader: _ProfileReader, *, num_steps: int) -> RecordedLayout:
    trace, spans = reader.trace, work.spans
    if not spans:
        raise SimnetError(f"{trace.where}: nothing was computed in the profiled step; profile a training step")
    _note_left_out(work, reader)
    after = _waits(work, reader)
    seconds, exposed_s = _own_seconds(work, after, _idle_since(work, reader), None if trace.on_gpu else work.step[1])
    ran_s = sum(span.end_s - span.start_s for span in spans if span.collective is None)
    idle_s = sum(span_s for span, span_s in zip(spans, seconds, strict=True) if span.collective is None) - ran_s
    # A hundredth is less than the clocks of a trace are worth.
    if idle_s > 0.01 * ran_s:
        reader.notes.append(
            f"compute works {format_seconds(ran_s)} and waits {format_seconds(idle_s)} for its host: both count"
        )
    if exposed_s:
        reader.notes.append(f"compute stood still for {format_seconds(exposed_s)} until collectives had ended")
    traced = [
        TracedWork(
            key=at,
            rank_in_time=(span.start_s, span.launch),
            after=frozenset(after[at]),
            stream=span.stream,
            operation=_message(span, reader)
            if span.collective
            else RecordedOperation(
                kind="compute", part=work.parts[at], seconds=seconds[at], name=cut(span.name, MAX_NAME)
            ),
        )
        for at, span in enumerate(spans)
    ]
    # The stream that computes most is the first one, as a step file has it.
    names = {stream: stream for stream in dict.fromkeys([work.main, *(span.stream for span in spans)])}
    layout = RecordedLayout(
        num_nodes=reader.world.num_nodes,
        ranks_per_node=reader.world.ranks_per_node,
        num_steps=num_steps,
        groups=tuple(reader.groups),
        streams=layouts.merged(layouts.in_streams(traced, names, trace.where)),
        notes=tuple(f"{trace.where}: {note}" for note in reader.notes),
    )
    return layouts.with_bytes(layout, trace.where, "In msg nelems")


def _work(trace: Trace, step: Span) -> _StepWork:
    """Return what ran for a step: on a GPU all that the CPU launched within it."""
    inside = [event for event in trace.events if step[0] <= event.start_s < step[1]]
    known = kineto.phases(inside)
    if trace.on_gpu:
        ran = [
            event for event in trace.events if event.category in kineto.ON_GPU and step[0] <= event.launched_s < step[1]
        ]
        spans = sorted(ran, key=lambda event: (event.start_s, event.launch))
    else:
        spans = sorted(_on_cpu(trace, step, inside, known), key=_start)
    return _StepWork(step=step, spans=spans, parts=[known.part_at(span.launched_s) for span in spans])


def _on_cpu(trace: Trace, step: Span, inside: Sequence[Event], known: Phases) -> Iterator[Event]:
    """Yield what ran on the CPU in one step: compute between launches of collectives, and the collectives."""
    sent = [event for event in _of_backend(trace.events) if step[0] <= event.launched_s < step[1]]
    # A collective may wait for what ran before its launch alone, and a part of the step ends with its phase.
    cuts = sorted(
        {event.launched_s for event in sent}
        | {time for spans in (known.backward, known.optimizer) for span in spans for time in span}
    )
    for start, end in kineto.union(event for event in inside if kineto.is_compute(event, on_gpu=False)):
        inner = cuts[bisect_right(cuts, start) : bisect_left(cuts, end)]
        for begin, stop in zip([start, *inner], [*inner, end], strict=True):
            yield Event(name="", category="cpu_op", start_s=begin, end_s=stop, launched_s=begin, stream=COMPUTE)
    yield from sent


def _of_backend(events: Sequence[Event]) -> Iterator[Event]:
    """Yield the backend's collectives: its threads take them in the order in which operators of c10d launched them."""
    ran = sorted((event for event in events if event.collective), key=_start)
    launches = sorted((event for event in events if event.category == "cpu_op" and kineto.asks(event)), key=_start)
    asked = [kineto.kind_of(launch.name) for launch in launches]
    kinds = [event.collective.kind for event in ran if event.collective]
    # Where the trace begins or ends between launch and run, nothing says which launch is whose.
    is_paired = len(asked) == len(kinds) and all(map(_runs_as, asked, kinds))
    for at, event in enumerate(ran):
        assert event.collective is not None
        kind, launch = (asked[at], launches[at]) if is_paired else (kinds[at], event)
        yield replace(event, stream=BACKEND, launched_s=launch.start_s, collective=replace(event.collective, kind=kind))


def _runs_as(asked: OperationKind | None, ran: OperationKind | None) -> bool:
    """Tell whether gloo may run a collective as another one: it has no reduce-scatter of its own."""
    return asked == ran or (asked, ran) == ("reduce_scatter", "all_reduce")


def _start(event: Event) -> float:
    return event.start_s


def _note_left_out(work: _StepWork, reader: _ProfileReader) -> None:
    """Note what a backend does on the CPU beside a GPU, of which it is no work; refuse a step that has nothing else."""
    trace = reader.trace
    if not trace.on_gpu:
        return
    inside = (event for event in trace.events if work.step[0] <= event.start_s < work.step[1])
    left_out = [event for event in inside if kineto.is_of_a_backend(event)]
    if left_out and not any(span.collective for span in work.spans):
        raise SimnetError(
            f"{trace.where}: {left_out[0].name}: all collectives run on the CPU while the work runs on a GPU, so the "
            "trace does not show what waits for them; profile with NCCL or another backend on the GPU"
        )
    if left_out:
        reader.notes.append(f"{len(left_out)} collectives on the CPU, such as {left_out[0].name}, are left out")


def _idle_since(work: _StepWork, reader: _ProfileReader) -> float | None:
    """Return from when on the stream that computes may have waited for its host: since it ended the step before."""
    trace, begin_s = reader.trace, work.step[0]
    if not trace.on_gpu:
        return begin_s
    earlier = [mark for mark in trace.marks if mark.end_s <= begin_s + 1e-9]
    # The trace does not show what the stream did before its first step.
    if not earlier:
        return None
    before = _work(trace, (earlier[-1].start_s, begin_s)).spans
    return max((span.end_s for span in before if span.stream == work.main), default=None)


def _message(event: Event, reader: _ProfileReader) -> RecordedOperation:
    """Return a collective as an operation; its process group may be new.

    Raises:
        SimnetError: it does not say its bytes or its group, or is none that a step file holds.
    """
    sent, place = event.collective, f"{reader.trace.where}: {event.name}"
    assert sent is not None
    if sent.kind is None and kineto.is_point_to_point(sent.name):
        raise SimnetError(
            f"{place}: {sent.name!r}: ranks that send to single others, as stages of a pipeline do, are not alike, and "
            "a step file holds symmetric ranks; profile a run without pipeline parallelism"
        )
    # gloo says no message of a barrier, which has none.
    if sent.in_bytes is None and (sent.kind != "barrier" or reader.trace.on_gpu):
        raise SimnetError(f"{place}: {sent.unknown}")
    if sent.kind is None:
        raise SimnetError(f"{place}: {sent.name!r}: no collective of a step file; profile a run without it")
    group = _group(sent, reader, place)
    num_bytes = sent.in_bytes or 0.0
    if sent.kind == "all_gather":
        # A step file counts the whole array, of which a rank puts in its part.
        num_bytes = sent.out_bytes or num_bytes * reader.groups[group].size
    return RecordedOperation(
        kind=sent.kind,
        group=group,
        message_bytes=0.0 if sent.kind == "barrier" else num_bytes,
        dtype=sent.dtype,
        name=cut(event.name, MAX_NAME),
    )


def _group(sent: TracedCollective, reader: _ProfileReader, place: str) -> int:
    """Return the number of a collective's process group, which may be new."""
    trace, says = reader.trace, sent.pg_name or sent.ranks or sent.group_size
    if trace.on_gpu and not says and not trace.distributed.pg_config:
        raise SimnetError(f"{place}: does not say its process group; profile with torch 2.4 or later")
    ranks = trace.distributed.ranks_of(sent, reader.world.size)
    if not ranks:
        raise SimnetError(
            f"{trace.where}: process group {sent.pg_name!r}: the trace does not tell the ranks of it; profile with "
            "torch 2.4 or later and NCCL"
        )
    return layouts.number_of_group(ranks, sent.pg_name or WORLD, reader.world, reader.groups, trace.where)


def _waits(work: _StepWork, reader: _ProfileReader) -> list[set[int]]:
    """Return what each span waits for, by place: as CUDA's events say, else as conservatively as the times allow."""
    spans = work.spans
    waits: list[set[int]] = [set() for _ in spans]
    with_events: set[str] = set()
    is_whole = True
    by_stream: dict[str, list[tuple[int, int]]] = {}
    for at, span in enumerate(spans):
        by_stream.setdefault(span.stream, []).append((span.launch, at))
    # A stream runs its work in the order of launches, by which waits are numbered.
    for launches in by_stream.values():
        launches.sort()
    for event in reader.trace.events if reader.trace.on_gpu else ():
        if event.category != SYNC or event.name != STREAM_WAIT:
            continue
        names = ("stream", "correlation", "wait_on_stream", "wait_on_cuda_event_record_corr_id")
        stream, launch, on_stream, on_launch = (kineto.whole(event.args.get(name)) for name in names)
        if stream is None or launch is None or on_stream is None or on_launch is None:
            is_whole = False
            continue
        with_events |= {f"stream {stream}", f"stream {on_stream}"}
        # What was launched on the stream after its wait, waits for what was launched on the other before its record.
        waiting, ended = by_stream.get(f"stream {stream}", []), by_stream.get(f"stream {on_stream}", [])
        first = bisect_right(waiting, (launch, len(spans)))
        last = bisect_left(ended, (on_launch, -1)) - 1
        # Of the step before or after, one of both is not there.
        if first < len(waiting) and last >= 0:
            later, earlier = waiting[first][1], ended[last][1]
            if spans[earlier].start_s < spans[later].start_s:
                waits[later].add(earlier)
    # Where some waits are incomplete, a collective that something waits for is taken to be told in full.
    waited = set().union(*waits)
    sent = [at for at, span in enumerate(spans) if span.collective is not None]
    untold = [at for at in sent if spans[at].stream not in with_events or (not is_whole and at not in waited)]
    if untold:
        reader.notes.append("which streams wait for which is not in the trace, and follows from its times")
        is_ddp = any(event.name == kineto.FORWARD for event in reader.trace.events)
        _add_likely_waits(waits, work, untold, is_ddp=is_ddp)
    return waits


def _add_likely_waits(waits: Sequence[set[int]], work: _StepWork, sent: Iterable[int], *, is_ddp: bool) -> None:
    """Add what collectives, by place, wait for, and what waits for them, where the trace does not tell it."""
    spans = work.spans
    launched = sorted(
        (at for at, span in enumerate(spans) if span.collective is None), key=lambda at: _launch(spans[at])
    )
    times = [_launch(spans[at]) for at in launched]
    computed = [at for at, span in enumerate(spans) if span.stream == work.main and span.collective is None]
    optimizer = [at for at in computed if work.parts[at] == "optimizer"]
    for at in sent:
        span = spans[at]
        assert span.collective is not None
        before = launched[: bisect_left(times, _launch(span))]
        # What is last of these has nearly always ended.
        waits[at].update(islice((place for place in reversed(before) if _follows(span, spans[place])), 1))
        first = _first_after(spans, computed, span)
        if first is not None:
            stood_still = (spans[computed[first - 1]].end_s if first else 0.0) < _ended_s(span)
            if stood_still or span.collective.kind in HANDS_OUT:
                waits[computed[first]].add(at)
        # The optimizer reads every gradient, whether or not the times show that it waited.
        first = _first_after(spans, optimizer, span)
        if span.stream == BACKEND and is_ddp and work.parts[at] == "backward":
            # DDP waits for it before the backward pass is over, however late its thread wrote that it had ended.
            first = next((n for n, place in enumerate(optimizer) if spans[place].start_s > span.start_s), None)
        if first is not None:
            waits[optimizer[first]].add(at)


def _launch(span: Event) -> tuple[float, int]:
    return span.launched_s, span.launch


def _first_after(spans: Sequence[Event], places: Sequence[int], collective: Event) -> int | None:
    """Return which of some places, in the order of their start, is the first that follows a collective."""
    for number in range(bisect_left(places, _ended_s(collective), key=lambda at: spans[at].start_s), len(places)):
        span = spans[places[number]]
        if span.launched_s >= collective.launched_s and _follows(span, collective):
            return number
    return None


def _follows(span: Event, other: Event) -> bool:
    return span.start_s >= _ended_s(other) and span.start_s > other.start_s


def _ended_s(span: Event) -> float:
    """Return from when on something else may have known that a span had ended."""
    is_gloo = span.stream == BACKEND
    return span.end_s - (GLOO_TOLERANCE * (span.end_s - span.start_s) if is_gloo else TOLERANCE_S)


def _own_seconds(
    work: _StepWork, after: Sequence[Set[int]], begin_s: float | None, end_s: float | None
) -> tuple[list[float], float]:
    """Return the seconds that each span takes of a step: its own, and the idle time in front of it.

    The stream that computes most idles while its host does something else, which takes as long on every network. It
    also idles until what it waits for has ended: that part is none of its own, and the second result.

    Args:
        work: of one step.
        after: places of what each span waits for.
        begin_s: from when on the host may have kept the stream waiting; None: from its first span on.
        end_s: until when it may have, after the last span; None: until that.
    """
    spans, main, exposed_s = work.spans, work.main, 0.0
    seconds = [span.end_s - span.start_s for span in spans]
    before, last = begin_s, None
    for at, span in enumerate(spans):
        if span.stream == main and span.collective is None:
            ready_s = max((spans[other].end_s for other in after[at]), default=0.0)
            if before is not None:
                seconds[at] += max(0.0, span.start_s - max(before, ready_s))
                exposed_s += max(0.0, min(span.start_s, ready_s) - before)
            before, last = max(span.end_s, before or 0.0), at
    if last is not None and before is not None and end_s is not None and end_s > before:
        # The host may wait there for what no compute waits for, as for a barrier.
        others = kineto.union_of_spans((span.start_s, span.end_s) for span in spans if span.stream != main)
        busy = (min(end_s, stop) - max(before, begin) for begin, stop in others if begin < end_s and stop > before)
        seconds[last] += end_s - before - sum(busy)
    return seconds, exposed_s

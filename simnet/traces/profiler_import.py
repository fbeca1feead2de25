"""A trace of torch.profiler read as a recorded step: its kernels or operators and collectives become streams."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Any, Literal

from simnet.core import files
from simnet.core.errors import SimnetError, cut
from simnet.core.units import format_seconds
from simnet.strategies.step_file import RecordedGroup, RecordedLayout, RecordedOperation, StepSource
from simnet.traces import kineto_events, process_groups, profiler_waits, profiler_work, trace_graph
from simnet.traces.kineto_events import Span, TracedRank, TraceEvent, TraceHeader
from simnet.traces.process_groups import Ranks, WorldShape
from simnet.traces.profiler_work import TracedMessage, TracedSpan
from simnet.traces.trace_graph import TracedWork

WORLD = "world"
MAX_NAME = 80


@dataclass(kw_only=True)
class ProfiledRank:
    """The trace of one rank: its events, and what it tells besides."""

    where: str
    events: Sequence[TraceEvent]
    marks: Sequence[TraceEvent]
    about: TraceHeader

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU worked."""
        return any(event.category == "kernel" for event in self.events)

    @property
    def distributed(self) -> TracedRank:
        """What the trace tells of ranks; one rank if it tells nothing."""
        return self.about.distributed or TracedRank()

    @property
    def source(self) -> StepSource:
        """Where the step comes from."""
        gpu = self.about.devices[0].name if self.on_gpu and self.about.devices else ""
        device: Literal["cpu", "cuda"] = "cuda" if self.on_gpu else "cpu"
        return StepSource(how="profiler", command=self.where, device=device, gpu=gpu, compute="timed")


def parse(data: Mapping[str, Any], path: Path) -> ProfiledRank:
    """Return what a trace holds.

    Raises:
        SimnetError: there are no steps in it, or an event is of another form.
    """
    events = kineto_events.events(data, path)
    about = kineto_events.header(data, path)
    return ProfiledRank(where=files.label(path), events=events, marks=kineto_events.steps(events, path), about=about)


def world(traced: ProfiledRank, num_nodes: int | None, ranks_per_node: int | None) -> WorldShape:
    """Return the nodes and ranks of the world, from the trace and the user.

    Raises:
        SimnetError: they say too little, or contradict each other.
    """
    known = traced.about.distributed
    gpus = len(traced.about.devices) if traced.on_gpu else None
    sends = any(kineto_events.is_communication(event, on_gpu=traced.on_gpu) for event in traced.events)
    alone = None if sends else 1
    world_size = known.world_size if known else alone
    return process_groups.world_shape(num_nodes, ranks_per_node, world_size, gpus, traced.where)


def layout_of(traced: ProfiledRank, shape: WorldShape, step: int | None) -> RecordedLayout:
    """Return the step that a rank did: one that was profiled, or all of them where their collectives differ.

    Args:
        traced: the trace of a rank.
        shape: nodes and ranks of the world.
        step: number of the ProfilerStep; None for the one of median duration.

    Raises:
        SimnetError: there is no such step, or it is none of symmetric ranks.
    """
    groups: list[RecordedGroup] = []
    spans = [(mark.start_s, mark.end_s) for mark in traced.marks]
    found = [_spans(traced, one) for one in spans]
    sent = [_messages(one, traced, shape, groups) for one in found]
    notes: list[str] = []
    if step is not None:
        chosen = _numbered(traced, step)
    elif all(one == sent[0] for one in sent):
        lengths = [end - start for start, end in spans]
        chosen = lengths.index(median_low(lengths))
        notes.append(f"{traced.marks[chosen].name} of {len(spans)}: {format_seconds(lengths[chosen])}, the median")
    else:
        notes.append(f"the {len(spans)} profiled steps differ in their collectives, and count as one period")
        whole = (spans[0][0], spans[-1][1])
        return _layout(traced, whole, _spans(traced, whole), shape, groups, notes, num_steps=len(spans))
    return _layout(traced, spans[chosen], found[chosen], shape, groups, notes, num_steps=1)


def _numbered(traced: ProfiledRank, step: int) -> int:
    names = [mark.name for mark in traced.marks]
    name = f"ProfilerStep#{step}"
    if name not in names:
        raise SimnetError(f"--step: {step}: {traced.where} has {', '.join(names)}; name one of these")
    return names.index(name)


def _spans(traced: ProfiledRank, step: Span) -> list[TracedSpan]:
    if traced.on_gpu:
        return profiler_work.gpu_spans(traced.events, step, traced.where)
    return profiler_work.cpu_spans(traced.events, step, traced.where)


def _messages(
    spans: Sequence[TracedSpan], traced: ProfiledRank, shape: WorldShape, groups: list[RecordedGroup]
) -> list[tuple[str, int, float]]:
    """Return the collectives of a step in order, to compare: kind, group and bytes."""
    sent = [_operation(one, 0.0, traced, shape, groups) for one in spans if one.message is not None]
    return [(one.kind, one.group, one.message_bytes) for one in sent]


def _layout(  # noqa: PLR0913, PLR0917 - what is known of one step
    traced: ProfiledRank,
    step: Span,
    spans: Sequence[TracedSpan],
    shape: WorldShape,
    groups: list[RecordedGroup],
    notes: list[str],
    *,
    num_steps: int,
) -> RecordedLayout:
    if not spans:
        raise SimnetError(f"{traced.where}: nothing was computed in the profiled step; profile a training step")
    main = profiler_work.main_stream(spans)
    waits = profiler_waits.stream_waits(traced.events)
    after = profiler_waits.event_waits(spans, waits) if waits else profiler_waits.likely_waits(spans, main)
    if not waits and any(one.message for one in spans):
        notes.append("which streams wait for which is not in the trace, and follows from its times")
    begin_s = _idle_since(traced, step, main)
    seconds = profiler_work.own_seconds(spans, after, begin_s, None if traced.on_gpu else step[1])
    _note_idle(spans, seconds, notes)
    work = [
        TracedWork(
            key=at,
            rank_in_time=(one.start_s, one.launch),
            after=frozenset(after[at]),
            stream=one.stream,
            operation=_operation(one, seconds[at], traced, shape, groups),
        )
        for at, one in enumerate(spans)
    ]
    names = {stream: stream for stream in dict.fromkeys([main, *(one.stream for one in spans)])}
    streams = trace_graph.merged(trace_graph.in_streams(work, names, traced.where))
    return RecordedLayout(
        num_nodes=shape.num_nodes,
        ranks_per_node=shape.ranks_per_node,
        num_steps=num_steps,
        groups=tuple(groups),
        streams=streams,
        notes=tuple(f"{traced.where}: {note}" for note in notes),
    )


def _idle_since(traced: ProfiledRank, step: Span, main: str) -> float | None:
    """Return from when on the stream that computes may have waited for its host: since it ended the step before."""
    if not traced.on_gpu:
        return step[0]
    earlier = [mark for mark in traced.marks if mark.end_s <= step[0] + 1e-9]
    if not earlier:
        return None
    before = profiler_work.gpu_spans(traced.events, (earlier[-1].start_s, step[0]), traced.where)
    return max((one.end_s for one in before if one.stream == main), default=None)


def _note_idle(spans: Sequence[TracedSpan], seconds: Sequence[float], notes: list[str]) -> None:
    ran_s = sum(one.end_s - one.start_s for one in spans if one.message is None)
    idle_s = sum(own for one, own in zip(spans, seconds, strict=True) if one.message is None) - ran_s
    if idle_s > 0.01 * ran_s:
        notes.append(
            f"compute works {format_seconds(ran_s)} and waits {format_seconds(idle_s)} for its host: both count"
        )


def _operation(
    one: TracedSpan, seconds: float, traced: ProfiledRank, shape: WorldShape, groups: list[RecordedGroup]
) -> RecordedOperation:
    if one.message is None:
        return RecordedOperation(kind="compute", part=one.part, seconds=seconds, name=cut(one.name, MAX_NAME))
    group = _group(one.message, traced, shape, groups)
    return RecordedOperation(
        kind=one.message.kind,
        group=group,
        message_bytes=_message_bytes(one.message, groups[group].size),
        dtype=one.message.dtype,
        name=cut(one.name, MAX_NAME),
    )


def _message_bytes(message: TracedMessage, group_size: int) -> float:
    """Return the whole array of one group."""
    if message.kind == "barrier":
        return 0.0
    if message.kind == "all_gather":
        return message.out_bytes or message.in_bytes * group_size
    return message.in_bytes


def _group(message: TracedMessage, traced: ProfiledRank, shape: WorldShape, groups: list[RecordedGroup]) -> int:
    """Return the number of a collective's process group, which may be new."""
    ranks, name = _group_ranks(message, traced, shape)
    found = process_groups.shape_of(ranks, name or WORLD, shape, traced.where)
    for number, known in enumerate(groups):
        if (known.size, known.stride) == (found.size, found.stride):
            return number
    groups.append(found)
    return len(groups) - 1


def _group_ranks(message: TracedMessage, traced: ProfiledRank, shape: WorldShape) -> tuple[Ranks, str]:
    """Return ranks and name of a collective's process group.

    Raises:
        SimnetError: the trace does not tell them.
    """
    known = {one.pg_name: one.ranks for one in traced.distributed.pg_config}
    if known.get(message.pg_name):
        return known[message.pg_name], message.pg_name
    if message.ranks:
        return message.ranks, message.pg_name
    everyone = tuple(range(shape.size))
    # gloo does not name the group: where all have the same ranks, or there is none, it must be these.
    several = {tuple(sorted(ranks)) for ranks in known.values() if len(ranks) > 1}
    if not message.group_size and len(several) == 1:
        return next(iter(several)), ""
    if message.group_size == shape.size or (not message.group_size and not several):
        return everyone, ""
    raise SimnetError(
        f"{traced.where}: process group {message.pg_name!r}: the trace does not tell the ranks of it; profile with "
        "torch 2.4 or later and NCCL"
    )

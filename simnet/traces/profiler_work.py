"""The work of one step in a trace of torch.profiler: spans of streams, each with when it was launched, and by whom.

With a GPU these are its kernels and copies. Without, compute is where operators ran on the CPU, cut wherever a
collective was launched, and gloo's threads are the stream of the collectives.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from simnet.core.errors import SimnetError, shown
from simnet.strategies.program import IterationPart
from simnet.strategies.step_file import OperationKind
from simnet.traces import kineto_events
from simnet.traces.kineto_events import Span, TraceEvent

ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
COMPUTE, GLOO = "compute", "gloo"
_KINDS: tuple[tuple[str, OperationKind], ...] = (
    ("allreduce", "all_reduce"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("reduce", "reduce"),
)
"""Names of collectives without underscores, the longer ones first."""
_DTYPES = {
    "Float": "fp32", "float": "fp32", "Half": "fp16", "c10::Half": "fp16", "BFloat16": "bf16", "c10::BFloat16": "bf16",
    "Byte": "uint8", "unsigned char": "uint8", "Long": "int64", "long int": "int64", "Int": "int32", "int": "int32",
    "Double": "fp64", "double": "fp64",
}  # fmt: skip
_POINT_TO_POINT = ("send", "recv")
WITH_SHAPES = "profile with record_shapes=True"


@dataclass(frozen=True, kw_only=True)
class TracedMessage:
    """What a collective carries.

    Attributes:
        kind: the collective.
        in_bytes: input of a rank.
        out_bytes: output of a rank; None where the trace does not say it.
        dtype: number format, for people.
        pg_name: name of the process group; "" where the trace does not say it.
        ranks: of the process group; () where the trace does not say them.
        group_size: ranks of it; 0 where the trace does not say it.
    """

    kind: OperationKind
    in_bytes: float
    out_bytes: float | None = None
    dtype: str = ""
    pg_name: str = ""
    ranks: tuple[int, ...] = ()
    group_size: int = 0


@dataclass(frozen=True, kw_only=True)
class TracedSpan:
    """Something that ran on a stream.

    Attributes:
        stream: by name.
        start_s: when it began to run.
        end_s: when it had ended.
        launched_s: when the CPU launched it.
        launch: number of its launch, as CUDA counts; 0 without a GPU.
        part: of the step.
        name: for people.
        message: of a collective; None for compute.
    """

    stream: str
    start_s: float
    end_s: float
    launched_s: float
    launch: int = 0
    part: IterationPart
    name: str = ""
    message: TracedMessage | None = None


@dataclass(frozen=True, kw_only=True)
class Phases:
    """When the CPU was in backward and in the optimizer: spans without overlaps."""

    backward: Sequence[Span]
    optimizer: Sequence[Span]
    last_backward_s: float = field(default=float("inf"))

    def part_at(self, time_s: float) -> IterationPart:
        """Return the part of the step that launched something: what follows backward belongs to the optimizer."""
        if kineto_events.is_within(time_s, self.optimizer):
            return "optimizer"
        if kineto_events.is_within(time_s, self.backward):
            return "backward"
        return "optimizer" if time_s > self.last_backward_s else "forward"


def phases(inside: Sequence[TraceEvent]) -> Phases:
    """Return the phases that events of a step on the CPU tell."""
    on_cpu = [event for event in inside if event.category in ("cpu_op", "user_annotation")]
    backward = kineto_events.union(event for event in on_cpu if event.name.startswith(kineto_events.BACKWARD))
    return Phases(
        backward=backward,
        optimizer=kineto_events.union(event for event in on_cpu if kineto_events.OPTIMIZER.match(event.name)),
        last_backward_s=backward[-1][1] if backward else float("inf"),
    )


def gpu_spans(events: Sequence[TraceEvent], step: Span, where: str) -> list[TracedSpan]:
    """Return what the GPU did for one step: all that the CPU launched within it.

    Raises:
        SimnetError: a collective does not say its message, or is a send or receive.
    """
    launched = kineto_events.launch_times(events)
    named = [one.args for one in events if one.name == "record_param_comms" and kineto_events.LAUNCH_ID in one.args]
    operators = {kineto_events.number(args, kineto_events.LAUNCH_ID): args for args in named}
    known = phases([one for one in events if step[0] <= one.start_s < step[1]])
    found = []
    for event in events:
        if event.category not in ON_GPU:
            continue
        launch = kineto_events.number(event.args, "correlation")
        launched_s = launched.get(launch, event.start_s)
        if step[0] <= launched_s < step[1]:
            found.append(
                TracedSpan(
                    stream=f"stream {kineto_events.number(event.args, 'stream')}",
                    start_s=event.start_s,
                    end_s=event.end_s,
                    launched_s=launched_s,
                    launch=launch,
                    part=known.part_at(launched_s),
                    name=event.name,
                    message=_nccl_message(event, operators, where),
                )
            )
    return sorted(found, key=lambda one: (one.start_s, one.launch))


def _nccl_message(event: TraceEvent, operators: Mapping[int, Mapping[str, Any]], where: str) -> TracedMessage | None:
    """Return the message of NCCL's kernel, which has it itself or by the operator that launched it."""
    if not kineto_events.is_communication(event, on_gpu=True):
        return None
    args = event.args
    if "In msg nelems" not in args:
        args = operators.get(kineto_events.number(args, kineto_events.LAUNCH_ID) or -1, {})
    place = f"{where}: {event.name}"
    if "In msg nelems" not in args:
        raise SimnetError(f"{place}: does not say its message; {WITH_SHAPES}, with torch 2.2 or later")
    dtype = str(args.get("dtype"))
    kind = kind_of(str(args.get("Collective name", "")) or event.name, place)
    if dtype not in kineto_events.ITEM_BYTES:
        raise SimnetError(f"{place}: dtype: {shown(args.get('dtype'))}: its size is not known; send another dtype")
    item = kineto_events.ITEM_BYTES[dtype]
    return TracedMessage(
        kind=kind,
        in_bytes=item * kineto_events.count(args["In msg nelems"]),
        out_bytes=item * kineto_events.count(args.get("Out msg nelems")) if "Out msg nelems" in args else None,
        dtype=_DTYPES.get(dtype, dtype),
        pg_name=str(args.get("Process Group Name", "")),
        ranks=kineto_events.ranks_of(args.get("Process Group Ranks")),
        group_size=kineto_events.number(args, "Group size"),
    )


def kind_of(name: str, place: str) -> OperationKind:
    """Return the collective that a name of torch.distributed, NCCL or gloo means.

    Raises:
        SimnetError: it is a send or receive, or none that a step file holds.
    """
    plain = name.lower().replace("_", "").removeprefix("gloo:").removeprefix("c10d::")
    if plain.startswith(_POINT_TO_POINT):
        raise SimnetError(
            f"{place}: {name!r}: ranks that send to single others, as stages of a pipeline do, are not alike, and a "
            "step file holds symmetric ranks; profile a run without pipeline parallelism"
        )
    for word, kind in _KINDS:
        if word in plain:
            return kind
    raise SimnetError(f"{place}: {name!r}: no collective of a step file; profile a run without it")


def cpu_spans(events: Sequence[TraceEvent], step: Span, where: str) -> list[TracedSpan]:
    """Return what ran on the CPU in one step: compute between launches of collectives, and gloo's collectives.

    Raises:
        SimnetError: a collective does not say its message.
    """
    inside = [one for one in events if step[0] <= one.start_s < step[1]]
    known = phases(inside)
    sent = list(_gloo_spans(events, step, known, where))
    cuts = sorted(
        {one.launched_s for one in sent}
        | {time for spans in (known.backward, known.optimizer) for span in spans for time in span}
    )
    ran = kineto_events.union(one for one in inside if kineto_events.is_compute(one, on_gpu=False))
    computed = [
        TracedSpan(stream=COMPUTE, start_s=start, end_s=end, launched_s=start, part=known.part_at(start))
        for span in ran
        for start, end in _cut(span, cuts)
    ]
    return sorted([*computed, *sent], key=lambda one: one.start_s)


def _cut(span: Span, cuts: Sequence[float]) -> Iterator[Span]:
    """Yield the pieces of a span between times."""
    start, end = span
    for time in cuts[bisect_right(cuts, start) :]:
        if time >= end:
            break
        yield start, time
        start = time
    yield start, end


def _gloo_spans(events: Sequence[TraceEvent], step: Span, known: Phases, where: str) -> Iterator[TracedSpan]:
    """Yield gloo's collectives: its threads take them in the order in which operators of c10d have launched them."""
    ran = sorted((one for one in events if kineto_events.is_communication(one, on_gpu=False)), key=_start)
    launches = sorted((one for one in events if one.category == "cpu_op" and _launches(one)), key=_start)
    asked = [kind_of(one.name, where) for one in launches]
    kinds = [kind_of(one.name, where) for one in ran]
    # Where the trace begins or ends between launch and run, nothing says which launch is whose.
    is_paired = len(asked) == len(kinds) and all(map(_runs_as, asked, kinds))
    for at, event in enumerate(ran):
        kind = asked[at] if is_paired else kinds[at]
        launched_s = launches[at].start_s if is_paired else event.start_s
        if step[0] <= launched_s < step[1]:
            yield TracedSpan(
                stream=GLOO,
                start_s=event.start_s,
                end_s=event.end_s,
                launched_s=launched_s,
                part=known.part_at(launched_s),
                name=event.name,
                message=_gloo_message(event, kind, where),
            )


def _runs_as(asked: OperationKind, ran: OperationKind) -> bool:
    """Tell whether gloo may run a collective as another one: it has no reduce-scatter of its own."""
    return asked == ran or (asked, ran) == ("reduce_scatter", "all_reduce")


def _start(event: TraceEvent) -> float:
    return event.start_s


def _launches(event: TraceEvent) -> bool:
    plain = event.name.lower().replace("_", "")
    return plain.startswith("c10d::") and any(word in plain for word, _ in _KINDS)


def _gloo_message(event: TraceEvent, kind: OperationKind, where: str) -> TracedMessage:
    num_bytes = kineto_events.input_bytes(event.args)
    if not num_bytes and kind != "barrier":
        raise SimnetError(f"{where}: {event.name}: does not say its message; {WITH_SHAPES}")
    kinds = event.args.get("Input type")
    dtype = str(kinds[0]) if isinstance(kinds, list) and kinds else ""
    return TracedMessage(kind=kind, in_bytes=num_bytes, dtype=_DTYPES.get(dtype, dtype))


def main_stream(spans: Sequence[TracedSpan]) -> str:
    """Return the stream that computes most."""
    computed: dict[str, float] = {}
    for one in spans:
        if one.message is None:
            computed[one.stream] = computed.get(one.stream, 0.0) + one.end_s - one.start_s
    return max(computed, key=lambda stream: computed[stream], default=COMPUTE)


def own_seconds(
    spans: Sequence[TracedSpan], after: Sequence[Set[int]], begin_s: float | None, end_s: float | None
) -> list[float]:
    """Return the seconds that each span takes of a step: its own, and the idle time in front of it.

    The stream that computes most idles while its host does something else, which takes as long on every network. It
    also idles until what it waits for has ended: that part is none of its own.

    Args:
        spans: of one step, in the order of their start.
        after: places of what each of them waits for.
        begin_s: from when on the host may have kept the stream waiting; None: from its first span on.
        end_s: until when it may have, after the last span; None: until that.
    """
    seconds = [one.end_s - one.start_s for one in spans]
    main = main_stream(spans)
    before, last = begin_s, None
    for at, one in enumerate(spans):
        if one.stream == main and one.message is None:
            ready_s = max((spans[other].end_s for other in after[at]), default=0.0)
            seconds[at] += max(0.0, one.start_s - max(before, ready_s)) if before is not None else 0.0
            before, last = max(one.end_s, before or 0.0), at
    if last is not None and before is not None and end_s is not None:
        # The host may wait there for what no compute waits for, as for a barrier.
        others = kineto_events.union_of_spans((one.start_s, one.end_s) for one in spans if one.stream != main)
        seconds[last] += _free((before, end_s), others)
    return seconds


def _free(span: Span, busy: Sequence[Span]) -> float:
    """Return how much of a span is in none of the busy ones [s]."""
    start, end = span
    if end <= start:
        return 0.0
    overlaps = (min(end, stop) - max(start, begin) for begin, stop in busy if begin < end and stop > start)
    return end - start - sum(overlaps)

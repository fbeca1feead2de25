"""Traces of torch.profiler (Kineto's Chrome traces) of one rank: its events, launches, collectives, and steps.

`simnet record --from` and `simnet calibrate` both read them here. A collective is what carries a `Collective name`, by
itself or by the operator that launched it, whatever its kernel is called; else what the name of a known library says.
With a GPU the phases stand on its own clock as `gpu_user_annotation`, or else follow from what the CPU was in when it
launched a kernel. Times of collectives include waits for the slowest rank.

Source: libkineto's ActivityType.cpp, output_json.cpp and CuptiActivity.cpp (categories and arguments), torch's
ParamCommsUtils.hpp (arguments of collectives).
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from simnet.core.bounded_types import Count
from simnet.core.errors import SimnetError, shown
from simnet.core.parsing import parse_json
from simnet.core.schema import build
from simnet.strategies.program import IterationPart
from simnet.strategies.step_file import OperationKind

STEP = re.compile(r"ProfilerStep#(\d+)")
FORWARD = "DistributedDataParallel.forward"
BACKWARD = "autograd::engine::evaluate_function"
OPTIMIZER = re.compile(r"Optimizer\.step#")
NAMED, OPERATOR_ID, COMMS = "Collective name", "External id", "record_param_comms"
"""Argument that names a collective; argument by which a kernel names its operator; torch's operator of a collective."""
KERNELS = ("kernel", "mtia_ccp_events", "hpu_op", "collective_comm")
ON_GPU = (*KERNELS, "gpu_memcpy", "gpu_memset")
"""Categories of what a device does: CUDA, ROCm, XPU and PrivateUse1 say kernel."""
LAUNCHES = ("_runtime", "_driver")
"""Ends of the categories of calls by which the CPU launches that: cuda, hip, xpu, mtia, privateuse1."""
_NO_WORK = ("ac2g", "cpu_op", "cpu_instant_event", "cuda_profiler_range", "fwdbwd", "overhead", "python_function")
_NO_WORK_ENDS = ("_annotation", "_event", "_sync")
_OF_C10D = ("c10d::", "c10d_functional::", "_c10d_functional::", COMMS, "nccl:")
_ON_CPU = re.compile(r"(?:gloo|mpi|ucc|oneccl_bindings_for_pytorch|torch_ccl):{1,2}")
"""Backends whose collectives run on the CPU, as a trace names what they do."""
_OF_A_LIBRARY = re.compile(
    r"(?:^|[^a-z_\d]|_z\w*?\d)(?:nccl|rccl|msccl|hccl|hcom_|oneccl|xccl|nvshmem|deep_ep::|cross_device_reduce|ccl::"
    r"|(?:[a-z]{0,3}ccl|cncl|bkcl)(?:_|dev|sym|kernel)*"
    r"(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|send_?recv)"
    r"|(?:one_?shot|two_?shot|multimem)_?(?:\w*_)?(?:all_?reduce|all_?gather|reduce_?scatter)\w*kernel)"
)
"""Names of kernels, in lower case, of NCCL, RCCL, MSCCL, HCCL, oneCCL, CNCL, NVSHMEM and their like, and of torch."""
_KINDS: tuple[tuple[str, OperationKind], ...] = (
    ("allreduce", "all_reduce"), ("reducescatter", "reduce_scatter"), ("allgather", "all_gather"),
    ("alltoall", "all_to_all"), ("broadcast", "broadcast"), ("barrier", "barrier"), ("reduce", "reduce"),
)  # fmt: skip
"""Names of collectives without underscores, the longer ones first."""
_DTYPES = {
    "fp32": ("float", "float32"), "fp16": ("half", "float16"), "bf16": ("bfloat16",), "fp64": ("double", "float64"),
    "uint8": ("byte", "unsigned char"), "int64": ("long", "long int"), "int32": ("int",),
}  # fmt: skip
_SHORT = {long: short for short, names in _DTYPES.items() for long in (short, *names)}
_ITEM_BYTES = {
    "fp32": 4, "fp16": 2, "bf16": 2, "fp64": 8, "uint8": 1, "int64": 8, "int32": 4, "int8": 1, "int16": 2, "char": 1,
    "signed char": 1, "bool": 1, "short": 2, "short int": 2, "uint16": 2, "uint32": 4, "uint64": 8, "complexfloat": 8,
    "complexdouble": 16, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}  # fmt: skip
MAX_MICROSECONDS = 1e18
"""Traces count from the start of the machine, or from 1970."""
MAX_ELEMENTS = 2**50
REPAIR = "export the trace again"
Span = tuple[float, float]
Numbered = Annotated[int, Meta(ge=0)]


class TracedGroup(Struct):
    """A process group, as the trace tells it."""

    pg_name: str = ""
    ranks: tuple[Numbered, ...] = ()


class TracedRank(Struct):
    """What the trace tells of its rank; where it does not say the world's size, its groups do."""

    backend: str = ""
    rank: Numbered = 0
    world_size: Count | None = None
    pg_config: tuple[TracedGroup, ...] = ()

    @property
    def size(self) -> int:
        """Ranks of the run."""
        # Ranks count from 0, so that the largest in any group tells how many there are.
        return self.world_size or 1 + max([self.rank, *(rank for group in self.pg_config for rank in group.ranks)])

    def ranks_of(self, sent: "TracedCollective", world_size: int) -> tuple[int, ...]:
        """Return the ranks of a collective's process group; () where the trace does not say them."""
        known = {group.pg_name: group.ranks for group in self.pg_config}
        if named := known.get(sent.pg_name) or sent.ranks:
            return named
        everyone = tuple(range(world_size))
        if sent.group_size:
            return everyone if sent.group_size == world_size else ()
        # gloo does not name the group: where all groups have the same ranks, or there is none, it must be these.
        several = {tuple(sorted(ranks)) for ranks in known.values() if len(ranks) > 1} or {everyone}
        return next(iter(several)) if len(several) == 1 else ()


class _Device(Struct):
    name: str = ""


class TraceHeader(Struct):
    """Entries of a trace other than its events; times of events count from `base_ns`, since 1970 [ns]."""

    distributed: TracedRank | None = field(name="distributedInfo", default=None)
    devices: tuple[_Device, ...] = field(name="deviceProperties", default=())
    host: str = field(name="host_name", default="")
    base_ns: int = field(name="baseTimeNanoseconds", default=0)


class TracedCollective(Struct, frozen=True, kw_only=True):
    """What a collective says of itself.

    Attributes:
        name: as the trace has it.
        kind: of a step file; None for a send or receive, or what a step file does not hold.
        in_bytes: input of a rank; None where the trace does not say it, for the reason in `unknown`.
        out_bytes: output of a rank; None where the trace does not say it.
        dtype: number format, for people.
        pg_name: name of the process group; "" where the trace does not say it.
        ranks: of the process group; () where the trace does not say them.
        group_size: ranks of it; 0 where the trace does not say it.
    """

    name: str
    kind: OperationKind | None
    in_bytes: float | None = None
    unknown: str = ""
    out_bytes: float | None = None
    dtype: str = ""
    pg_name: str = ""
    ranks: tuple[int, ...] = ()
    group_size: int = 0


class Event(Struct, frozen=True, kw_only=True):
    """A span of time [s].

    Attributes:
        stream: of a device on which it ran; "" on the CPU.
        launch: number of its launch, as CUDA counts; 0 where the trace has none.
        launched_s: when the CPU launched it: on the CPU, its start.
        collective: what it carries, where it is communication at work.
    """

    name: str
    category: str
    start_s: float
    end_s: float
    launched_s: float
    args: Mapping[str, Any] = field(default_factory=dict)
    stream: str = ""
    launch: int = 0
    collective: TracedCollective | None = None


@dataclass(frozen=True, kw_only=True)
class Phases:
    """When the CPU was in backward and in the optimizer: spans without overlaps."""

    backward: Sequence[Span]
    optimizer: Sequence[Span]

    def part_at(self, time_s: float) -> IterationPart:
        """Return the part of the step that launched something: what follows backward belongs to the optimizer."""
        if is_within(time_s, self.optimizer):
            return "optimizer"
        if is_within(time_s, self.backward):
            return "backward"
        return "optimizer" if self.backward and time_s > self.backward[-1][1] else "forward"


@dataclass(frozen=True, kw_only=True)
class TracedStep:
    """Times of one step [s]; `overlapped_s` is the communication during compute.

    `backward_s` is compute less forward and optimizer where the trace does not mark backward.
    """

    step_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    compute_s: float
    communication_s: float
    overlapped_s: float
    collectives: tuple[Event, ...]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The trace of one rank.

    Attributes:
        where: the file, as messages call it.
        about: what it says besides its events.
        events: all spans of time in it, each with its launch and its collective.
        marks: the steps, in order.
        on_gpu: whether a device worked.
        knows_launches: whether the trace says when the CPU launched any of that.
    """

    where: str
    about: TraceHeader
    events: Sequence[Event]
    marks: Sequence[Event]
    on_gpu: bool
    knows_launches: bool

    @property
    def distributed(self) -> TracedRank:
        """What the trace tells of ranks; one rank if it tells nothing."""
        return self.about.distributed or TracedRank()

    @property
    def backend(self) -> str:
        """Of the default process group; "" if none."""
        return self.distributed.backend

    @property
    def rank(self) -> int:
        """Number of the rank."""
        return self.distributed.rank

    @property
    def world_size(self) -> int:
        """Ranks of the run."""
        return self.distributed.size

    @property
    def gpu(self) -> str:
        """Name of the GPU; "" if none worked."""
        return self.about.devices[0].name if self.on_gpu and self.about.devices else ""

    @cached_property
    def steps(self) -> tuple[TracedStep, ...]:
        """The times of every whole step."""
        return tuple(_step(mark, self) for mark in self.marks)

    def median_s(self, name: str) -> float:
        """Return the median over the steps of a field of `TracedStep` [s]."""
        return float(median(getattr(step, name) for step in self.steps))

    @property
    def reduced_bytes(self) -> int:
        """Bytes all-reduced in a step, the median over the steps; 0 where the trace does not say one of them."""
        totals = []
        for step in self.steps:
            sent = [event.collective for event in step.collectives if event.collective is not None]
            sizes = [collective.in_bytes for collective in sent if "reduce" in collective.name.lower()]
            # One message of unknown size makes the sum meaningless.
            totals.append(0.0 if None in sizes else sum(size for size in sizes if size))
        return int(median(totals))

    def check_launches(self) -> None:
        """Refuse a trace of a device of which nothing says what launched it: its steps and phases would be guesses."""
        if self.on_gpu and not self.knows_launches:
            raise SimnetError(
                f"{self.where}: no event says when the CPU launched its kernels: steps and phases are those of the "
                "launches; profile with ProfilerActivity.CPU too"
            )


def looks_like(data: Mapping[str, Any]) -> bool:
    """Return whether a JSON object is a trace."""
    return isinstance(data.get("traceEvents"), list)


def parse(data: Mapping[str, Any], path: Path | str) -> Trace:
    """Return the trace of a rank.

    Raises:
        SimnetError: there are no steps in it, an event is of another form, or of a device in a form that is not known.
    """
    where = str(path)
    raw = [
        _event(event, f"{where}: traceEvents[{at}]")
        for at, event in enumerate(data["traceEvents"])
        # All else is a flow, a counter or the name of a thread.
        if isinstance(event, dict) and event.get("ph") == "X"
    ]
    # With a GPU a trace marks each step twice, on the clock of the CPU and on that of the GPU: the first is read.
    marks = [event for event in raw if STEP.fullmatch(event.name) and event.category == "user_annotation"]
    if not marks:
        raise SimnetError(f"{where}: no ProfilerStep: call prof.step() after every training step, and profile again")
    about = build(TraceHeader, data, where)
    on_gpu = any(event.category in KERNELS for event in raw)
    _check_categories(raw, where, on_gpu=on_gpu)
    events, knows_launches = _on_gpu(raw) if on_gpu else (_on_cpu(raw), False)
    distributed = about.distributed
    # Of several ranks, a step without a collective would pass for one that needs none.
    if on_gpu and (distributed is None or distributed.size > 1) and not any(event.collective for event in events):
        asked = next((event for event in raw if asks(event)), None)
        if asked is not None and not any(map(is_of_a_backend, raw)):
            raise SimnetError(
                f"{where}: {asked.name}: torch asks for a collective, but nothing on the GPU is known as one; profile "
                f"with torch 2.2 or later, whose kernels say their {NAMED!r}"
            )
    return Trace(
        where=where,
        about=about,
        events=events,
        marks=sorted(marks, key=lambda mark: mark.start_s),
        on_gpu=on_gpu,
        knows_launches=knows_launches,
    )


def _event(raw: Mapping[str, Any], where: str) -> Event:
    if not {"name", "ts", "dur"} <= raw.keys():
        raise SimnetError(f"{where}: an event without name, ts or dur: {REPAIR}")
    for key, kind, rule in (("name", str, "text"), ("cat", str, "text"), ("args", dict, "an object")):
        if not isinstance(raw.get(key, kind()), kind):
            raise SimnetError(f"{where}.{key}: {shown(raw[key])}: must be {rule}: {REPAIR}")
    for key in ("ts", "dur"):
        microseconds = raw[key]
        if (
            isinstance(microseconds, bool)
            or not isinstance(microseconds, int | float)
            or not 0 <= microseconds < MAX_MICROSECONDS
        ):
            raise SimnetError(f"{where}.{key}: {shown(microseconds)}: must be a number of microseconds: {REPAIR}")
    start_s, args, category = raw["ts"] * 1e-6, raw.get("args", {}), raw.get("cat", "")
    stream = whole(args.get("stream"))
    # Devices that do not number their streams have a track for each.
    stream = whole(raw.get("tid")) if stream is None else stream
    return Event(
        name=raw["name"],
        category=category,
        start_s=start_s,
        end_s=(raw["ts"] + raw["dur"]) * 1e-6,
        launched_s=start_s,
        args=args,
        stream=f"stream {stream or 0}" if category in ON_GPU else "",
    )


def _check_categories(events: Sequence[Event], where: str, *, on_gpu: bool) -> None:
    """Refuse work of a device, and launches of it, in categories that are not known, and launches without the work."""
    known = {launch for event in events if event.category.endswith(LAUNCHES) and (launch := _launch(event))}
    missing = {
        launch for event in events if event.category in ON_GPU and (launch := _launch(event)) and launch not in known
    }
    for event in events:
        if event.category in (*ON_GPU, *_NO_WORK) or event.category.endswith((*LAUNCHES, *_NO_WORK_ENDS)):
            continue
        what = "launches a kernel" if _launch(event) in missing else ""
        what = "runs on a stream" if {"stream", "device"} <= event.args.keys() else what
        if what:
            raise SimnetError(
                f"{where}: category {event.category!r}: {event.name!r} {what}: known are work of categories "
                f"{', '.join(ON_GPU)} and launches of *_runtime and *_driver; export the trace with these"
            )
    launches = (event for event in events if event.category.endswith(LAUNCHES) and "Launch" in event.name)
    sent = (event for event in events if event.category == "user_annotation" and event.name.startswith("nccl:"))
    if not on_gpu and (only := next(launches, next(sent, None))):
        raise SimnetError(
            f"{where}: {only.name}: the CPU launches work of a GPU, but the trace holds no event of a GPU; profile "
            "with the activity of the GPU too"
        )


def _launch(event: Event) -> int:
    return whole(event.args.get("correlation")) or 0


def _on_gpu(raw: Sequence[Event]) -> tuple[list[Event], bool]:
    """Return the events, those of the device with their launches and collectives, and whether any launch is known."""
    launched = {_launch(event): event.start_s for event in raw if event.category.endswith(LAUNCHES)}
    on_cpu = [
        (key, event) for event in raw if event.category == "cpu_op" and (key := whole(event.args.get(OPERATOR_ID)))
    ]
    callers = {key: event.start_s for key, event in on_cpu}
    comms = {key: event.args for key, event in on_cpu if event.name == COMMS}
    events, knows_launches = [], False
    for event in raw:
        if event.category not in ON_GPU:
            events.append(event)
            continue
        launch, operator, says = _launch(event), whole(event.args.get(OPERATOR_ID)) or 0, event.args
        knows_launches |= launch in launched or operator in callers
        if event.category in KERNELS and operator in comms:
            # What the kernel says itself goes before what its operator says.
            says = {**comms[operator], **says}
        is_sent = NAMED in says or event.category == "collective_comm"
        is_sent = is_sent or (event.category in KERNELS and is_of_a_library(event.name))
        # Without the launch, the operator that called it tells nearly the same time.
        launched_s = launched.get(launch, callers.get(operator, event.start_s))
        collective = _sent(event.name, says) if is_sent else None
        events.append(replace(event, launch=launch, launched_s=launched_s, collective=collective))
    return events, knows_launches


def _on_cpu(raw: Sequence[Event]) -> list[Event]:
    """Return the events of a process without a GPU: what a backend does is a collective, or else what torch asks."""
    ran = {id(event) for event in raw if is_of_a_backend(event)}
    asked = (
        {} if ran else {id(event) for event in raw if event.name == COMMS and kind_of(str(event.args.get(NAMED, "")))}
    )
    return [
        replace(event, collective=_sent(event.name, event.args)) if id(event) in ran or id(event) in asked else event
        for event in raw
    ]


def is_of_a_backend(event: Event) -> bool:
    """Tell whether an event is a collective at work on the CPU."""
    if event.category not in ("user_annotation", "cpu_op") or event.name.startswith(_OF_C10D):
        return False
    return bool(_ON_CPU.match(event.name)) or NAMED in event.args


@cache
def is_of_a_library(name: str) -> bool:
    """Tell whether a kernel is one of a library of collectives, by the name of its function.

    Example:
        >>> is_of_a_library("ncclSymkDevKernel_AllReduce_AGxLLMC_R_f32(ncclSymkDevWorkArgs)")
        True
        >>> is_of_a_library("void my_all_reduce_bias_kernel<ncclFloat>(float*)")
        False
    """
    function = re.split(r"[<(]", name.lower().replace("(anonymous namespace)::", ""), maxsplit=1)[0]
    return bool(_OF_A_LIBRARY.search(function))


def asks(event: Event) -> bool:
    """Tell whether an event is the operator by which torch asks for a collective."""
    return event.name.startswith("c10d::") and kind_of(event.name) is not None


def kind_of(name: str) -> OperationKind | None:
    """Return the collective that a name of torch.distributed or of a library means; None if it is none of a step."""
    plain = _ON_CPU.sub("", name.lower()).replace("_", "").removeprefix("c10d::")
    if is_point_to_point(name):
        return None
    return next((kind for word, kind in _KINDS if word in plain), None)


def is_point_to_point(name: str) -> bool:
    """Tell whether a name is that of a send or receive."""
    return _ON_CPU.sub("", name.lower()).replace("_", "").removeprefix("c10d::").startswith(("send", "recv"))


def _sent(name: str, args: Mapping[str, Any]) -> TracedCollective:
    """Read one collective: most libraries give elements and dtype, gloo gives the shape of its input."""
    called = str(args.get(NAMED) or _ON_CPU.sub("", name))
    item: int | None = None
    num_in: int | None = None
    in_bytes: float | None
    dtype_argument: object = None
    if "In msg nelems" in args or NAMED in args:
        dtype_argument = args.get("dtype")
        dtype = _SHORT.get(_plain(dtype_argument), str(dtype_argument or ""))
        item, num_in = _ITEM_BYTES.get(_plain(dtype_argument)), count(args.get("In msg nelems"))
        in_bytes = None if item is None or num_in is None else item * num_in
    else:
        kinds = args.get("Input type")
        dtype = str(kinds[0]) if isinstance(kinds, list) and kinds else ""
        dtype = _SHORT.get(_plain(dtype), dtype)
        in_bytes = input_bytes(args)
    unknown = ""
    if in_bytes is None:
        unknown = "does not say its message; profile with record_shapes=True, with torch 2.2 or later"
        if num_in is not None:
            unknown = f"dtype: {shown(dtype_argument)}: its size is not known; send another dtype"
    num_out = count(args.get("Out msg nelems"))
    return TracedCollective(
        name=called,
        kind=kind_of(called),
        in_bytes=in_bytes,
        unknown=unknown,
        out_bytes=None if item is None or num_out is None else item * num_out,
        dtype=dtype,
        pg_name=str(args.get("Process Group Name", "")),
        ranks=_ranks(args.get("Process Group Ranks")),
        group_size=whole(args.get("Group size")) or 0,
    )


def _plain(dtype: object) -> str:
    """Return the name of a number format without its namespace, and short where it has such a name."""
    plain = str(dtype).lower().removeprefix("c10::").removeprefix("torch.")
    return _SHORT.get(plain, plain)


def input_bytes(args: Mapping[str, Any]) -> float | None:
    """Return the bytes of the inputs of an operator; None where the trace has no shapes."""
    shapes, kinds = args.get("Input Dims"), args.get("Input type")
    if not isinstance(shapes, list) or not isinstance(kinds, list):
        return None
    total = 0
    for dims, kind in zip(shapes, kinds, strict=False):
        size = _ITEM_BYTES.get(_plain(kind), 0)
        for dim in dims if isinstance(dims, list) else ():
            size *= count(dim) or 0
        total += size
    return total or None


def count(value: object) -> int | None:
    """Return a number of elements; None where it is no valid number."""
    number = whole(value)
    return number if number is not None and number < MAX_ELEMENTS else None


def whole(value: object) -> int | None:
    """Return a whole number from 0, which may stand in the trace as text or with a point; None for all else."""
    # Writers of some vendors put every number as text; a longer one has more than 64 bits.
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and value >= 0 else None


def _ranks(ranks: object) -> tuple[int, ...]:
    """Return ranks that stand in the trace as a list or as its text; () where a long list is cut short there."""
    try:
        listed = parse_json(ranks.encode(errors="replace"), "ranks") if isinstance(ranks, str) else ranks
    except SimnetError:
        return ()
    is_whole = isinstance(listed, list) and all(type(rank) is int and rank >= 0 for rank in listed)
    return tuple(listed) if is_whole else ()  # type: ignore[arg-type]


def is_compute(event: Event, *, on_gpu: bool) -> bool:
    """Tell whether an event is compute."""
    if event.collective is not None:
        return False
    return event.category in KERNELS if on_gpu else event.category == "cpu_op" and not event.name.startswith(_OF_C10D)


def phases(inside: Sequence[Event]) -> Phases:
    """Return the phases that events of a step on the CPU tell."""
    on_cpu = [event for event in inside if event.category in ("cpu_op", "user_annotation")]
    return Phases(
        backward=union(event for event in on_cpu if event.name.startswith(BACKWARD)),
        optimizer=union(event for event in on_cpu if OPTIMIZER.match(event.name)),
    )


def _step(mark: Event, trace: Trace) -> TracedStep:
    # An event belongs to the step in which it starts, since a kernel may end in the next one.
    on_gpu = trace.on_gpu
    inside = [event for event in trace.events if mark.start_s <= event.start_s < mark.end_s]
    collectives = [event for event in inside if event.collective is not None]
    computes = [event for event in inside if is_compute(event, on_gpu=on_gpu)]
    marked = [event for event in inside if event.category == ("gpu_user_annotation" if on_gpu else "user_annotation")]
    communicating, computing = union(collectives), union(computes)
    forward_s = length(union(event for event in marked if event.name == FORWARD))
    optimizer_s = length(union(event for event in marked if OPTIMIZER.match(event.name)))
    backward = union(event for event in inside if event.name.startswith(BACKWARD))
    backward_s = _kernels_s(inside, computes, backward) if on_gpu else length(backward)
    launches = phases(inside)
    if trace.knows_launches and not optimizer_s and launches.optimizer:
        # Nothing marks the phases on the clock of the GPU: they are those of the launches.
        parts: dict[IterationPart, list[Event]] = {"forward": [], "backward": [], "optimizer": []}
        for event in computes:
            parts[launches.part_at(event.launched_s)].append(event)
        forward_s, backward_s, optimizer_s = (length(union(kernels)) for kernels in parts.values())
    else:
        rest_s = max(length(computing) - optimizer_s, 0.0)
        if not forward_s and backward_s:
            forward_s = max(rest_s - backward_s, 0.0)
        elif on_gpu or not backward_s:
            # On a GPU, autograd's events mark the CPU that launches kernels: backward is the rest of the compute.
            backward_s = max(rest_s - forward_s, 0.0)
    return TracedStep(
        step_s=mark.end_s - mark.start_s,
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=optimizer_s,
        compute_s=length(computing),
        communication_s=length(communicating),
        overlapped_s=length(communicating) + length(computing) - length(union([*collectives, *computes])),
        collectives=tuple(collectives),
    )


def _kernels_s(inside: Sequence[Event], kernels: Iterable[Event], spans: Sequence[Span]) -> float:
    """Return the time of the kernels whose operators started within spans of the CPU; 0 if no kernel names its own."""
    of = [event for event in inside if event.category == "cpu_op" and is_within(event.start_s, spans)]
    launched = {whole(event.args.get(OPERATOR_ID)) for event in of} - {None}
    return length(union(kernel for kernel in kernels if whole(kernel.args.get(OPERATOR_ID)) in launched))


def union(events: Iterable[Event]) -> list[Span]:
    """Return the spans in which any event ran, without overlaps: operators nest, and streams run at once."""
    return union_of_spans((event.start_s, event.end_s) for event in events)


def union_of_spans(spans: Iterable[Span]) -> list[Span]:
    """Return spans without overlaps, in order."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def length(spans: Iterable[Span]) -> float:
    """Return how long spans take together [s]."""
    return sum(end - start for start, end in spans)


def is_within(time_s: float, spans: Sequence[Span]) -> bool:
    """Tell whether a time lies in one of spans that do not overlap and are in order."""
    # A span that starts at this very time sorts before it.
    place = bisect_right(spans, (time_s, float("inf"))) - 1
    return place >= 0 and time_s < spans[place][1]

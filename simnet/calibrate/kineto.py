"""Read the Chrome traces of torch.profiler (Kineto): the phases and collectives of the training steps of a rank.

Names in the trace: `ProfilerStep#k` is a step, `gloo:...` and `ncclKernel...`/`ncclDevKernel...` are communication,
`DistributedDataParallel.forward` and `Optimizer.step#...` are phases. With a GPU, `kernel` events are its compute and
`gpu_user_annotation` events are the phases on the clock of the GPU. Times of gloo include waits for the slowest rank.
A process alone marks no forward: there it is the compute that is neither backward nor optimizer.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from simnet.errors import SimnetError, shown
from simnet.schema import build
from simnet.values import Count

_STEP = re.compile(r"ProfilerStep#\d+")
_COMMUNICATION = re.compile(r"gloo:|nccl(Dev)?Kernel")
_OPTIMIZER = re.compile(r"Optimizer\.step#")
_FORWARD = "DistributedDataParallel.forward"
_BACKWARD = "autograd::engine::evaluate_function"
_LAUNCH_ID = "External id"
"""Argument by which a kernel names the operator that launched it."""
_NCCL_NAME = re.compile(r"nccl(?:Dev)?Kernel_(\w+?)_")
ITEM_BYTES = {
    "float": 4, "Float": 4, "double": 8, "Double": 8, "c10::Half": 2, "Half": 2, "c10::BFloat16": 2, "BFloat16": 2,
    "unsigned char": 1, "Byte": 1, "int": 4, "Int": 4, "long int": 8, "Long": 8,
}  # fmt: skip
Span = tuple[float, float]
MAX_MICROSECONDS = 1e18
"""Traces count from the start of the machine, or from 1970."""
MAX_ELEMENTS = 2**50
_REPAIR = "export the trace again"


class _Distributed(Struct):
    backend: str = ""
    rank: Annotated[int, Meta(ge=0)] = 0
    world_size: Count = 1


class _Device(Struct):
    name: str = ""


class _TraceHeader(Struct):
    """Entries of a trace other than its events."""

    distributed: _Distributed | None = field(name="distributedInfo", default=None)
    devices: tuple[_Device, ...] = field(name="deviceProperties", default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """A span of time [s]."""

    name: str
    category: str
    start_s: float
    end_s: float
    args: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TracedCollective:
    """One collective of a step: name, bytes (0 if unknown) and seconds, including waits for other ranks."""

    name: str
    num_bytes: int
    seconds: float


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
    collectives: tuple[TracedCollective, ...]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The trace of one rank: backend, its number, world size, GPU (empty if none), and every whole step."""

    backend: str
    rank: int
    world_size: int
    gpu: str
    steps: tuple[TracedStep, ...]

    def median_s(self, name: str) -> float:
        """Return the median over the steps of a field of `TracedStep` [s]."""
        return float(median(getattr(step, name) for step in self.steps))

    @property
    def reduced_bytes(self) -> int:
        """Bytes all-reduced in a step, the median over the steps."""
        return int(
            median(
                sum(one.num_bytes for one in step.collectives if "reduce" in one.name.lower()) for step in self.steps
            )
        )


def looks_like(data: Mapping[str, Any]) -> bool:
    """Return whether a JSON object is a trace."""
    return isinstance(data.get("traceEvents"), list)


def parse(data: Mapping[str, Any], path: Path) -> Trace:
    """Return the steps of a trace.

    Raises:
        SimnetError: there are no steps in it, or an event is of another form.
    """
    raw = enumerate(data["traceEvents"])
    events = [_event(one, f"{path}: traceEvents[{at}]") for at, one in raw if _is_complete(one)]
    on_gpu = any(event.category == "kernel" for event in events)
    # With a GPU a trace marks each step twice, on the clock of the CPU and on that of the GPU: the first is read.
    marks = [event for event in events if _STEP.fullmatch(event.name) and event.category == "user_annotation"]
    if not marks:
        raise SimnetError(f"{path}: no ProfilerStep: call prof.step() after every training step, and profile again")
    about = build(_TraceHeader, data, str(path))
    return Trace(
        backend=about.distributed.backend if about.distributed else "",
        rank=about.distributed.rank if about.distributed else 0,
        world_size=about.distributed.world_size if about.distributed else 1,
        gpu=about.devices[0].name if on_gpu and about.devices else "",
        steps=tuple(_step(mark, events, on_gpu=on_gpu) for mark in sorted(marks, key=lambda mark: mark.start_s)),
    )


def _is_complete(event: object) -> bool:
    """Return whether an event is a span of time, and not a flow, a counter or the name of a thread."""
    return isinstance(event, dict) and event.get("ph") == "X"


def _event(raw: Mapping[str, Any], where: str) -> _Event:
    if not {"name", "ts", "dur"} <= raw.keys():
        raise SimnetError(f"{where}: an event without name, ts or dur: {_REPAIR}")
    for key, kind, rule in (("name", str, "text"), ("cat", str, "text"), ("args", dict, "an object")):
        if not isinstance(raw.get(key, kind()), kind):
            raise SimnetError(f"{where}.{key}: {shown(raw[key])}: must be {rule}: {_REPAIR}")
    start, duration = (_microseconds(raw[key], f"{where}.{key}") for key in ("ts", "dur"))
    return _Event(
        name=raw["name"],
        category=raw.get("cat", ""),
        start_s=start * 1e-6,
        end_s=(start + duration) * 1e-6,
        args=raw.get("args", {}),
    )


def _microseconds(given: object, where: str) -> float:
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not 0 <= given < MAX_MICROSECONDS:  # type: ignore[operator]
        raise SimnetError(f"{where}: {shown(given)}: must be a number of microseconds: {_REPAIR}")
    return float(given)  # type: ignore[arg-type]


def _step(mark: _Event, events: Sequence[_Event], *, on_gpu: bool) -> TracedStep:
    # An event belongs to the step in which it starts, since a kernel may end in the next one.
    inside = [event for event in events if mark.start_s <= event.start_s < mark.end_s]
    collectives = [event for event in inside if _is_communication(event, on_gpu=on_gpu)]
    computes = [event for event in inside if _is_compute(event, on_gpu=on_gpu)]
    phases = [event for event in inside if event.category == ("gpu_user_annotation" if on_gpu else "user_annotation")]
    communicating, computing = _union(collectives), _union(computes)
    forward_s = _length(_union(event for event in phases if event.name == _FORWARD))
    optimizer_s = _length(_union(event for event in phases if _OPTIMIZER.match(event.name)))
    backward = _union(event for event in inside if event.name.startswith(_BACKWARD))
    backward_s = _kernels_s(inside, computes, backward) if on_gpu else _length(backward)
    rest_s = max(_length(computing) - optimizer_s, 0.0)
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
        compute_s=_length(computing),
        communication_s=_length(communicating),
        overlapped_s=_length(communicating) + _length(computing) - _length(_union([*collectives, *computes])),
        collectives=tuple(_traced_collective(event) for event in collectives),
    )


def _kernels_s(inside: Sequence[_Event], kernels: Iterable[_Event], spans: Sequence[Span]) -> float:
    """Return the time of the kernels whose operators started within spans of the CPU; 0 if no kernel names its own."""
    starts = [start for start, _ in spans]
    launched: set[int] = set()
    for event in inside:
        place = bisect_right(starts, event.start_s) - 1
        if event.category == "cpu_op" and place >= 0 and event.start_s < spans[place][1]:
            launched |= _launch_ids(event)
    return _length(_union(kernel for kernel in kernels if _launch_ids(kernel) & launched))


def _launch_ids(event: _Event) -> set[int]:
    """Return the number that ties a kernel to its operator, if there is one."""
    given = event.args.get(_LAUNCH_ID)
    return {given} if isinstance(given, int) else set()


def _is_communication(event: _Event, *, on_gpu: bool) -> bool:
    return event.category == ("kernel" if on_gpu else "user_annotation") and bool(_COMMUNICATION.match(event.name))


def _is_compute(event: _Event, *, on_gpu: bool) -> bool:
    if on_gpu:
        return event.category == "kernel" and not _COMMUNICATION.match(event.name)
    return event.category == "cpu_op" and not event.name.startswith("c10d::")


def _traced_collective(event: _Event) -> TracedCollective:
    """Read one collective: NCCL gives elements and dtype, gloo gives the shape of its input."""
    args = event.args
    if "In msg nelems" in args:
        name = str(args.get("Collective name", "")) or event.name
        num_bytes = _count(args["In msg nelems"]) * ITEM_BYTES.get(str(args.get("dtype")), 0)
    else:
        found = _NCCL_NAME.match(event.name)
        name = found[1] if found else event.name.removeprefix("gloo:")
        num_bytes = _input_bytes(args)
    return TracedCollective(name=name, num_bytes=num_bytes, seconds=event.end_s - event.start_s)


def _input_bytes(args: Mapping[str, Any]) -> int:
    shapes, kinds = args.get("Input Dims"), args.get("Input type")
    if not isinstance(shapes, list) or not isinstance(kinds, list):
        return 0
    total = 0
    for dims, kind in zip(shapes, kinds, strict=False):
        size = ITEM_BYTES.get(str(kind), 0)
        for dim in dims if isinstance(dims, list) else ():
            size *= _count(dim)
        total += size
    return total


def _count(given: object) -> int:
    """Return a number of elements; 0 where it is no valid number."""
    return given if type(given) is int and 0 < given < MAX_ELEMENTS else 0


def _union(events: Iterable[_Event]) -> list[Span]:
    """Return the spans in which any event ran, without overlaps: operators nest, and streams run at once."""
    joined: list[Span] = []
    for start, end in sorted((event.start_s, event.end_s) for event in events):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def _length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)

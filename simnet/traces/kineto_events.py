"""The events of a Chrome trace of torch.profiler (Kineto), their names, and what the trace tells of ranks and devices.

Names in the trace: `ProfilerStep#k` is a step, `gloo:...` and `ncclKernel...`/`ncclDevKernel...` are communication,
`DistributedDataParallel.forward` and `Optimizer.step#...` are phases. With a GPU, `kernel` events are its compute and
`gpu_user_annotation` events are the phases on the clock of the GPU.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from simnet.core.bounded_types import Count
from simnet.core.errors import SimnetError, shown
from simnet.core.parsing import parse_json
from simnet.core.schema import build

STEP = re.compile(r"ProfilerStep#(\d+)")
COMMUNICATION = re.compile(r"gloo:|nccl(Dev)?Kernel")
OPTIMIZER = re.compile(r"Optimizer\.step#")
BACKWARD = "autograd::engine::evaluate_function"
LAUNCH_ID = "External id"
"""Argument by which a kernel names the operator that launched it."""
NCCL_NAME = re.compile(r"nccl(?:Dev)?Kernel_(\w+?)_")
ITEM_BYTES = {
    "float": 4, "Float": 4, "double": 8, "Double": 8, "c10::Half": 2, "Half": 2, "c10::BFloat16": 2, "BFloat16": 2,
    "unsigned char": 1, "Byte": 1, "signed char": 1, "Char": 1, "bool": 1, "Bool": 1, "short int": 2, "Short": 2,
    "int": 4, "Int": 4, "long int": 8, "Long": 8, "Float8_e4m3fn": 1, "Float8_e5m2": 1,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
}  # fmt: skip
Span = tuple[float, float]
MAX_MICROSECONDS = 1e18
"""Traces count from the start of the machine, or from 1970."""
MAX_ELEMENTS = 2**50
REPAIR = "export the trace again"
LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime")
"""Categories of the calls of the CPU that launch what a GPU does."""
_OF_THE_EXCHANGE = ("c10d::", "c10d_functional::", "_c10d_functional::", "record_param_comms", "nccl:")


class TracedGroup(Struct):
    """A process group, as the trace tells it."""

    pg_name: str = ""
    ranks: tuple[Annotated[int, Meta(ge=0)], ...] = ()


class TracedRank(Struct):
    """What the trace tells of its rank."""

    backend: str = ""
    rank: Annotated[int, Meta(ge=0)] = 0
    world_size: Count = 1
    pg_config: tuple[TracedGroup, ...] = ()


class _Device(Struct):
    name: str = ""


class TraceHeader(Struct):
    """Entries of a trace other than its events; times of events count from `base_ns`, since 1970 [ns]."""

    distributed: TracedRank | None = field(name="distributedInfo", default=None)
    devices: tuple[_Device, ...] = field(name="deviceProperties", default=())
    host: str = field(name="host_name", default="")
    base_ns: int = field(name="baseTimeNanoseconds", default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvent:
    """A span of time [s]."""

    name: str
    category: str
    start_s: float
    end_s: float
    args: Mapping[str, Any]


def looks_like(data: Mapping[str, Any]) -> bool:
    """Return whether a JSON object is a trace."""
    return isinstance(data.get("traceEvents"), list)


def header(data: Mapping[str, Any], path: Path) -> TraceHeader:
    """Return what a trace tells besides its events.

    Raises:
        SimnetError: it is of another form.
    """
    return build(TraceHeader, data, str(path))


def events(data: Mapping[str, Any], path: Path) -> list[TraceEvent]:
    """Return the events of a trace that are spans of time.

    Raises:
        SimnetError: an event is of another form.
    """
    raw = enumerate(data["traceEvents"])
    return [_event(one, f"{path}: traceEvents[{at}]") for at, one in raw if _is_complete(one)]


def steps(found: Iterable[TraceEvent], path: Path) -> list[TraceEvent]:
    """Return the marks of the steps, in order.

    Raises:
        SimnetError: there are none.
    """
    # With a GPU a trace marks each step twice, on the clock of the CPU and on that of the GPU: the first is read.
    marks = [event for event in found if STEP.fullmatch(event.name) and event.category == "user_annotation"]
    if not marks:
        raise SimnetError(f"{path}: no ProfilerStep: call prof.step() after every training step, and profile again")
    return sorted(marks, key=lambda mark: mark.start_s)


def _is_complete(event: object) -> bool:
    """Return whether an event is a span of time, and not a flow, a counter or the name of a thread."""
    return isinstance(event, dict) and event.get("ph") == "X"


def _event(raw: Mapping[str, Any], where: str) -> TraceEvent:
    if not {"name", "ts", "dur"} <= raw.keys():
        raise SimnetError(f"{where}: an event without name, ts or dur: {REPAIR}")
    for key, kind, rule in (("name", str, "text"), ("cat", str, "text"), ("args", dict, "an object")):
        if not isinstance(raw.get(key, kind()), kind):
            raise SimnetError(f"{where}.{key}: {shown(raw[key])}: must be {rule}: {REPAIR}")
    start, duration = (_microseconds(raw[key], f"{where}.{key}") for key in ("ts", "dur"))
    return TraceEvent(
        name=raw["name"],
        category=raw.get("cat", ""),
        start_s=start * 1e-6,
        end_s=(start + duration) * 1e-6,
        args=raw.get("args", {}),
    )


def _microseconds(given: object, where: str) -> float:
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not 0 <= given < MAX_MICROSECONDS:  # type: ignore[operator]
        raise SimnetError(f"{where}: {shown(given)}: must be a number of microseconds: {REPAIR}")
    return float(given)  # type: ignore[arg-type]


def is_communication(event: TraceEvent, *, on_gpu: bool) -> bool:
    """Tell whether an event is communication at work."""
    return event.category == ("kernel" if on_gpu else "user_annotation") and bool(COMMUNICATION.match(event.name))


def is_compute(event: TraceEvent, *, on_gpu: bool) -> bool:
    """Tell whether an event is compute."""
    if on_gpu:
        return event.category == "kernel" and not COMMUNICATION.match(event.name)
    return event.category == "cpu_op" and not event.name.startswith(_OF_THE_EXCHANGE)


def input_bytes(args: Mapping[str, Any]) -> int:
    """Return the bytes of the inputs of an operator, 0 where the trace has no shapes."""
    shapes, kinds = args.get("Input Dims"), args.get("Input type")
    if not isinstance(shapes, list) or not isinstance(kinds, list):
        return 0
    total = 0
    for dims, kind in zip(shapes, kinds, strict=False):
        size = ITEM_BYTES.get(str(kind), 0)
        for dim in dims if isinstance(dims, list) else ():
            size *= count(dim)
        total += size
    return total


def count(given: object) -> int:
    """Return a number of elements; 0 where it is no valid number."""
    return given if type(given) is int and 0 < given < MAX_ELEMENTS else 0


def ranks_of(given: object) -> tuple[int, ...]:
    """Return ranks that stand in the trace as a list or as its text; () where a long list is cut short there."""
    try:
        found = parse_json(given.encode(errors="replace"), "ranks") if isinstance(given, str) else given
    except SimnetError:
        return ()
    is_whole = isinstance(found, list) and all(type(rank) is int and rank >= 0 for rank in found)
    return tuple(found) if is_whole else ()  # type: ignore[arg-type]


def number(args: Mapping[str, Any], key: str) -> int:
    """Return a whole number among the arguments of an event; 0 where it is none."""
    given = args.get(key)
    return given if type(given) is int else 0


def launch_times(found: Iterable[TraceEvent]) -> dict[int, float]:
    """Return when the CPU launched each thing that a GPU did, by the number of its launch [s]."""
    return {number(event.args, "correlation"): event.start_s for event in found if event.category in LAUNCHES}


def union(found: Iterable[TraceEvent]) -> list[Span]:
    """Return the spans in which any event ran, without overlaps: operators nest, and streams run at once."""
    return union_of_spans((event.start_s, event.end_s) for event in found)


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
    place = bisect_right(spans, (time_s, float("inf"))) - 1
    return place >= 0 and time_s < spans[place][1]

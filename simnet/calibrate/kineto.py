"""Read the Chrome traces of torch.profiler (Kineto): where the time of a training step went on one rank.

Names in the trace: `ProfilerStep#k` is a step, `gloo:...` and `ncclKernel...`/`ncclDevKernel...` are communication,
`DistributedDataParallel.forward` and `Optimizer.step#...` the phases; with a GPU, `kernel` events are its compute and
`gpu_user_annotation` events the phases on its clock. Times of gloo include waiting for the slowest rank.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from simnet.errors import SimnetError
from simnet.files import read_json

_STEP = re.compile(r"ProfilerStep#\d+")
_COMMUNICATION = re.compile(r"gloo:|nccl(Dev)?Kernel")
_OPTIMIZER = re.compile(r"Optimizer\.step#")
_FORWARD = "DistributedDataParallel.forward"
_BACKWARD = "autograd::engine::evaluate_function"
_NCCL_NAME = re.compile(r"nccl(?:Dev)?Kernel_(\w+?)_")
ITEM_BYTES = {
    "float": 4, "Float": 4, "double": 8, "Double": 8, "c10::Half": 2, "Half": 2, "c10::BFloat16": 2, "BFloat16": 2,
    "unsigned char": 1, "Byte": 1, "int": 4, "Int": 4, "long int": 8, "Long": 8,
}  # fmt: skip
Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Message:
    """One collective of a step: its name, bytes (0: not told) and seconds, waiting for other ranks among them."""

    name: str
    num_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Where one step went [s]; `overlapped_s` is communication while there was compute.

    `backward_s` is what compute is left without forward and optimizer where the trace does not tell it.
    """

    step_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    compute_s: float
    communication_s: float
    overlapped_s: float
    messages: tuple[Message, ...]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One rank's trace: the backend, ranks in all, the GPU (empty: none), and every whole step."""

    backend: str
    world_size: int
    gpu: str
    steps: tuple[StepTimes, ...]

    def median_s(self, name: str) -> float:
        """Return the median over the steps of a field of `StepTimes` [s]."""
        return float(median(getattr(step, name) for step in self.steps))

    @property
    def reduced_bytes(self) -> int:
        """Bytes all-reduced in a step, the median over the steps."""
        return int(
            median(
                sum(message.num_bytes for message in step.messages if "reduce" in message.name.lower())
                for step in self.steps
            )
        )


def looks_like(data: Mapping[str, Any]) -> bool:
    """Tell whether a JSON object is a trace."""
    return isinstance(data.get("traceEvents"), list)


def load(path: Path) -> Mapping[str, Any]:
    """Read JSON, packed by gzip or not.

    Raises:
        SimnetError: it cannot be read, or is no JSON object.
    """
    whole = read_json(path, unique=False)
    if not isinstance(whole, dict):
        raise SimnetError(f"{path}: {type(whole).__name__}: must hold one JSON object")
    return whole


def parse(data: Mapping[str, Any], path: Path) -> Trace:
    """Return the steps of a trace.

    Raises:
        SimnetError: there are no steps in it.
    """
    events = [event for event in data["traceEvents"] if isinstance(event, dict) and event.get("ph") == "X"]
    if not all({"name", "ts", "dur"} <= event.keys() for event in events):
        raise SimnetError(f"{path}: traceEvents: an event without name, ts or dur: export the trace again")
    on_gpu = any(event.get("cat") == "kernel" for event in events)
    marks = [event for event in events if _STEP.fullmatch(event["name"]) and event.get("cat") == "user_annotation"]
    if not marks:
        raise SimnetError(f"{path}: no ProfilerStep: call prof.step() after every training step, and profile again")
    about = data.get("distributedInfo") or {}
    devices = data.get("deviceProperties") or [{}]
    return Trace(
        backend=str(about.get("backend", "")),
        world_size=int(about.get("world_size", 1)),
        gpu=str(devices[0].get("name", "")) if on_gpu else "",
        steps=tuple(_step(mark, events, on_gpu=on_gpu) for mark in sorted(marks, key=lambda mark: float(mark["ts"]))),
    )


def _step(mark: Mapping[str, Any], events: Sequence[Mapping[str, Any]], *, on_gpu: bool) -> StepTimes:
    start, end = _span(mark)
    inside = [event for event in events if start <= float(event["ts"]) * 1e-6 < end]
    talks = [event for event in inside if _is_communication(event, on_gpu=on_gpu)]
    works = [event for event in inside if _is_compute(event, on_gpu=on_gpu)]
    phases = [event for event in inside if event.get("cat") == ("gpu_user_annotation" if on_gpu else "user_annotation")]
    talk, work = _union(map(_span, talks)), _union(map(_span, works))
    forward_s = _length(_union(_span(event) for event in phases if event["name"] == _FORWARD))
    optimizer_s = _length(_union(_span(event) for event in phases if _OPTIMIZER.match(event["name"])))
    backward = _union(_span(event) for event in inside if event["name"].startswith(_BACKWARD))
    rest_s = max(_length(work) - forward_s - optimizer_s, 0.0)
    return StepTimes(
        step_s=end - start,
        forward_s=forward_s,
        backward_s=rest_s if on_gpu or not backward else _length(backward),
        optimizer_s=optimizer_s,
        compute_s=_length(work),
        communication_s=_length(talk),
        overlapped_s=_length(talk) + _length(work) - _length(_union([*talk, *work])),
        messages=tuple(_message(event) for event in talks),
    )


def _is_communication(event: Mapping[str, Any], *, on_gpu: bool) -> bool:
    kinds = ("kernel",) if on_gpu else ("user_annotation",)
    return event.get("cat") in kinds and bool(_COMMUNICATION.match(event["name"]))


def _is_compute(event: Mapping[str, Any], *, on_gpu: bool) -> bool:
    if on_gpu:
        return event.get("cat") == "kernel" and not _COMMUNICATION.match(event["name"])
    return event.get("cat") == "cpu_op" and not event["name"].startswith("c10d::")


def _message(event: Mapping[str, Any]) -> Message:
    """Read one collective: NCCL tells elements and type, gloo the shape of its input."""
    args = event.get("args", {})
    if "In msg nelems" in args:
        name = str(args.get("Collective name", "")) or event["name"]
        num_bytes = int(args["In msg nelems"]) * ITEM_BYTES.get(str(args.get("dtype")), 0)
    else:
        found = _NCCL_NAME.match(event["name"])
        name = found[1] if found else event["name"].removeprefix("gloo:")
        num_bytes = _input_bytes(args)
    start, end = _span(event)
    return Message(name=name, num_bytes=num_bytes, seconds=end - start)


def _input_bytes(args: Mapping[str, Any]) -> int:
    total = 0
    for dims, kind in zip(args.get("Input Dims", ()), args.get("Input type", ()), strict=False):
        size = ITEM_BYTES.get(kind, 0)
        for dim in dims if isinstance(dims, list) else ():
            size *= dim if isinstance(dim, int) else 0
        total += size
    return total


def _span(event: Mapping[str, Any]) -> Span:
    """Return start and end [s]; traces count microseconds."""
    start = float(event["ts"])
    return start * 1e-6, (start + float(event["dur"])) * 1e-6


def _union(spans: Iterable[Span]) -> list[Span]:
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def _length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)

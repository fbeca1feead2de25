"""The times of the training steps of a rank in the Chrome traces of torch.profiler (Kineto): phases and collectives.

Times of gloo include waits for the slowest rank.
A process alone marks no forward: there it is the compute that is neither backward nor optimizer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from simnet.traces import kineto_events
from simnet.traces.kineto_events import (
    BACKWARD,
    ITEM_BYTES,
    LAUNCH_ID,
    NCCL_NAME,
    OPTIMIZER,
    Span,
    TraceEvent,
    count,
    input_bytes,
    is_communication,
    is_compute,
    is_within,
    length,
    union,
)

FORWARD = "DistributedDataParallel.forward"


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


def parse(data: Mapping[str, Any], path: Path) -> Trace:
    """Return the steps of a trace.

    Raises:
        SimnetError: there are no steps in it, or an event is of another form.
    """
    events = kineto_events.events(data, path)
    on_gpu = any(event.category == "kernel" for event in events)
    marks = kineto_events.steps(events, path)
    about = kineto_events.header(data, path)
    return Trace(
        backend=about.distributed.backend if about.distributed else "",
        rank=about.distributed.rank if about.distributed else 0,
        world_size=about.distributed.world_size if about.distributed else 1,
        gpu=about.devices[0].name if on_gpu and about.devices else "",
        steps=tuple(_step(mark, events, on_gpu=on_gpu) for mark in marks),
    )


def _step(mark: TraceEvent, events: Sequence[TraceEvent], *, on_gpu: bool) -> TracedStep:
    # An event belongs to the step in which it starts, since a kernel may end in the next one.
    inside = [event for event in events if mark.start_s <= event.start_s < mark.end_s]
    collectives = [event for event in inside if is_communication(event, on_gpu=on_gpu)]
    computes = [event for event in inside if is_compute(event, on_gpu=on_gpu)]
    phases = [event for event in inside if event.category == ("gpu_user_annotation" if on_gpu else "user_annotation")]
    communicating, computing = union(collectives), union(computes)
    forward_s = length(union(event for event in phases if event.name == FORWARD))
    optimizer_s = length(union(event for event in phases if OPTIMIZER.match(event.name)))
    backward = union(event for event in inside if event.name.startswith(BACKWARD))
    backward_s = _kernels_s(inside, computes, backward) if on_gpu else length(backward)
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
        collectives=tuple(traced_collective(event) for event in collectives),
    )


def _kernels_s(inside: Sequence[TraceEvent], kernels: Iterable[TraceEvent], spans: Sequence[Span]) -> float:
    """Return the time of the kernels whose operators started within spans of the CPU; 0 if no kernel names its own."""
    launched: set[int] = set()
    for event in inside:
        if event.category == "cpu_op" and is_within(event.start_s, spans):
            launched |= _launch_ids(event)
    return length(union(kernel for kernel in kernels if _launch_ids(kernel) & launched))


def _launch_ids(event: TraceEvent) -> set[int]:
    """Return the number that ties a kernel to its operator, if there is one."""
    given = event.args.get(LAUNCH_ID)
    return {given} if isinstance(given, int) else set()


def traced_collective(event: TraceEvent) -> TracedCollective:
    """Read one collective: NCCL gives elements and dtype, gloo gives the shape of its input."""
    args = event.args
    if "In msg nelems" in args:
        name = str(args.get("Collective name", "")) or event.name
        num_bytes = count(args["In msg nelems"]) * ITEM_BYTES.get(str(args.get("dtype")), 0)
    else:
        found = NCCL_NAME.match(event.name)
        name = found[1] if found else event.name.removeprefix("gloo:")
        num_bytes = input_bytes(args)
    return TracedCollective(name=name, num_bytes=num_bytes, seconds=event.end_s - event.start_s)

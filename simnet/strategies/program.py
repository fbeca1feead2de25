"""The iteration of one rank as data: streams of operations, each with the operations that must end before it starts.

As CUDA streams with events: operations of one stream run in order; streams overlap, and share the GPU and the links.
Every strategy makes such a program (`simnet.strategies`); the runners know programs alone, and no strategy.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, get_args

from msgspec import Struct

from simnet.cluster.schedule import Schedule
from simnet.workload.training_step import Step

IterationPart = Literal["forward", "backward", "encode", "decode", "optimizer"]
Waiting = Literal["wait"]
"""Time in which the GPU is idle and nothing is sent; a result counts it as exposed communication."""


class OperationId(NamedTuple):
    """An operation by its stream and its position there, both from 0; `after` holds those that must have ended."""

    stream: int
    position: int


class StepShare(NamedTuple):
    """How much of each time of a training step some work takes; what these times are is left open.

    The backward whose gradients are exchanged has its own place: calibrations draw its hooks apart from backward.
    """

    forward: float = 0.0
    backward: float = 0.0
    exchanged_backward: float = 0.0
    optimizer: float = 0.0

    def scaled(self, factor: float) -> "StepShare":
        """Return so many times as much."""
        return StepShare(*(share * factor for share in self))

    def seconds(self, step_times: Sequence[float]) -> float:
        """Return how long it takes in a step of these times, as `step_times` gives them [s]."""
        return sum((share * time_s for share, time_s in zip(self, step_times, strict=True) if share), 0.0)


def step_times(step: Step) -> tuple[float, ...]:
    """Return the times of which a `StepShare` is, in the order of its fields [s]."""
    return step.forward_s, step.backward_s, step.exchanged_backward_s, step.optimizer_s


NO_SHARE = StepShare()


class Compute(Struct, frozen=True, kw_only=True):
    """Work of the GPU, counted as `part` of the iteration, or a wait as long.

    It takes `seconds` and its share of the step's own times, on an idle GPU. A share stays what it is where a draw, a
    batch or a card changes those times.
    """

    part: IterationPart | Waiting
    seconds: float = 0.0
    share: StepShare = NO_SHARE
    name: str = ""
    bucket: int | None = None
    after: tuple[OperationId, ...] = ()


class Kernel(Struct, frozen=True, kw_only=True):
    """A kernel over `num_elements`, whose time the calibration knows; counted as `part` of the iteration.

    One that combines vectors has the elements of all of them, and their number.
    """

    name: str
    part: IterationPart
    num_elements: float
    num_vectors: int = 1
    bucket: int | None = None
    after: tuple[OperationId, ...] = ()


class Communicate(Struct, frozen=True, kw_only=True):
    """A collective on a message of `message_bytes` in each group (the whole array, as nccl-tests counts)."""

    schedule: Schedule
    message_bytes: float
    bucket: int | None = None
    after: tuple[OperationId, ...] = ()


Operation = Compute | Kernel | Communicate


class InnerSteps(Struct, frozen=True, kw_only=True):
    """Optimizer steps that are all alike and wait for no other: each takes what one of them takes alone.

    Attributes:
        program: of one of them.
        number: of them.
    """

    program: "Program"
    number: int


class Program(Struct, frozen=True, kw_only=True):
    """One iteration of one rank, or as many as its operations repeat after; all ranks do the same.

    Attributes:
        streams: the operations of each stream in order; compute is stream 0.
        num_buckets: buckets of gradients.
        payload_bytes: size of all gradients of an iteration in the form in which they are sent.
        algorithm: of the collectives, for people.
        num_steps: optimizer steps that the streams hold; an iteration is one of them.
        inner: further steps of the period, before the streams begin.
        notes: sentences that a reader of the result must know.
    """

    streams: tuple[tuple[Operation, ...], ...]
    num_buckets: int
    payload_bytes: float
    algorithm: str
    num_steps: int = 1
    inner: InnerSteps | None = None
    notes: tuple[str, ...] = ()

    @property
    def period(self) -> int:
        """Optimizer steps after which everything repeats."""
        return self.num_steps + (self.inner.number if self.inner else 0)

    @property
    def operations(self) -> Iterator[Operation]:
        """Every operation, stream by stream."""
        return (operation for stream in self.streams for operation in stream)

    @property
    def collectives(self) -> tuple[Communicate, ...]:
        """Every collective of the iteration, in order."""
        return tuple(operation for operation in self.operations if isinstance(operation, Communicate))

    @property
    def kernels(self) -> frozenset[str]:
        """Names of all kernels of the iteration."""
        inner = self.inner.program.kernels if self.inner else frozenset()
        return inner | {operation.name for operation in self.operations if isinstance(operation, Kernel)}

    @property
    def num_rounds(self) -> int:
        """Rounds of all collectives of a period, those posted at once counted one by one."""
        inner = self.inner.number * self.inner.program.num_rounds if self.inner else 0
        return inner + sum(collective.schedule.num_rounds for collective in self.collectives)


class Streams:
    """Streams of a program while they are made, each a list of operations."""

    def __init__(self, number: int) -> None:
        self.lists: tuple[list[Operation], ...] = tuple([] for _ in range(number))

    def add(self, stream: int, *operations: Operation) -> tuple[OperationId, ...]:
        """Add operations to a stream, and return its last one as what another waits for."""
        self.lists[stream].extend(operations)
        return self.last(stream)

    def last(self, stream: int) -> tuple[OperationId, ...]:
        """Return the last operation of a stream as what another waits for; none at the beginning."""
        return (OperationId(stream, len(self.lists[stream]) - 1),) if self.lists[stream] else ()

    def made(self) -> tuple[tuple[Operation, ...], ...]:
        """Return the streams as a program holds them."""
        return tuple(map(tuple, self.lists))


def check_program(program: object) -> Program:
    """Return a program that foreign code has made, if it can be run.

    Raises:
        ValueError: it cannot; the message says why.
    """
    if not isinstance(program, Program):
        raise ValueError(f"{type(program).__name__}: must be a Program")
    for operation in program.operations:
        _check_operation(operation)
    # Foreign code is checked here once, so that runners need not ask at every operation.
    if not (0 < program.payload_bytes < math.inf and program.num_buckets >= 1):
        raise ValueError(
            f"{program.num_buckets} buckets of {program.payload_bytes} B: must be above 0 B; fix the strategy"
        )
    if program.num_steps < 1:
        raise ValueError(f"num_steps: {program.num_steps}: must be at least 1; fix the strategy")
    if program.inner is not None:
        if program.inner.number < 1:
            raise ValueError(f"inner: {program.inner.number} steps: must be at least 1; fix the strategy")
        check_program(program.inner.program)
    if not _terminates(program):
        raise ValueError("an operation waits for one that never ends; fix its `after`")
    return program


def _check_operation(operation: Operation) -> None:
    if isinstance(operation, Communicate):
        size, what = operation.message_bytes, "message_bytes"
    elif isinstance(operation, Kernel):
        size, what = operation.num_elements, "num_elements"
    else:
        size, what = operation.seconds + sum(operation.share), "seconds"
    if not 0 <= size < math.inf:
        raise ValueError(f"{what}: {size}: must be finite and not below 0")
    if isinstance(operation, Kernel) and operation.num_vectors < 1:
        raise ValueError(f"num_vectors: {operation.num_vectors}: must be at least 1")
    if not isinstance(operation, Communicate) and operation.part not in get_args(IterationPart):
        raise ValueError(f"part: {operation.part!r}: must be one of {', '.join(get_args(IterationPart))}")


def _terminates(program: Program) -> bool:
    """Tell whether every operation can start once those that it waits for have ended: no cycle, no unknown id."""
    ended = ended_operations([[operation.after for operation in stream] for stream in program.streams])
    return ended == [len(stream) for stream in program.streams]


def ended_operations(streams: Sequence[Sequence[tuple[OperationId, ...]]]) -> list[int]:
    """Return how many operations of each stream ever end, each given by those that it waits for."""
    # Streams are gone through until none moves: what is left then waits for itself, or for what is not there.
    ended = [0] * len(streams)
    moved = True
    while moved:
        moved = False
        for number, stream in enumerate(streams):
            while ended[number] < len(stream) and all(
                0 <= awaited.stream < len(ended) and ended[awaited.stream] > awaited.position
                for awaited in stream[ended[number]]
            ):
                ended[number] += 1
                moved = True
    return ended

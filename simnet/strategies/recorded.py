"""A recorded step of the user's own script, simulated as any strategy: its streams, its collectives, its groups."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

from simnet.cluster.schedule import Group, Schedule
from simnet.cluster.topology import Topology
from simnet.collectives import algorithms, direct, ring
from simnet.collectives.broadcast import Form, Way
from simnet.core import files
from simnet.core.errors import SimnetError
from simnet.core.units import format_bytes
from simnet.strategies import step_file, step_layouts
from simnet.strategies.base import Algorithm, Choices, Strategy, as_it_is, check_algorithm
from simnet.strategies.program import (
    NO_SHARE,
    Communicate,
    Compute,
    IterationPart,
    Kernel,
    Operation,
    OperationId,
    Program,
    StepShare,
    step_times,
)
from simnet.strategies.step_file import RecordedLayout, RecordedOperation, TimedBy
from simnet.workload.gpu_memory import ModelMemory
from simnet.workload.kernel_cost import KernelCost
from simnet.workload.training_step import Step

# What a barrier sends: an all-reduce of one number.
BARRIER_BYTES = 4.0
# Gradients of the recording and of the workload that differ more are those of two models.
SAME_MODEL = 0.01
CONTRIBUTED = ("all_reduce", "reduce_scatter", "all_to_all", "reduce")
"""Collectives that carry what each rank has to add; the others hand out what is there."""
MEMORY_TRAFFIC = KernelCost(name="recorded_bytes", bytes_per_element=1.0)


class RecordedStep(Strategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="recorded"):
    """Do what a training script did in steps that `simnet record` has recorded.

    Attributes:
        file: the recorded step.
        algorithm: the all-reduce algorithm, where something is all-reduced, as of `all_reduce`.
        broadcast: "tree" as gloo does, or "pipeline" as NCCL does; by default the faster.
        reduce_scatter_as: "all_reduce" sends the bytes of a whole all-reduce, as gloo does in torch 2.13.
        compute: "workload" shares the workload's times of forward, backward and optimizer out among the operations, by
            their seconds or else by FLOPs and bytes; what compresses takes its bytes over the calibration's memory
            bandwidth. "recorded" takes the recorded seconds.
    """

    title: ClassVar[str] = "recorded step"
    kernels: ClassVar[tuple[KernelCost, ...]] = (MEMORY_TRAFFIC,)
    uses_ddp_buckets: ClassVar[bool] = False
    path_keys: ClassVar[tuple[str, ...]] = ("file",)
    takes_other_micro_batches: ClassVar[bool] = False
    choices: ClassVar[Choices] = Choices(presets={}, bucketings=as_it_is)  # there is no step without a file

    file: str
    algorithm: Algorithm | None = None
    broadcast: Form | None = None
    reduce_scatter_as: Literal["ring", "all_reduce"] = "ring"
    compute: Literal["workload", "recorded"] = "workload"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.file:
            raise ValueError("file: '': is empty; name a file that simnet record writes")
        check_algorithm("algorithm", self.algorithm)
        for key, default in (("bucketing", "ddp"), ("bucket_cap", None), ("overlap", True)):
            if getattr(self, key) != default:
                raise ValueError(f"{key}: has no effect on a recorded step, whose buckets are as recorded; drop it")

    def memory(self, model: ModelMemory, step: Step, topology: Topology) -> None:
        """Return none: a step file does not hold what its script kept in memory."""

    def program(self, step: Step, topology: Topology) -> Program:
        """Return the recorded streams on the cluster's nodes and ranks.

        Raises:
            SimnetError: the file cannot be read, or its step does not fit the cluster, the workload or the run.
        """
        path = Path(self.file)
        # The stamp is part of the key: a file that is written anew is read anew.
        layout = _layout_at(path, files.file_stamp(path), topology.num_nodes, topology.ranks_per_node)
        if layout.micro_batches != step.micro_batches:
            raise SimnetError(
                f"run.grad_accumulation: {step.micro_batches}: {self.file} has a step of {layout.micro_batches} "
                f"micro-batches; set run.grad_accumulation = {layout.micro_batches}, or record the step with "
                f"{step.micro_batches}"
            )
        source = step_file.read(path).source
        if self.compute == "recorded" and source.compute != "timed":
            raise SimnetError(
                f"strategy.compute: 'recorded': {self.file} has no seconds, its compute is {source.compute!r}; record "
                "it on the GPU with --compute timed, or use 'workload'"
            )
        timed = _timed_compute(layout, source.compute, step, self.compute)
        streams = tuple(
            tuple(
                timed.get((stream, position)) or self._operation(recorded, layout, topology)
                for position, recorded in enumerate(operations)
            )
            for stream, operations in enumerate(stream.operations for stream in layout.streams)
        )
        collectives = [operation for stream in streams for operation in stream if isinstance(operation, Communicate)]
        return Program(
            streams=streams,
            num_buckets=_num_buckets(layout),
            payload_bytes=_payload_bytes(layout) or step.gradient_bytes,
            algorithm="+".join(sorted({sent.schedule.label for sent in collectives if sent.schedule.rounds})) or "none",
            num_steps=layout.num_steps,
            notes=(*layout.notes, *self._notes(path, layout, step)),
        )

    def _notes(self, path: Path, layout: RecordedLayout, step: Step) -> Iterable[str]:
        """Yield what a reader must know of a recorded step."""
        yield f"the step was recorded: {files.label(path)}, SHA-256 {step_file.content_hash(path)}"
        if not any(operation.kind != "compute" for operation in layout.operations):
            yield "the recorded step never communicates"
        recorded, expected = layout.gradient_bytes, step.gradient_bytes
        if recorded and abs(recorded / expected - 1) > SAME_MODEL:
            yield (
                f"the recorded step has gradients of {format_bytes(recorded)}, the workload of "
                f"{format_bytes(expected)}: is it the same model?"
            )
        if self.compute == "recorded":
            source = step_file.read(path).source
            yield f"compute takes the seconds that were recorded on {source.gpu or source.device}"

    def _operation(self, recorded: RecordedOperation, layout: RecordedLayout, topology: Topology) -> Operation:
        """Return a collective, or compute whose bytes the calibration times."""
        bucket, after = recorded.bucket, _waits(recorded)
        if recorded.kind == "compute":
            assert recorded.part is not None
            traffic = step_file.bytes_of_memory(recorded)
            return Kernel(
                name=MEMORY_TRAFFIC.name, part=recorded.part, num_elements=traffic, bucket=bucket, after=after
            )
        message_bytes = BARRIER_BYTES if recorded.kind == "barrier" else recorded.message_bytes
        group = _group(layout, recorded.group, topology, self.file)
        schedule = self._schedule(recorded.kind, group, topology, message_bytes)
        return Communicate(schedule=schedule, message_bytes=message_bytes, bucket=bucket, after=after)

    def _schedule(self, kind: str, group: Group, topology: Topology, message_bytes: float) -> Schedule:
        if group.size == 1:
            return ring.all_reduce(group)  # which sends nothing
        as_all_reduce = kind == "reduce_scatter" and self.reduce_scatter_as == "all_reduce"
        if kind in ("all_reduce", "barrier") or as_all_reduce:
            return algorithms.choose_on(self.algorithm, topology, message_bytes, group)
        if kind in ("broadcast", "reduce"):
            way: Way = "reduce" if kind == "reduce" else "broadcast"
            return algorithms.choose_broadcast(self.broadcast, topology, message_bytes, group, way)
        if kind == "send_recv":
            return ring.hop(group)
        if kind == "all_to_all":
            return direct.all_to_all(group)
        choose = algorithms.choose_all_gather if kind == "all_gather" else algorithms.choose_reduce_scatter
        return choose(topology, group, message_bytes)


@lru_cache(maxsize=256)
def _layout_at(path: Path, _stamp: tuple[int, ...], num_nodes: int, ranks_per_node: int) -> RecordedLayout:
    """Return a recorded step on a number of nodes and ranks, made once for each state of its file."""
    return step_layouts.at_layout(step_file.read(path), num_nodes, ranks_per_node, files.label(path))


def _group(layout: RecordedLayout, number: int, topology: Topology, where: str) -> Group:
    """Return the process groups of a collective."""
    recorded, per_node = layout.groups[number], topology.ranks_per_node
    size, stride = recorded.size, recorded.stride
    # Whole groups inside a node, one member in each, or as many members in each: else nodes load NICs unlike.
    is_inside = per_node % (size * stride) == 0
    is_regular = is_inside or stride % per_node == 0 or (per_node % stride == 0 and size % (per_node // stride) == 0)
    if not is_regular:
        raise SimnetError(
            f"{where}: group {recorded.name!r}: size {size}, stride {stride}: must have as many ranks in each node of "
            f"{per_node} that it reaches; set cluster.ranks_per_node, or record another mesh"
        )
    return Group(
        first=0, size=size, stride=stride, num_nodes=topology.num_nodes, ranks_per_node=topology.ranks_per_node
    )


def _waits(recorded: RecordedOperation) -> tuple[OperationId, ...]:
    return tuple(OperationId(*awaited) for awaited in recorded.after)


def _compute(recorded: RecordedOperation, seconds: float = 0.0, share: StepShare = NO_SHARE) -> Compute:
    assert recorded.part is not None
    return Compute(
        part=recorded.part,
        seconds=seconds,
        share=share,
        name=recorded.name,
        bucket=recorded.bucket,
        after=_waits(recorded),
    )


def _timed_compute(
    layout: RecordedLayout, timed_by: TimedBy, step: Step, compute: Literal["workload", "recorded"]
) -> Mapping[tuple[int, int], Compute]:
    """Return each compute operation by its place; none whose bytes the calibration times."""
    computed = {
        (number, position): operation
        for number, stream in enumerate(layout.streams)
        for position, operation in enumerate(stream.operations)
        if operation.kind == "compute"
    }
    if compute == "recorded":
        return {place: _compute(operation, operation.seconds) for place, operation in computed.items()}
    # A trace times what compresses and does not count its bytes.
    timed = {
        place: _compute(operation, operation.seconds)
        for place, operation in computed.items()
        if not step_file.bytes_of_memory(operation)
    }
    micro_batches = step.micro_batches
    of_workload: dict[IterationPart, StepShare] = {
        "forward": StepShare(forward=micro_batches),
        "backward": StepShare(backward=micro_batches - 1, exchanged_backward=1.0),
        "optimizer": StepShare(optimizer=1.0),
    }
    for part, of_step in of_workload.items():
        # A recording may hold a period of several steps, whose operations share out the times of all.
        whole = of_step.scaled(layout.num_steps)
        weights = {
            place: operation.seconds if timed_by == "timed" else step_file.bytes_of_memory(operation)
            for place, operation in computed.items()
            if operation.part == part
        }
        total_s = whole.seconds(step_times(step))
        if not weights and total_s > 0:
            raise SimnetError(
                f"strategy.file: no compute of {part!r} in {layout.text}: the workload takes {total_s:g} s for it; "
                f"{step_file.REPAIR} with its compute, or set workload.{part} to '0 s'"
            )
        total = sum(weights.values())
        for place, weight in weights.items():
            # Operations of which nothing is counted are taken as equal.
            fraction = weight / total if total else 1 / len(weights)
            timed[place] = _compute(computed[place], share=whole.scaled(fraction))
    return timed


def _num_buckets(layout: RecordedLayout) -> int:
    """Return the buckets of gradients, or the collectives where none is named."""
    sent = [operation for operation in layout.operations if operation.kind not in ("compute", "barrier")]
    return max(1, len({message.bucket for message in sent if message.bucket is not None}) or len(sent))


def _payload_bytes(layout: RecordedLayout) -> float:
    """Return what a rank adds to the exchanges of one step: in the group to which it adds most [B]."""
    of_groups: dict[int, float] = defaultdict(float)
    for operation in layout.operations:
        if operation.kind in CONTRIBUTED:
            of_groups[operation.group] += operation.message_bytes
    # A step that only gathers adds what each rank contributes: its own part of each gather.
    if not of_groups:
        for operation in layout.operations:
            if operation.kind == "all_gather":
                of_groups[operation.group] += operation.message_bytes / layout.groups[operation.group].size
    return max(of_groups.values(), default=0.0) / layout.num_steps

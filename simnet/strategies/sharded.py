"""The step of sharded training as FSDP2 does it: parts gathered before they compute, their gradients scattered after.

What waits for what is that of `torch.distributed.fsdp.fully_shard` in PyTorch 2.13, recorded from it and compared by
tests/contract/test_sharded_steps.py. All-gathers and reduce-scatters of one group run in the order in which they are
issued, as NCCL runs those of one communicator.
"""

from collections import Counter, deque
from collections.abc import Sequence
from itertools import islice
from typing import ClassVar, Literal, NamedTuple

from msgspec.structs import replace

from simnet.cluster.schedule import Group, Schedule
from simnet.cluster.topology import Topology
from simnet.collectives import algorithms, nccl
from simnet.core.bounded_types import BYTES_PER_ELEMENT, Dtype
from simnet.core.errors import SimnetError
from simnet.core.units import Size
from simnet.strategies.all_reduce import Algorithm, check_algorithm
from simnet.strategies.base import Mathematics, Strategy
from simnet.strategies.program import Communicate, Compute, IterationPart, Kernel, Operation, OperationId, Program
from simnet.workload import blocks
from simnet.workload.blocks import BackwardSegment, ModelParts
from simnet.workload.kernel_cost import KernelCost
from simnet.workload.training_step import Step

COMPUTE, SHARDS, REPLICAS = 0, 1, 2
"""Streams: of the GPU, of the ranks that share one copy of the model, and of those that hold the same shard."""
SHARD_COPY = KernelCost(name="shard_copy", bytes_per_element=2.0, is_streaming=True)
"""Put what was gathered into whole tensors, or gradients into rows of shards: read and write each byte."""
KEPT_GATHERS = 2
"""A forward all-gather waits until the one before the last is copied out: two hold memory at once."""


class Wire(NamedTuple):
    """What travels, and among whom.

    Attributes:
        shards: groups of the ranks that share one copy of the model.
        replicas: groups of the ranks that hold the same shard.
        gather_width: bytes of an element of gathered parameters.
        reduce_width: bytes of an element of reduced gradients.
    """

    shards: Group
    replicas: Group
    gather_width: int
    reduce_width: int


class ShardedStrategy(Strategy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shard parameters, gradients and optimizer state over ranks.

    Attributes:
        reshard_after_forward: whether blocks are freed after forward and gathered again for backward; the root, which
            holds what is in no block, never is, as by torch's default.
        reduce_every: with several micro-batches, "micro_batch" reduces the gradients of each, so that they stay
            sharded; "step" keeps them whole and reduces them in the last, as set_requires_gradient_sync(False) does.
        gather_dtype: number format in which parameters are gathered; by default that of the gradients.
        reduce_dtype: number format in which gradients are reduced; by default their own.
        unit_cap: size that ends a part which is gathered as one; by default parts are the model's blocks, by the names
            of its tensors.
        reduce_scatter_as: "all_reduce" sends the bytes of a whole all-reduce, as gloo does in torch 2.13.
        algorithm: the all-reduce algorithm where something is all-reduced, as of `all_reduce`.
    """

    kernels: ClassVar[tuple[KernelCost, ...]] = (SHARD_COPY,)
    compresses: ClassVar[bool] = False
    uses_ddp_buckets: ClassVar[bool] = False

    reshard_after_forward: bool = True
    reduce_every: Literal["micro_batch", "step"] = "micro_batch"
    gather_dtype: Dtype | None = None
    reduce_dtype: Dtype | None = None
    unit_cap: Size | None = None
    reduce_scatter_as: Literal["ring", "all_reduce"] = "ring"
    algorithm: Algorithm | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_algorithm("algorithm", self.algorithm)
        if self.bucketing != "ddp":
            raise ValueError(
                f"bucketing: {self.bucketing!r}: sharding has parts, not buckets; set unit_cap, or drop it"
            )
        if self.unit_cap is not None and self.unit_cap < 1:
            raise ValueError(f"unit_cap: {self.unit_cap.text()!r}: must be at least 1 B")

    @property
    def mathematics(self) -> Mathematics:
        """Rounding, where gathered parameters or reduced gradients are cast."""
        return "same" if self.gather_dtype is None and self.reduce_dtype is None else "rounding"

    @property
    def form(self) -> str:
        """Whether blocks are freed after forward."""
        return "freed after forward" if self.reshard_after_forward else "kept after forward"

    def topology_variants(self) -> tuple[Strategy, ...]:
        """Return it with blocks freed after forward, and kept."""
        return tuple(replace(self, reshard_after_forward=frees) for frees in (True, False))

    def bucketing_variants(self, caps: Sequence[Size | None]) -> tuple[Strategy, ...]:  # noqa: ARG002
        """Return it alone: parts are the model's blocks."""
        return (self,)

    def reduced_in(self, micro_batches: int) -> list[bool]:
        """Return for each micro-batch whether its gradients are reduced."""
        return [self.reduce_every == "micro_batch" or number == micro_batches for number in range(1, micro_batches + 1)]

    def wire(self, step: Step, shards: Group, replicas: Group) -> Wire:
        """Return what travels among these groups."""
        gather, reduce = (
            BYTES_PER_ELEMENT[dtype] if dtype else step.bytes_per_element
            for dtype in (self.gather_dtype, self.reduce_dtype)
        )
        return Wire(shards, replicas, gather, reduce)

    def parts(self, step: Step) -> ModelParts:
        """Return the parts that are gathered as one.

        Raises:
            SimnetError: the workload does not say how its model is made.
        """
        return blocks.parts_of(step.tensors, self.unit_cap, step.bytes_per_element)


def check_groups(shards: Group, key: str) -> None:
    """Refuse shards that do not tile the cluster.

    Raises:
        SimnetError: more ranks than there are, a number that does not divide them, or groups that cut nodes unevenly.
    """
    size, world, per_node = shards.size, shards.world_size, shards.ranks_per_node
    if size > world:
        raise SimnetError(f"{key}: {size}: the cluster has {world} ranks; give at most {world}")
    if world % size or (size % per_node and per_node % size):
        raise SimnetError(
            f"{key}: {size}: must be a part of a node of {per_node} ranks, or whole nodes, and divide the {world} ranks"
        )


class ShardedStep:
    """The streams of one sharded step while they are made."""

    def __init__(self, strategy: ShardedStrategy, step: Step, topology: Topology, wire: Wire) -> None:
        self._strategy, self._step, self._topology, self._wire = strategy, step, topology, wire
        self._model = strategy.parts(step)
        self._streams: tuple[list[Operation], ...] = ([], [], [])
        self._gathered: dict[int, tuple[OperationId, ...]] = {}
        self._is_whole: set[int] = set()
        self._blocking: list[OperationId] = []
        self._scattered: list[OperationId] = []

    def program(
        self, *, reduced_in: Sequence[bool], all_reduced_in: Sequence[bool], between: Sequence[Operation] = ()
    ) -> Program:
        """Return the step.

        Args:
            reduced_in: for each micro-batch, whether its gradients are reduced among the ranks of a copy.
            all_reduced_in: for each, whether shards are then all-reduced among the copies.
            between: what is done on whole shards after backward, in order, before the optimizer.
        """
        for number, (reduces, all_reduces) in enumerate(zip(reduced_in, all_reduced_in, strict=True)):
            is_last = number == len(reduced_in) - 1
            self._forward()
            backward_s = self._step.exchanged_backward_s if is_last else self._step.backward_s
            self._backward(backward_s, reduces=reduces, all_reduces=all_reduces)
        self._blocking = [*self._ended(SHARDS), *self._ended(REPLICAS)]
        for operation in between:
            self._after_backward(operation)
        self._work(Compute(part="optimizer", seconds=self._step.optimizer_s / self._wire.shards.size))
        return Program(
            streams=tuple(tuple(stream) for stream in self._streams if stream or stream is not self._streams[REPLICAS]),
            num_buckets=len(self._model.parts),
            payload_bytes=sum(map(self._reduced_bytes, range(len(self._model.parts)))),
            algorithm=self._algorithm(),
        )

    def _algorithm(self) -> str:
        sent = (one.schedule for stream in self._streams for one in stream if isinstance(one, Communicate))
        return "+".join(
            sorted({one.label for one in sent if one.collective == "all_reduce" and one.rounds} | {"shards"})
        )

    def _forward(self) -> None:
        """Compute forward; all-gathers run ahead of it by as many as hold memory at once."""
        self._is_whole.clear()
        root = self._model.root
        blocks_in_order = [part for part in reversed(range(len(self._model.parts))) if part != root]
        waiting = deque([*([] if root is None else [root]), *blocks_in_order])
        begun = self._ended(COMPUTE)
        ahead = KEPT_GATHERS if self._strategy.overlap else 0
        for _ in range(min(ahead, len(waiting))):
            self._gather(waiting.popleft(), begun)
        needed = [] if root is None else [BackwardSegment(root, 0.0)]
        for part, fraction in (*needed, *reversed(self._model.segments)):
            if part not in self._is_whole:
                if part in waiting:
                    waiting.remove(part)
                    self._gather(part, begun)
                copied = self._copy_out(part)
                if ahead and waiting:
                    self._gather(waiting.popleft(), copied)
            self._compute("forward", fraction * self._step.forward_s)

    def _backward(self, backward_s: float, *, reduces: bool, all_reduces: bool) -> None:
        """Compute backward; the part that comes next is gathered meanwhile, that which is done is reduced."""
        root = self._model.root
        waiting = deque(part for part in range(len(self._model.parts)) if part != root)
        if self._strategy.reshard_after_forward:
            self._is_whole -= set(waiting)
            if root is not None:  # which asks for the next part before its own backward
                self._gather(waiting.popleft(), self._ended(COMPUTE, kind=Kernel))
        else:
            waiting.clear()
        left = Counter(segment.part for segment in self._model.segments)
        for part, fraction in self._model.segments:
            if part not in self._is_whole:
                if part in waiting:
                    waiting.remove(part)
                    self._gather(part, self._ended(COMPUTE))
                copied = self._copy_out(part)
                if waiting:
                    self._gather(waiting.popleft(), copied)
            self._compute("backward", fraction * backward_s)
            left[part] -= 1
            if reduces and not left[part] and part != root:
                self._reduce(part, all_reduces=all_reduces)
        if reduces and root is not None:
            self._reduce(root, all_reduces=all_reduces)

    def _gather(self, part: int, after: Sequence[OperationId]) -> None:
        group = self._wire.shards
        if group.size == 1:
            return
        message_bytes = self._padded(part) * self._wire.gather_width
        schedule = nccl.choose_all_gather(self._topology, group, message_bytes)
        self._gathered[part] = self._send(SHARDS, schedule, message_bytes, part, after)

    def _copy_out(self, part: int) -> tuple[OperationId, ...]:
        """Wait until a part is gathered, and put it into whole tensors."""
        self._is_whole.add(part)
        if self._wire.shards.size == 1:
            return self._ended(COMPUTE)
        num_bytes = self._padded(part) * self._wire.gather_width
        return self._copy("decode", num_bytes, part, self._gathered.pop(part))

    def _reduce(self, part: int, *, all_reduces: bool) -> None:
        """Scatter the gradients of a part; compute waits first until those of the part before have been."""
        num_bytes, shards = self._reduced_bytes(part), self._wire.shards
        reduced = self._ended(COMPUTE)
        if shards.size > 1:
            reduced = self._copy("encode", num_bytes, part, tuple(self._scattered))
            reduced = self._send(SHARDS, self._reduce_scatter(num_bytes), num_bytes, part, reduced)
            self._scattered = [*reduced]
        if all_reduces and self._wire.replicas.size > 1:
            shard_bytes = num_bytes / shards.size
            schedule = algorithms.choose_on(self._strategy.algorithm, self._topology, shard_bytes, self._wire.replicas)
            self._send(REPLICAS, schedule, shard_bytes, part, reduced)

    def _reduce_scatter(self, num_bytes: float) -> Schedule:
        if self._strategy.reduce_scatter_as == "all_reduce":
            return algorithms.choose_on(self._strategy.algorithm, self._topology, num_bytes, self._wire.shards)
        return nccl.choose_reduce_scatter(self._topology, self._wire.shards, num_bytes)

    def _after_backward(self, operation: Operation) -> None:
        if isinstance(operation, Communicate):
            # On the shards' stream, which is idle by now: two streams are simulated several times as fast as three.
            self._blocking += self._append(SHARDS, replace(operation, after=self._ended(COMPUTE)))
        else:
            self._work(operation)

    def _padded(self, part: int) -> float:
        return self._model.parts[part].padded_elements(self._wire.shards.size)

    def _reduced_bytes(self, part: int) -> float:
        return self._padded(part) * self._wire.reduce_width

    def _compute(self, part: IterationPart, seconds: float) -> None:
        if seconds > 0:
            self._work(Compute(part=part, seconds=seconds))

    def _copy(
        self, part: IterationPart, num_bytes: float, bucket: int, after: tuple[OperationId, ...]
    ) -> tuple[OperationId, ...]:
        return self._work(Kernel(name=SHARD_COPY.name, part=part, num_elements=num_bytes, bucket=bucket, after=after))

    def _work(self, operation: Operation) -> tuple[OperationId, ...]:
        """Add work of the GPU, after every message that blocks it."""
        after = dict.fromkeys((*operation.after, *self._blocking))
        self._blocking = []
        return self._append(COMPUTE, replace(operation, after=tuple(after)))

    def _send(
        self, stream: int, schedule: Schedule, message_bytes: float, bucket: int, after: Sequence[OperationId]
    ) -> tuple[OperationId, ...]:
        """Add a message; without overlap it waits for all compute before it, and compute for it."""
        before = () if self._strategy.overlap else (*self._ended(COMPUTE), *self._blocking)
        message = Communicate(
            schedule=schedule, message_bytes=message_bytes, bucket=bucket, after=tuple(dict.fromkeys((*after, *before)))
        )
        sent = self._append(stream, message)
        if not self._strategy.overlap:
            self._blocking += sent
        return sent

    def _append(self, stream: int, operation: Operation) -> tuple[OperationId, ...]:
        self._streams[stream].append(operation)
        return self._ended(stream)

    def _ended(self, stream: int, kind: type[Kernel] | None = None) -> tuple[OperationId, ...]:
        """Return the last operation of a stream, of a kind, as what another waits for; none at the beginning."""
        found = self._streams[stream]
        if kind is None:
            return (OperationId(stream, len(found) - 1),) if found else ()
        places = (place for place in reversed(range(len(found))) if isinstance(found[place], kind))
        return tuple(OperationId(stream, place) for place in islice(places, 1))

"""Data-parallel training in which each rank updates its shard of the parameters and hands it out.

With micro-batches, one whose gradients are not reduced only computes; the next one waits for what was reduced of one
whose gradients are, as DDP, DeepSpeed and FSDP do at the end of backward.
"""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from msgspec.structs import replace

from simnet.cluster.topology import Topology
from simnet.collectives import algorithms, nccl
from simnet.core.bounded_types import BYTES_PER_ELEMENT, Dtype
from simnet.core.units import Size
from simnet.strategies.all_reduce import CAST
from simnet.strategies.base import COMMUNICATION, COMPUTE, Exchange, Mathematics, Strategy, add_exchanged_backward
from simnet.strategies.program import Communicate, Compute, Kernel, Operation, OperationId, Program
from simnet.workload import gpu_memory
from simnet.workload.buckets import Bucket
from simnet.workload.gpu_memory import ModelMemory, RankMemory
from simnet.workload.kernel_cost import KernelCost
from simnet.workload.training_step import Step

BUCKETS_AT_ONCE = 2
"""Buffers of DeepSpeed's `overlap_comm`: gradients of one bucket are made while those of another travel."""


class ShardedUpdate(Strategy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shard the state of the optimizer over all ranks; parameters stay whole.

    A rank owns an equal part of every bucket, padded to whole elements. Flat buffers are cut, so that nothing is copied
    around messages.

    Attributes:
        reduces_every_micro_batch: whether gradients stay sharded, so that each micro-batch reduces its own.
        wire_dtype: number format in which gradients travel; by default their own.
        gather_dtype: number format in which parameters travel; by default that of the gradients.
        overlap_param_gather: whether a bucket's parameters are gathered during the next forward, one bucket ahead of
            it, as Megatron's option of this name does, in place of before it.
        reduce_scatter_as: "all_reduce" sends the bytes of a whole all-reduce, as gloo does in torch 2.13.
    """

    kernels: ClassVar[tuple[KernelCost, ...]] = (CAST,)
    compresses: ClassVar[bool] = False
    reduces_every_micro_batch: ClassVar[bool] = False

    wire_dtype: Dtype | None = None
    gather_dtype: Dtype | None = None
    overlap_param_gather: bool = False
    reduce_scatter_as: Literal["ring", "all_reduce"] = "ring"

    @property
    def mathematics(self) -> Mathematics:
        """Rounding, where gradients or parameters are cast."""
        return "same" if self.wire_dtype is None and self.gather_dtype is None else "rounding"

    @classmethod
    def presets(cls) -> dict[str, tuple[Strategy, ...]]:
        """Return it in the numbers of the gradients, and in bf16."""
        return {cls.title: (cls(),), f"{cls.title} bf16": (cls(wire_dtype="bf16", gather_dtype="bf16"),)}

    def bucketing_variants(self, caps: Sequence[Size | None]) -> tuple[Strategy, ...]:
        """Return it with each way to cut buckets; gathered before and during forward, where there are several."""
        *capped, fused = super().bucketing_variants(caps)
        early_or_not = (replace(one, overlap_param_gather=early) for one in capped for early in (False, True))
        return (*early_or_not, replace(fused, overlap_param_gather=False))

    def exchange(self, bucket: Bucket, step: Step, topology: Topology) -> Exchange:
        """Return cast, reduce-scatter and cast of the shard back."""
        width, world = self._reduce_width(step), topology.group("world")
        message_bytes = _padded(bucket, world.size) * width
        if self.reduce_scatter_as == "all_reduce":
            schedule = algorithms.choose(None, topology, message_bytes)
        else:
            schedule = nccl.choose_reduce_scatter(topology, world, message_bytes)
        operations: tuple[Operation, ...] = (Communicate(schedule=schedule, message_bytes=message_bytes),)
        if width != step.bytes_per_element:
            down = Kernel(name=CAST.name, part="encode", num_elements=bucket.num_elements)
            up = Kernel(name=CAST.name, part="decode", num_elements=_padded(bucket, world.size) / world.size)
            operations = (down, *operations, up)
        return Exchange(operations, bucket.num_elements * width, "reduce_scatter+all_gather")

    def program(self, step: Step, topology: Topology) -> Program:
        """Return one iteration.

        Raises:
            SimnetError: buckets cannot be cut as asked for.
        """
        buckets = self.buckets(step, topology)
        exchanges = tuple(self.exchange(bucket, step, topology) for bucket in buckets)
        gathers = tuple(self._gather(bucket, step, topology) for bucket in buckets)
        streams = UpdateStreams(self, step, buckets, exchanges)
        return streams.program(1 / topology.world_size, gathers, in_forward=self.overlap_param_gather)

    def memory(self, model: ModelMemory, step: Step, topology: Topology) -> RankMemory:
        """Return what a rank holds, as counted and not measured: gradients are those of one flat buffer.

        Where each micro-batch reduces its own, a shard of them stays, and two buckets: that which backward fills and
        that which travels.
        """
        share = 1 / topology.world_size
        held = with_shared_state(gpu_memory.in_buckets(replace(model, gradient_as_bucket_view=True)), share)
        if not self.reduces_every_micro_batch:
            return held
        bucket_bytes = self.largest_bucket(step, topology).num_elements * step.bytes_per_element
        return replace(
            held, gradients=model.gradients * share, buckets=min(BUCKETS_AT_ONCE * bucket_bytes, model.gradients)
        )

    def gather_width(self, step: Step) -> int:
        """Return the bytes of an element of the parameters that are handed out."""
        return BYTES_PER_ELEMENT[self.gather_dtype] if self.gather_dtype else step.bytes_per_element

    def _reduce_width(self, step: Step) -> int:
        return BYTES_PER_ELEMENT[self.wire_dtype] if self.wire_dtype else step.bytes_per_element

    def _gather(self, bucket: Bucket, step: Step, topology: Topology) -> Communicate:
        world = topology.group("world")
        message_bytes = _padded(bucket, world.size) * self.gather_width(step)
        schedule = nccl.choose_all_gather(topology, world, message_bytes)
        return Communicate(schedule=schedule, message_bytes=message_bytes, bucket=bucket.index)


def with_shared_state(held: RankMemory, share: float) -> RankMemory:
    """Return what a rank holds whose optimizer updates a share of the parameters."""
    optimizer = None if held.optimizer is None else held.optimizer * share
    return replace(held, optimizer=optimizer, update=held.update * share)


def _padded(bucket: Bucket, num_shards: int) -> float:
    return float(math.ceil(bucket.num_elements / num_shards) * num_shards)


class UpdateStreams:
    """Both streams of an iteration with a sharded update, while they are made."""

    def __init__(
        self, strategy: ShardedUpdate, step: Step, buckets: Sequence[Bucket], exchanges: Sequence[Exchange]
    ) -> None:
        self._strategy, self._step, self._buckets, self._exchanges = strategy, step, buckets, exchanges
        self._compute: list[Operation] = []
        self._communication: list[Operation] = []

    def program(self, share: float, handed_out: Sequence[Communicate], *, in_forward: bool) -> Program:
        """Return the iteration.

        Args:
            share: part of all parameters that the rank with the most of them updates.
            handed_out: messages by which ranks hand out what they have updated, in order; of each bucket one, if they
                do so in the next forward.
            in_forward: whether they do.
        """
        reduced: tuple[OperationId, ...] = ()
        for number in range(self._step.micro_batches):
            if in_forward and number == 0:
                self._forward_with(handed_out)
            else:
                self._compute.append(Compute(part="forward", seconds=self._step.forward_s, after=reduced))
            reduced = self._backward(is_last=number == self._step.micro_batches - 1)
        self._compute.append(Compute(part="optimizer", seconds=self._step.optimizer_s * share, after=reduced))
        if not in_forward:
            self._hand_out(handed_out)
        return Program(
            streams=(tuple(self._compute), tuple(self._communication)),
            num_buckets=len(self._buckets),
            payload_bytes=sum(found.payload_bytes for found in self._exchanges),
            algorithm="+".join(sorted({found.algorithm for found in self._exchanges})),
        )

    def _forward_with(self, gathers: Sequence[Communicate]) -> None:
        """Compute forward, from the last bucket to the first; the next one is gathered while one computes."""
        order = self._buckets[::-1]
        self._communication.append(gathers[order[0].index])
        for place, bucket in enumerate(order):
            gathered = self._ended(COMMUNICATION)
            if place + 1 < len(order):
                self._communication.append(replace(gathers[order[place + 1].index], after=self._ended(COMPUTE)))
            seconds = self._step.forward_s * bucket.backward_fraction
            self._compute.append(Compute(part="forward", seconds=seconds, bucket=bucket.index, after=gathered))

    def _backward(self, *, is_last: bool) -> tuple[OperationId, ...]:
        """Compute backward; return what must have been reduced before compute goes on."""
        if not is_last and not self._strategy.reduces_every_micro_batch:
            self._compute.append(Compute(part="backward", seconds=self._step.backward_s))
            return ()
        overlap = self._strategy.overlap
        add_exchanged_backward(
            self._compute, self._communication, self._step, self._buckets, self._exchanges, overlap=overlap
        )
        return self._ended(COMMUNICATION)

    def _hand_out(self, messages: Sequence[Communicate]) -> None:
        """Send what the optimizer has updated; the iteration ends once it is there."""
        for number, message in enumerate(messages):
            self._communication.append(message if number else replace(message, after=self._ended(COMPUTE)))
        if messages:
            self._compute.append(Compute(part="optimizer", seconds=0.0, after=self._ended(COMMUNICATION)))

    def _ended(self, stream: int) -> tuple[OperationId, ...]:
        """Return the last operation of a stream as what another waits for; none at the beginning."""
        found = self._compute if stream == COMPUTE else self._communication
        return (OperationId(stream, len(found) - 1),) if found else ()

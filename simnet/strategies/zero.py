"""ZeRO-1 and ZeRO-2: each rank updates its shard of the parameters and hands it out; parameters stay whole."""

import heapq
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import ClassVar, Literal

from msgspec.structs import replace

from simnet.cluster.topology import Topology
from simnet.collectives import algorithms
from simnet.collectives.broadcast import Form
from simnet.core.bounded_types import Dtype
from simnet.core.errors import SimnetError
from simnet.core.units import Size
from simnet.strategies.base import (
    CAST,
    Algorithm,
    Choices,
    DenseAllReduce,
    Exchange,
    Options,
    Strategy,
    all_gather,
    capped_or_fused,
    check_algorithm,
    data_parallel,
    width_of,
)
from simnet.strategies.program import Communicate, Kernel, Operation, Program
from simnet.workload import gpu_memory
from simnet.workload.buckets import Bucket
from simnet.workload.gpu_memory import ModelMemory, RankMemory
from simnet.workload.kernel_cost import KernelCost
from simnet.workload.training_step import Step, Tensor

# What a rank without parameters broadcasts as its bucket: one number in fp32.
EMPTY_BUCKET_BYTES = 4.0
OF_BROADCAST = ("algorithm", "broadcast", "param_groups", "parameters_as_bucket_view")
OF_ALL_GATHER = ("overlap_param_gather", "reduce_scatter_as")
BROADCAST: Options = {
    "update": "broadcast",
    "algorithm": algorithms.AUTO,
    "parameters_as_bucket_view": True,
    "overlap_param_gather": False,
    "reduce_scatter_as": "ring",
}
"""The other way to hand out: one broadcast a rank, which is never slower than one a tensor."""
ParamGroups = Literal["one", "by_dimensions"]

Owned = tuple[tuple[tuple[float, ...], ...], ...]
"""Elements of each tensor, by rank and parameter group."""
HandedOut = tuple[float, tuple[Communicate, ...]]
"""Part of all parameters that the rank with the most of them updates, and the messages that hand them out."""
BUCKETS_AT_ONCE = 2
"""Buffers of DeepSpeed's `overlap_comm`: gradients of one bucket are made while those of another travel."""


def _cut_and_gathered(setting: object, caps: Sequence[Size | None]) -> Iterable[Options]:
    """Return each way to cut buckets; gathered before and during forward, where there are several."""
    *capped, fused = capped_or_fused(setting, caps)
    early_or_not = ({**cap, "overlap_param_gather": early} for cap in capped for early in (False, True))
    return [*early_or_not, {**fused, "overlap_param_gather": False}]


BUCKETINGS = {"all_gather": _cut_and_gathered, "broadcast": capped_or_fused}
"""What is tried of each way to hand out."""


class ShardedUpdate(Strategy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shard the state of the optimizer over all ranks; parameters stay whole.

    A rank owns an equal part of every bucket, padded to whole elements. Flat buffers are cut, so that nothing is copied
    around messages.

    Attributes:
        reduces_every_micro_batch: whether gradients stay sharded, so that each micro-batch reduces its own.
        wire_dtype: number format in which gradients travel; by default their own.
        gather_dtype: number format in which parameters travel; by default that of the gradients.
        overlap_param_gather: gather a bucket's parameters during the next forward, one bucket ahead, as Megatron's
            option of this name, in place of before it.
        reduce_scatter_as: "all_reduce" sends the bytes of a whole all-reduce, as gloo does in torch 2.13.
    """

    kernels: ClassVar[tuple[KernelCost, ...]] = (CAST,)
    compresses: ClassVar[bool] = False
    reduces_every_micro_batch: ClassVar[bool] = False
    choices: ClassVar[Choices] = Choices(
        presets={"{title}": ({},), "{title} bf16": ({"wire_dtype": "bf16", "gather_dtype": "bf16"},)},
        bucketings=_cut_and_gathered,
    )

    wire_dtype: Dtype | None = None
    gather_dtype: Dtype | None = None
    overlap_param_gather: bool = False
    reduce_scatter_as: Literal["ring", "all_reduce"] = "ring"

    def exchange(self, bucket: Bucket, step: Step, topology: Topology) -> Exchange:
        """Return cast, reduce-scatter and cast of the shard back."""
        width, world = width_of(self.wire_dtype, step), topology.group("world")
        padded = _padded(bucket, world.size)
        message_bytes = padded * width
        if self.reduce_scatter_as == "all_reduce":
            schedule = algorithms.choose(None, topology, message_bytes)
        else:
            schedule = algorithms.choose_reduce_scatter(topology, world, message_bytes)
        operations: tuple[Operation, ...] = (Communicate(schedule=schedule, message_bytes=message_bytes),)
        # Gradients are cast down before the wire, and the shard alone back up.
        if width != step.bytes_per_element:
            down = Kernel(name=CAST.name, part="encode", num_elements=bucket.num_elements)
            up = Kernel(name=CAST.name, part="decode", num_elements=padded / world.size)
            operations = (down, *operations, up)
        return Exchange(operations, bucket.num_elements * width, "reduce_scatter+all_gather")

    def program(self, step: Step, topology: Topology) -> Program:
        """Return one iteration, whose parameters are handed out at its end or in its forward."""
        buckets = self.buckets(step, topology)
        exchanges = tuple(self.exchange(bucket, step, topology) for bucket in buckets)
        share, messages = self._handed_out(buckets, step, topology)
        return data_parallel(
            self,
            step,
            buckets,
            exchanges,
            share=share,
            every_micro_batch=self.reduces_every_micro_batch,
            handed_out=messages,
            in_forward=self.overlap_param_gather,
        )

    def _handed_out(self, buckets: Sequence[Bucket], step: Step, topology: Topology) -> HandedOut:
        world, width = topology.group("world"), width_of(self.gather_dtype, step)
        gathers = (
            replace(all_gather(world, topology, _padded(bucket, world.size) * width), bucket=bucket.index)
            for bucket in buckets
        )
        return 1 / world.size, tuple(gathers)

    def memory(self, model: ModelMemory, step: Step, topology: Topology) -> RankMemory:
        """Return what a rank holds, as counted and not measured: gradients are those of one flat buffer.

        Where each micro-batch reduces its own, a shard of them stays, and two buckets: that which backward fills and
        that which travels.
        """
        share = 1 / topology.world_size
        held = _with_shared_state(gpu_memory.in_buckets(replace(model, gradient_as_bucket_view=True)), share)
        if not self.reduces_every_micro_batch:
            return held
        bucket_bytes = self.largest_bucket(step, topology).num_elements * step.bytes_per_element
        return replace(
            held, gradients=model.gradients * share, buckets=min(BUCKETS_AT_ONCE * bucket_bytes, model.gradients)
        )


class Zero1(ShardedUpdate, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="zero1"):
    """Shard the optimizer's state over all ranks (ZeRO-1): each updates its part of the parameters and hands it out.

    Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020,
    https://arxiv.org/abs/1910.02054, section 5; Megatron-LM's distributed optimizer; for "broadcast"
    torch.distributed.optim.ZeroRedundancyOptimizer of PyTorch 2.13, whose step is recorded and compared by
    tests/contract/test_zero_steps.py. Differs: every broadcast starts at the first rank.

    Attributes:
        update: "all_gather" scatters sums of gradients during backward and gathers parameters after the update, as
            Megatron does; "broadcast" all-reduces as DDP does, and every rank broadcasts the tensors that it updated,
            as torch's ZeroRedundancyOptimizer does.
        parameters_as_bucket_view: with "broadcast", send a rank's tensors as one message; torch's default broadcasts
            each by itself.
        param_groups: with "broadcast", the optimizer's groups, which decide who gets which tensor: "one", or
            "by_dimensions" matrices before vectors, which take no weight decay.
        algorithm: the all-reduce algorithm, where something is all-reduced, as of `all_reduce`.
        broadcast: "tree" as gloo does, or "pipeline" as NCCL does; by default the faster.
    """

    title: ClassVar[str] = "ZeRO-1"
    choices: ClassVar[Choices] = ShardedUpdate.choices._replace(
        topologies=lambda self: ({},) if self.update == "broadcast" else ({}, BROADCAST),
        bucketings=lambda self, caps: BUCKETINGS[self.update](self, caps),
        form=lambda self: self.update.replace("_", "-"),
    )

    update: Literal["all_gather", "broadcast"] = "all_gather"
    parameters_as_bucket_view: bool = False
    param_groups: ParamGroups = "one"
    algorithm: Algorithm | None = None
    broadcast: Form | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_algorithm("algorithm", self.algorithm)
        defaults = type(self).__struct_defaults__
        # An option of the other way to hand out would be ignored in silence, and a sweep over it flat.
        without_effect = OF_ALL_GATHER if self.update == "broadcast" else OF_BROADCAST
        for key, default in zip(type(self).__struct_fields__, defaults, strict=True):
            if key in without_effect and getattr(self, key) != default:
                raise ValueError(f"{key}: has no effect with update {self.update!r}; drop one of them")

    def exchange(self, bucket: Bucket, step: Step, topology: Topology) -> Exchange:
        """Return what reduces the gradients of a bucket: DDP's all-reduce, or a reduce-scatter."""
        if self.update == "all_gather":
            return super().exchange(bucket, step, topology)
        dense = DenseAllReduce(wire_dtype=self.wire_dtype, algorithm=self.algorithm)
        exchange = dense.exchange(bucket, step, topology)
        return exchange._replace(algorithm=f"{exchange.algorithm}+broadcast")

    def _handed_out(self, buckets: Sequence[Bucket], step: Step, topology: Topology) -> HandedOut:
        if self.update == "all_gather":
            return super()._handed_out(buckets, step, topology)
        owned = self._owned(step, topology.world_size)
        return _largest_share(owned), self._broadcasts(owned, step, topology)

    def memory(self, model: ModelMemory, step: Step, topology: Topology) -> RankMemory:
        """Return what the rank with the most parameters to update holds, with "broadcast" beside DDP's buckets."""
        if self.update == "all_gather":
            return super().memory(model, step, topology)
        share = _largest_share(self._owned(step, topology.world_size))
        return _with_shared_state(gpu_memory.in_buckets(model), share)

    def _owned(self, step: Step, world_size: int) -> Owned:
        """Return the elements of the tensors that each rank updates."""
        if step.tensors:
            return partition(step.tensors, world_size, self.param_groups)
        if self.param_groups != "one" or not self.parameters_as_bucket_view:
            key = "param_groups" if self.param_groups != "one" else "parameters_as_bucket_view"
            raise SimnetError(
                f"strategy.{key}: {getattr(self, key)!r}: needs the model's tensors; give workload.tensors or "
                "workload.gradients, or parameters_as_bucket_view = true alone"
            )
        # Without tensors every rank has an equal part, which is one message.
        return (((step.num_elements / world_size,),),) * world_size

    def _broadcasts(self, owned: Owned, step: Step, topology: Topology) -> tuple[Communicate, ...]:
        """Return what each rank broadcasts, rank by rank; nothing where there is one rank."""
        if topology.world_size == 1:
            return ()
        width = width_of(self.gather_dtype, step)
        tensors = [[float(elements * width) for group in of_rank for elements in group] for of_rank in owned]
        if self.parameters_as_bucket_view:
            tensors = [[sum(of_rank) or EMPTY_BUCKET_BYTES] for of_rank in tensors]
        return _broadcast(tuple(size for of_rank in tensors for size in of_rank), self.broadcast, topology)


class Zero2(ShardedUpdate, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="zero2"):
    """Shard gradients and the optimizer's state over all ranks (ZeRO-2): every micro-batch scatters its gradients.

    Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020,
    https://arxiv.org/abs/1910.02054, section 5; DeepSpeed, deepspeed/runtime/zero/stage_1_and_2.py, for what waits
    at the end of a backward. Differs: DeepSpeed shares out all parameters as one array, so that a bucket goes to the
    one or two ranks that own it; here each rank owns a part of every bucket, as in Megatron's distributed optimizer.
    """

    title: ClassVar[str] = "ZeRO-2"
    waits_for_hosts: ClassVar[bool] = True
    reduces_every_micro_batch: ClassVar[bool] = True


def _with_shared_state(held: RankMemory, share: float) -> RankMemory:
    """Return what a rank holds whose optimizer updates a share of the parameters."""
    optimizer = None if held.optimizer is None else held.optimizer * share
    return replace(held, optimizer=optimizer, update=held.update * share)


def _padded(bucket: Bucket, num_shards: int) -> float:
    return float(math.ceil(bucket.num_elements / num_shards) * num_shards)


def _largest_share(owned: Owned) -> float:
    """Return the part of all elements that the rank with the most of them updates."""
    # The step ends when the rank with the most has updated its part.
    totals = [sum(map(sum, of_rank)) for of_rank in owned]
    return max(totals) / sum(totals)


def _broadcast(sizes: tuple[float, ...], form: Form | None, topology: Topology) -> tuple[Communicate, ...]:
    """Return a broadcast to all ranks of a message of each size."""
    world = topology.group("world")
    # Many messages are of one size: an algorithm is chosen once for each size.
    chosen = {size: algorithms.choose_broadcast(form, topology, size, world) for size in dict.fromkeys(sizes)}
    return tuple(Communicate(schedule=chosen[size], message_bytes=size) for size in sizes)


@lru_cache(maxsize=64)
def partition(tensors: tuple[Tensor, ...], world_size: int, param_groups: ParamGroups) -> Owned:
    """Give each tensor, the largest of its group first, to the rank with the fewest elements so far.

    Source: ZeroRedundancyOptimizer._partition_parameters of PyTorch 2.13.
    """
    ranks = [(0.0, rank) for rank in range(world_size)]
    owned: list[list[tuple[float, ...]]] = [[] for _ in ranks]
    for group in _grouped(tensors, param_groups):
        of_ranks: list[list[float]] = [[] for _ in range(world_size)]
        # The largest first, as torch does: small ones then even out what is left.
        for elements in sorted(group, reverse=True):
            # A heap: first stands the rank with the fewest elements, of equals the lowest.
            fewest, rank = ranks[0]
            heapq.heapreplace(ranks, (fewest + elements, rank))
            of_ranks[rank].append(elements)
        for rank, of_group in enumerate(of_ranks):
            owned[rank].append(tuple(of_group))
    return tuple(map(tuple, owned))


def _grouped(tensors: tuple[Tensor, ...], param_groups: ParamGroups) -> list[list[float]]:
    """Return the sizes of the tensors in each parameter group."""
    if param_groups == "one":
        return [[tensor.num_elements for tensor in tensors]]
    if any(tensor.shape is None for tensor in tensors):
        raise SimnetError(
            "strategy.param_groups: 'by_dimensions': needs the shapes of the tensors; give workload.gradients, or a "
            "shape with each of workload.tensors"
        )
    return [
        [tensor.num_elements for tensor in tensors if (len(tensor.shape or ()) > 1) == wide] for wide in (True, False)
    ]

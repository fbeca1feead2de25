"""Sharded training as FSDP2 does it: parts gathered before they compute, their gradients scattered after.

What waits for what is that of `torch.distributed.fsdp.fully_shard` in PyTorch 2.13, recorded from it and compared by
tests/contract/test_sharded_steps.py. All-gathers and reduce-scatters of one group run in the order in which they are
issued, as NCCL runs those of one communicator.
"""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import ClassVar, Literal

from msgspec.structs import replace

from simnet.cluster.hardware import GpuModel
from simnet.cluster.schedule import Group, Schedule
from simnet.cluster.topology import Topology
from simnet.collectives import algorithms
from simnet.core.bounded_types import Count, Dtype
from simnet.core.errors import SimnetError
from simnet.core.units import Size
from simnet.strategies.base import (
    BITS_PER_BYTE,
    Algorithm,
    Choices,
    Mathematics,
    Options,
    Strategy,
    as_it_is,
    check_algorithm,
    strategy_from_text,
    width_of,
)
from simnet.strategies.binsgdm import BinSGDM
from simnet.strategies.compressing import BETWEEN_NODES, CompressingStrategy
from simnet.strategies.program import (
    Communicate,
    Compute,
    IterationPart,
    Kernel,
    Operation,
    OperationId,
    Program,
    StepShare,
    Streams,
    step_times,
)
from simnet.workload import blocks
from simnet.workload.blocks import BackwardSegment, ModelParts
from simnet.workload.buckets import DDP_BUCKET_BYTES, Bucket
from simnet.workload.gpu_memory import ModelMemory, RankMemory
from simnet.workload.kernel_cost import KernelCost
from simnet.workload.training_step import Step

FP32_BYTES = 4
BF16: Options = {"gather_dtype": "bf16", "reduce_dtype": "bf16"}
"""As mixed precision has it."""
COMPUTE, SHARDS, REPLICAS = 0, 1, 2
"""Streams: of the GPU, of the ranks that share one copy of the model, and of those that hold the same shard."""
SHARD_COPY = KernelCost(name="shard_copy", bytes_per_element=2.0, is_streaming=True)
"""Put what was gathered into whole tensors, or gradients into rows of shards: read and write each byte."""
KEPT_GATHERS = 2
"""A forward all-gather waits until the one before the last is copied out: two hold memory at once."""


class ShardedStrategy(Strategy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shard parameters, gradients and optimizer state over ranks.

    Attributes:
        reshard_after_forward: free blocks after forward and gather them again for backward; not the root, which holds
            what is in no block, as by torch's default.
        reduce_every: of several micro-batches "micro_batch" reduces the gradients of each, so that they stay sharded;
            "step" keeps them whole up to the last, as set_requires_gradient_sync(False) does.
        gather_dtype: number format in which parameters travel; by default that of the gradients.
        reduce_dtype: number format in which gradients are reduced; by default their own.
        unit_cap: size that ends a part which is gathered as one; by default parts are the model's blocks, by the names
            of tensors.
        reduce_scatter_as: "all_reduce" sends the bytes of a whole all-reduce, as gloo does in torch 2.13.
        algorithm: the all-reduce algorithm, where something is all-reduced, as of `all_reduce`.
    """

    kernels: ClassVar[tuple[KernelCost, ...]] = (SHARD_COPY,)
    compresses: ClassVar[bool] = False
    uses_ddp_buckets: ClassVar[bool] = False
    waits_for_hosts: ClassVar[bool] = True
    choices: ClassVar[Choices] = Choices(
        topologies=lambda _: [{"reshard_after_forward": frees} for frees in (True, False)],
        bucketings=as_it_is,  # parts are the model's blocks
        form=lambda self: "resharded after forward" if self.reshard_after_forward else "not resharded",
    )

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

    def reduced_in(self, micro_batches: int) -> list[bool]:
        """Return for each micro-batch whether its gradients are reduced."""
        return [self.reduce_every == "micro_batch" or number == micro_batches for number in range(1, micro_batches + 1)]

    def parts(self, step: Step) -> ModelParts:
        """Return the parts that are gathered as one."""
        return blocks.parts_of(step.tensors, self.unit_cap, step.bytes_per_element)


class FullShard(ShardedStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fsdp"):
    """Shard the model over all ranks, as torch's FSDP2 does on a mesh of one dimension; the same as ZeRO-3.

    Source: Zhao et al., PyTorch FSDP, VLDB 2023, https://arxiv.org/abs/2304.11277; Rajbhandari et al., ZeRO, SC 2020,
    https://arxiv.org/abs/1910.02054; torch.distributed.fsdp.fully_shard of PyTorch 2.13.
    """

    title: ClassVar[str] = "FSDP"
    choices: ClassVar[Choices] = ShardedStrategy.choices._replace(presets={"{title}": ({},), "{title} bf16": (BF16,)})

    def memory(self, model: ModelMemory, step: Step, topology: Topology) -> RankMemory:
        """Return what a rank holds: its shards, and parts that are whole."""
        return sharded_memory(self, model, step, topology.world_size)

    def program(self, step: Step, topology: Topology) -> Program:
        """Return one iteration.

        Raises:
            SimnetError: the workload has no tensors with shapes, or no blocks among them.
        """
        return self.program_among(topology.group("world"), step, topology)

    def program_among(self, shards: Group, step: Step, topology: Topology) -> Program:
        """Return one iteration of ranks that share the model with their group alone."""
        alone, number = shards._replace(size=1), step.micro_batches
        return _ShardedStep(self, step, topology, shards, alone).program(self.reduced_in(number), [False] * number)


class HybridShard(ShardedStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="hsdp"):
    """Shard the model over the ranks of a node and keep a copy a node, as FSDP2 does on a mesh of two dimensions.

    Source: Zhao et al., PyTorch FSDP, VLDB 2023, section 3.2.2; torch.distributed.fsdp.fully_shard of PyTorch 2.13.
    What compresses between copies: binsgdm.attach_fsdp and binsgdm.compress_replicas.

    Attributes:
        shard_ranks: ranks that share a copy of the model: a part of a node, or whole nodes; by default those of a node.
        all_reduce_every: of several micro-batches "step" all-reduces shards in the last alone, as
            set_requires_all_reduce(False) does before it; "micro_batch" in each.
        replicas: system that averages the copies, with options after a colon, such as "binsgdm" or
            "byte_grad:topology=scatter_reduce"; each rank exchanges its shard after backward, in messages of
            `bucket_cap`. By default FSDP2's all-reduce, during backward.
    """

    title: ClassVar[str] = "HSDP"
    choices: ClassVar[Choices] = ShardedStrategy.choices._replace(
        presets={
            "{title}": ({"algorithm": algorithms.AUTO},),
            "{title} bf16": ({"algorithm": algorithms.AUTO, **BF16},),
            "{title} + BinSGDM": ({"replicas": "binsgdm"},),
            "{title} + int8": ({"replicas": "byte_grad:topology=scatter_reduce"},),
        },
        # Messages between copies have a size only where a system compresses them.
        bucketings=lambda self, caps: [{"bucket_cap": cap} for cap in caps] if self.replicas else ({},),
    )

    shard_ranks: Count | None = None
    all_reduce_every: Literal["micro_batch", "step"] = "step"
    replicas: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._system
        if self.replicas and self.algorithm is not None:
            raise ValueError(f"algorithm: has no effect with replicas {self.replicas!r}; drop one of them")
        if self.bucket_cap is not None and not self.replicas:
            raise ValueError("bucket_cap: has no effect without replicas; drop it, or set replicas")

    @property
    def _system(self) -> CompressingStrategy | BinSGDM | None:
        """What compresses between copies."""
        if not self.replicas:
            return None
        system = strategy_from_text(self.replicas, "replicas")
        if isinstance(system, CompressingStrategy) and system.topology not in BETWEEN_NODES:
            return system
        if isinstance(system, BinSGDM) and system.intra_node_dtype is None and system.average == "updates":
            # Ranks that hold the same shard are on different nodes: there is nothing to sum up inside one.
            return replace(system, topology="flat")
        raise ValueError(
            f"replicas: {self.replicas!r}: must be BinSGDM or a system that compresses gradients, in a topology "
            "that is not hierarchical; give such as 'binsgdm' or 'byte_grad'"
        )

    @property
    def mathematics(self) -> Mathematics:
        """That of the system between copies, if there is one."""
        system = self._system
        return super().mathematics if system is None else system.mathematics

    def check_gpu(self, gpu: GpuModel) -> None:
        """Refuse a GPU on which the system inside cannot run."""
        if self._system is not None:
            self._system.check_gpu(gpu)

    def memory(self, model: ModelMemory, step: Step, topology: Topology) -> RankMemory:
        """Return what a rank holds: its shards, parts that are whole, and what the system between copies keeps."""
        shards, replicas = self._groups(topology)
        held = sharded_memory(self, model, step, shards.size)
        system = self._system
        if system is None:
            return held
        num_elements = step.num_elements / shards.size
        if isinstance(system, BinSGDM):
            held = replace(held, optimizer=0.0, update=0.0, buckets=num_elements / BITS_PER_BYTE)
        return replace(held, residuals=system.residual_bytes(num_elements, replicas.size))

    def program(self, step: Step, topology: Topology) -> Program:
        """Return one iteration.

        Raises:
            SimnetError: the workload has no tensors with shapes, or no blocks among them, or `shard_ranks` does not fit
                the cluster.
        """
        shards, replicas = self._groups(topology)
        number, system = step.micro_batches, self._system
        reduced_in, never = self.reduced_in(number), [False] * number
        all_reduced_in = [*never[1:], True] if self.all_reduce_every == "step" else reduced_in
        between: tuple[Operation, ...] = ()
        if system is not None and replicas.size > 1:
            messages = self._messages(step, shards.size)
            exchanges = [system.exchange_among("inter_node", message, topology) for message in messages]
            between = (
                *(operation for exchange in exchanges for operation in exchange.operations),
                *system.epilogue(messages, topology),
            )
        sharded = _ShardedStep(self, step, topology, shards, replicas)
        return sharded.program(reduced_in, never if self.replicas else all_reduced_in, between)

    def _groups(self, topology: Topology) -> tuple[Group, Group]:
        """Return the groups of ranks that share a copy, and of those that hold the same shard."""
        world, per_node, key = topology.world_size, topology.ranks_per_node, "strategy.shard_ranks"
        size = self.shard_ranks or per_node
        if size > world:
            raise SimnetError(f"{key}: {size}: the cluster has {world} ranks; give at most {world}")
        if world % size or (size % per_node and per_node % size):
            raise SimnetError(
                f"{key}: {size}: must be a part of a node of {per_node} ranks, or whole nodes, and divide the {world} "
                "ranks"
            )
        if self.replicas and size != per_node:
            raise SimnetError(
                f"{key}: {size}: with replicas = {self.replicas!r} a node holds one copy; leave it out, or drop "
                "replicas"
            )
        cluster = topology.num_nodes, per_node
        return Group(0, size, 1, *cluster), Group(0, world // size, size, *cluster)

    def _messages(self, step: Step, num_shards: int) -> tuple[Bucket, ...]:
        """Return a rank's shards of all tensors, in messages that end where they reach the cap."""
        cap = (self.bucket_cap or DDP_BUCKET_BYTES) / FP32_BYTES
        messages: list[list[tuple[int, ...]]] = [[]]
        num_elements = 0
        for tensor in step.tensors:
            rows, *others = tensor.shape or (1,)
            # As in DDP a message ends where it reaches the cap: no tensor is cut.
            if num_elements >= cap:
                messages.append([])
                num_elements = 0
            # FSDP2 cuts the first dimension, padded to whole rows.
            shape = (math.ceil(rows / num_shards), *others)
            messages[-1].append(shape)
            num_elements += math.prod(shape)
        return tuple(
            Bucket(
                index=index,
                num_elements=float(sum(map(math.prod, shapes))),
                backward_fraction=0.0,
                shapes=tuple(shapes),
            )
            for index, shapes in enumerate(messages)
        )


class _ShardedStep:
    """The streams of one sharded step while they are made."""

    def __init__(
        self, strategy: ShardedStrategy, step: Step, topology: Topology, shards: Group, replicas: Group
    ) -> None:
        """Take what ranks do, on what, and the groups that share one copy of the model, and that hold one shard."""
        self._strategy, self._step, self._topology = strategy, step, topology
        self._shards, self._replicas = shards, replicas
        self._model = strategy.parts(step)
        self._made = Streams(3)
        self._gathered: dict[int, tuple[OperationId, ...]] = {}
        self._is_whole: set[int] = set()
        self._blocking: list[OperationId] = []
        self._scattered: list[OperationId] = []

    def program(
        self, reduced_in: Sequence[bool], all_reduced_in: Sequence[bool], between: Sequence[Operation] = ()
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
            backward = StepShare(exchanged_backward=1.0) if is_last else StepShare(backward=1.0)
            self._backward(backward, reduces=reduces, all_reduces=all_reduces)
        # The optimizer needs every gradient: it waits for the last message of either stream.
        self._blocking = [*self._made.last(SHARDS), *self._made.last(REPLICAS)]
        for operation in between:
            if isinstance(operation, Communicate):
                # On the shards' stream, idle by now: two streams are simulated several times as fast as three.
                self._blocking += self._made.add(SHARDS, replace(operation, after=self._made.last(COMPUTE)))
            else:
                self._work(operation)
        self._work(Compute(part="optimizer", share=StepShare(optimizer=1 / self._shards.size)))
        sent = (operation for stream in self._made.lists for operation in stream if isinstance(operation, Communicate))
        reductions = {
            collective.schedule.label
            for collective in sent
            if collective.schedule.collective == "all_reduce" and collective.schedule.rounds
        }
        return Program(
            streams=self._made.made() if self._made.lists[REPLICAS] else self._made.made()[:REPLICAS],
            num_buckets=len(self._model.parts),
            payload_bytes=sum(map(self._reduced_bytes, range(len(self._model.parts)))),
            algorithm="+".join(sorted(reductions | {"shards"})),
        )

    def _forward(self) -> None:
        """Compute forward; all-gathers run ahead of it by as many as hold memory at once."""
        self._is_whole.clear()
        root = self._model.root
        blocks_in_order = [part for part in reversed(range(len(self._model.parts))) if part != root]
        waiting = deque([*([] if root is None else [root]), *blocks_in_order])
        begun = self._made.last(COMPUTE)
        ahead = KEPT_GATHERS if self._strategy.overlap else 0
        # Torch's implicit prefetch issues the next gathers before the current part computes.
        for _ in range(min(ahead, len(waiting))):
            self._gather(waiting.popleft(), begun)
        needed = [] if root is None else [BackwardSegment(root, 0.0)]
        for part, fraction in (*needed, *reversed(self._model.segments)):
            self._make_whole(part, begun, waiting, looks_ahead=ahead > 0)
            self._compute("forward", StepShare(forward=fraction))

    def _backward(self, backward: StepShare, *, reduces: bool, all_reduces: bool) -> None:
        """Compute backward; the part that comes next is gathered meanwhile, that which is done is reduced."""
        root = self._model.root
        waiting = deque(part for part in range(len(self._model.parts)) if part != root)
        if self._strategy.reshard_after_forward:
            # Forward has freed every part that it gathered, but for the root.
            self._is_whole -= set(waiting)
            if root is not None:  # which asks for the next part before its own backward
                self._gather(waiting.popleft(), self._last_kernel())
        else:
            waiting.clear()
        # A part is reduced once its last gradient is there; it may have several segments of backward, as the root's
        # first and last layers.
        left = Counter(segment.part for segment in self._model.segments)
        for part, fraction in self._model.segments:
            self._make_whole(part, self._made.last(COMPUTE), waiting)
            self._compute("backward", backward.scaled(fraction))
            left[part] -= 1
            if reduces and not left[part] and part != root:
                self._reduce(part, all_reduces=all_reduces)
        if reduces and root is not None:
            self._reduce(root, all_reduces=all_reduces)

    def _make_whole(
        self, part: int, begun: Sequence[OperationId], waiting: deque[int], *, looks_ahead: bool = True
    ) -> None:
        """Wait for a part, and ask for the next one."""
        if part in self._is_whole:
            return
        # Nobody has asked for it ahead: it is gathered only now, and compute waits for all of it.
        if part in waiting:
            waiting.remove(part)
            self._gather(part, begun)
        copied = self._copy_out(part)
        if looks_ahead and waiting:
            self._gather(waiting.popleft(), copied)

    def _gather(self, part: int, after: Sequence[OperationId]) -> None:
        group = self._shards
        if group.size == 1:
            return
        message_bytes = self._padded(part) * width_of(self._strategy.gather_dtype, self._step)
        schedule = algorithms.choose_all_gather(self._topology, group, message_bytes)
        self._gathered[part] = self._send(SHARDS, schedule, message_bytes, part, after)

    def _copy_out(self, part: int) -> tuple[OperationId, ...]:
        """Wait until a part is gathered, and put it into whole tensors."""
        self._is_whole.add(part)
        if self._shards.size == 1:
            return self._made.last(COMPUTE)
        num_bytes = self._padded(part) * width_of(self._strategy.gather_dtype, self._step)
        return self._copy("decode", num_bytes, part, self._gathered.pop(part))

    def _reduce(self, part: int, *, all_reduces: bool) -> None:
        """Scatter the gradients of a part; compute waits first until those of the part before have been."""
        num_bytes, shards = self._reduced_bytes(part), self._shards
        reduced = self._made.last(COMPUTE)
        if shards.size > 1:
            reduced = self._copy("encode", num_bytes, part, tuple(self._scattered))
            reduced = self._send(SHARDS, self._reduce_scatter(num_bytes), num_bytes, part, reduced)
            self._scattered = [*reduced]
        if all_reduces and self._replicas.size > 1:
            shard_bytes = num_bytes / shards.size
            schedule = algorithms.choose_on(self._strategy.algorithm, self._topology, shard_bytes, self._replicas)
            self._send(REPLICAS, schedule, shard_bytes, part, reduced)

    def _reduce_scatter(self, num_bytes: float) -> Schedule:
        if self._strategy.reduce_scatter_as == "all_reduce":
            return algorithms.choose_on(self._strategy.algorithm, self._topology, num_bytes, self._shards)
        return algorithms.choose_reduce_scatter(self._topology, self._shards, num_bytes)

    def _padded(self, part: int) -> float:
        return self._model.parts[part].padded_elements(self._shards.size)

    def _reduced_bytes(self, part: int) -> float:
        return self._padded(part) * width_of(self._strategy.reduce_dtype, self._step)

    def _compute(self, part: IterationPart, share: StepShare) -> None:
        # A kernel of no time is left out: every operation that waits costs a turn of the recurrence.
        if share.seconds(step_times(self._step)) > 0:
            self._work(Compute(part=part, share=share))

    def _copy(
        self, part: IterationPart, num_bytes: float, bucket: int, after: tuple[OperationId, ...]
    ) -> tuple[OperationId, ...]:
        return self._work(Kernel(name=SHARD_COPY.name, part=part, num_elements=num_bytes, bucket=bucket, after=after))

    def _work(self, operation: Operation) -> tuple[OperationId, ...]:
        """Add work of the GPU, after every message that blocks it."""
        after = dict.fromkeys((*operation.after, *self._blocking))
        self._blocking = []
        return self._made.add(COMPUTE, replace(operation, after=tuple(after)))

    def _send(
        self, stream: int, schedule: Schedule, message_bytes: float, bucket: int, after: Sequence[OperationId]
    ) -> tuple[OperationId, ...]:
        """Add a message; without overlap it waits for all compute before it, and compute for it."""
        before = () if self._strategy.overlap else (*self._made.last(COMPUTE), *self._blocking)
        message = Communicate(
            schedule=schedule, message_bytes=message_bytes, bucket=bucket, after=tuple(dict.fromkeys((*after, *before)))
        )
        sent = self._made.add(stream, message)
        # Without overlap the message blocks compute as well as it waits for it.
        if not self._strategy.overlap:
            self._blocking += sent
        return sent

    def _last_kernel(self) -> tuple[OperationId, ...]:
        """Return the last kernel of the GPU as what another waits for; none where it has run none."""
        operations = self._made.lists[COMPUTE]
        places = (place for place in reversed(range(len(operations))) if isinstance(operations[place], Kernel))
        return tuple(OperationId(COMPUTE, place) for place in islice(places, 1))


def sharded_memory(strategy: ShardedStrategy, model: ModelMemory, step: Step, num_shards: int) -> RankMemory:
    """Return what a rank holds of a model that so many ranks share: shards, and parts that are whole for a while.

    The root stays whole from its first use to the end of backward; of the blocks two are, that which computes and that
    which is gathered meanwhile. Gradients of a block are whole until they are copied into the message that scatters
    them, which is freed when the next block is done.
    """
    parts = strategy.parts(step)
    share = sum(part.padded_elements(num_shards) for part in parts.parts) / num_shards / step.num_elements
    # Gradients that are reduced once a step pile up whole until then.
    keeps_whole = strategy.reduce_every == "step" and step.micro_batches > 1
    return RankMemory(
        parameters=model.parameters * share,
        optimizer=None if model.optimizer is None else model.optimizer * share,
        gradients=model.gradients * (1.0 if keeps_whole else share),
        gathered=tuple(_gathered(strategy, parts, step, num_shards)) if num_shards > 1 else (),
        update=model.update * share,
    )


def _gathered(strategy: ShardedStrategy, parts: ModelParts, step: Step, num_shards: int) -> Iterator[float]:
    """Yield what is whole when the gradient of each tensor is ready [B]."""
    gather, reduce = (width_of(dtype, step) for dtype in (strategy.gather_dtype, strategy.reduce_dtype))
    elements = [part.padded_elements(num_shards) for part in parts.parts]
    blocks = [number for number in range(len(elements)) if number != parts.root]
    following = dict(pairwise(blocks))
    root_elements = 0.0 if parts.root is None else elements[parts.root]
    made: dict[int, float] = defaultdict(float)
    begun: list[int] = []
    for owner, tensor in zip(parts.owners, step.tensors, strict=True):
        if owner != parts.root and owner not in made:
            begun.append(owner)
        made[owner] += tensor.num_elements
        current = begun[-1] if begun else None
        upcoming = following.get(current) if current is not None else next(iter(blocks), None)
        whole = (
            [block for block in (current, upcoming) if block is not None] if strategy.reshard_after_forward else blocks
        )
        gathered = (root_elements + sum(elements[block] for block in whole)) * gather
        held = {part for part in (owner, parts.root, current) if part is not None}
        unreduced = sum(made[part] for part in held) * step.bytes_per_element
        sent = elements[begun[-2]] * reduce if len(begun) > 1 else 0.0
        yield gathered + unreduced + sent

"""Hybrid sharding: shards among the ranks of a node, copies of the model between nodes."""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from msgspec.structs import replace

from simnet.cluster.gpu_models import GpuModel
from simnet.cluster.schedule import Group
from simnet.cluster.topology import Topology
from simnet.collectives import algorithms
from simnet.core.bounded_types import Count
from simnet.core.errors import SimnetError
from simnet.core.units import Size
from simnet.strategies.base import BITS_PER_BYTE, Mathematics, Strategy, register
from simnet.strategies.binsgdm import BinSGDM
from simnet.strategies.compressing import BETWEEN_NODES, CompressingStrategy
from simnet.strategies.named import strategy_from_text
from simnet.strategies.program import Operation, Program
from simnet.strategies.shard_memory import sharded_memory
from simnet.strategies.sharded import ShardedStep, ShardedStrategy, check_groups
from simnet.workload.buckets import DDP_BUCKET_BYTES, Bucket
from simnet.workload.gpu_memory import ModelMemory, RankMemory
from simnet.workload.training_step import Step

FP32_BYTES = 4


@register
class HybridShard(ShardedStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="hsdp"):
    """Shard the model over the ranks of a node and keep a copy a node, as FSDP2 does on a mesh of two dimensions.

    Source: Zhao et al., PyTorch FSDP, VLDB 2023, section 3.2.2; torch.distributed.fsdp.fully_shard of PyTorch 2.13.
    What compresses between copies: binsgdm.attach_fsdp and binsgdm.compress_replicas.

    Attributes:
        shard_ranks: ranks that share one copy of the model: a part of a node, or whole nodes; by default those of a
            node.
        all_reduce_every: with several micro-batches, "step" all-reduces shards in the last alone, as
            set_requires_all_reduce(False) does in those before it; "micro_batch" does so in each.
        replicas: how the copies agree: a system that compresses, with options after a colon, such as "binsgdm" or
            "byte_grad:topology=scatter_reduce"; each rank exchanges its shard after backward, in messages of
            `bucket_cap`. By default FSDP2's all-reduce, during backward.
    """

    title: ClassVar[str] = "HSDP"

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
        found = strategy_from_text(self.replicas, "replicas")
        if isinstance(found, CompressingStrategy) and found.used_topology not in BETWEEN_NODES:
            return found
        if isinstance(found, BinSGDM) and found.intra_node_dtype is None and found.average == "updates":
            return replace(found, topology="flat")
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
        """Refuse a GPU on which the system inside cannot run.

        Raises:
            SimnetError: it is one.
        """
        if self._system is not None:
            self._system.check_gpu(gpu)

    @classmethod
    def presets(cls) -> dict[str, tuple[Strategy, ...]]:
        """Return it with torch's all-reduce between the copies, in bf16 too, with BinSGDM and with 8 bits."""
        return {
            cls.title: (cls(algorithm=algorithms.AUTO),),
            f"{cls.title} bf16": (cls(algorithm=algorithms.AUTO, gather_dtype="bf16", reduce_dtype="bf16"),),
            f"{cls.title} + BinSGDM": (cls(replicas="binsgdm"),),
            f"{cls.title} + int8": (cls(replicas="byte_grad:topology=scatter_reduce"),),
        }

    def bucketing_variants(self, caps: Sequence[Size | None]) -> tuple[Strategy, ...]:
        """Return it with each size of messages between copies, where it has a choice."""
        return tuple(replace(self, bucket_cap=cap) for cap in caps) if self.replicas else (self,)

    def memory(self, model: ModelMemory, step: Step, topology: Topology) -> RankMemory:
        """Return what a rank holds: its shards, parts that are whole, and what the system between copies keeps."""
        shards, replicas = self._groups(topology)
        held = sharded_memory(self, model, step, shards.size)
        system = self._system
        if system is None:
            return held
        own = step.num_elements / shards.size
        if isinstance(system, BinSGDM):
            kept, signs = system.flat_residual_bytes(own, replicas.size), own / BITS_PER_BYTE
            return replace(held, optimizer=0.0, update=0.0, residuals=kept, buckets=signs)
        return replace(held, residuals=system.residual_bytes(own, replicas.size))

    def program(self, step: Step, topology: Topology) -> Program:
        """Return one iteration.

        Raises:
            SimnetError: the workload has no tensors with shapes, or no blocks among them, or `shard_ranks` does not fit
                the cluster.
        """
        shards, replicas = self._groups(topology)
        reduced_in = self.reduced_in(step.micro_batches)
        is_last = [number == step.micro_batches - 1 for number in range(step.micro_batches)]
        all_reduced_in = is_last if self.all_reduce_every == "step" else reduced_in
        if self.replicas:
            all_reduced_in = [False] * step.micro_batches
        sharded = ShardedStep(self, step, topology, self.wire(step, shards, replicas))
        between = self._between_copies(step, shards, topology) if self.replicas and replicas.size > 1 else ()
        return sharded.program(reduced_in=reduced_in, all_reduced_in=all_reduced_in, between=between)

    def _groups(self, topology: Topology) -> tuple[Group, Group]:
        """Return the groups of ranks that share a copy, and of those that hold the same shard."""
        size, key = self.shard_ranks or topology.ranks_per_node, "strategy.shard_ranks"
        cluster = topology.num_nodes, topology.ranks_per_node
        shards = Group(0, size, 1, *cluster)
        check_groups(shards, key)
        if self.replicas and size != topology.ranks_per_node:
            raise SimnetError(
                f"{key}: {size}: with replicas = {self.replicas!r} a node holds one copy; leave it out, or drop "
                "replicas"
            )
        return shards, Group(0, topology.world_size // size, size, *cluster)

    def _between_copies(self, step: Step, shards: Group, topology: Topology) -> tuple[Operation, ...]:
        """Return the exchange of a rank's whole shard with those that hold the same one."""
        system, messages = self._system, self._messages(step, shards.size)
        if isinstance(system, BinSGDM):
            exchanges = [system.exchange_flat("inter_node", one, topology) for one in messages]
            epilogue = system.epilogue(messages, topology)
        else:
            assert system is not None
            form = system.used_topology
            exchanges = [system.exchange_among("inter_node", form, one, topology) for one in messages]
            epilogue = ()
        return (*(one for found in exchanges for one in found.operations), *epilogue)

    def _messages(self, step: Step, num_shards: int) -> tuple[Bucket, ...]:
        """Return a rank's shards of all tensors, in messages that end where they reach the cap."""
        cap = (self.bucket_cap or DDP_BUCKET_BYTES) / FP32_BYTES
        found: list[list[tuple[int, ...]]] = [[]]
        num_elements = 0
        for tensor in step.tensors:
            rows, *others = tensor.shape or (1,)
            if num_elements >= cap:
                found.append([])
                num_elements = 0
            shape = (math.ceil(rows / num_shards), *others)
            found[-1].append(shape)
            num_elements += math.prod(shape)
        return tuple(
            Bucket(
                index=index,
                num_elements=float(sum(map(math.prod, shapes))),
                backward_fraction=0.0,
                shapes=tuple(shapes),
            )
            for index, shapes in enumerate(found)
        )

"""Full sharding: every rank holds a shard of the model."""

from typing import ClassVar

from simnet.cluster.schedule import Group
from simnet.cluster.topology import Topology
from simnet.strategies.base import Strategy, register
from simnet.strategies.program import Program
from simnet.strategies.shard_memory import sharded_memory
from simnet.strategies.sharded import ShardedStep, ShardedStrategy
from simnet.workload.gpu_memory import ModelMemory, RankMemory
from simnet.workload.training_step import Step


@register
class FullShard(ShardedStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fsdp"):
    """Shard the model over all ranks, as torch's FSDP2 does on a mesh of one dimension; the same as ZeRO-3.

    Source: Zhao et al., PyTorch FSDP, VLDB 2023, https://arxiv.org/abs/2304.11277; Rajbhandari et al., ZeRO, SC 2020,
    https://arxiv.org/abs/1910.02054; torch.distributed.fsdp.fully_shard of PyTorch 2.13.
    """

    title: ClassVar[str] = "FSDP"

    @classmethod
    def presets(cls) -> dict[str, tuple[Strategy, ...]]:
        """Return it in the numbers of the gradients, and in bf16 as mixed precision has it."""
        return {cls.title: (cls(),), f"{cls.title} bf16": (cls(gather_dtype="bf16", reduce_dtype="bf16"),)}

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
        """Return one iteration of ranks that share the model with their group alone.

        Raises:
            SimnetError: as `program`.
        """
        alone, number = shards._replace(size=1), step.micro_batches
        return ShardedStep(self, step, topology, self.wire(step, shards, alone)).program(
            reduced_in=self.reduced_in(number), all_reduced_in=[False] * number
        )

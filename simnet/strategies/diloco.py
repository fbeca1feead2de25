"""DiLoCo: workers train apart for many steps, and an outer optimizer takes what they moved for a gradient."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta
from msgspec.structs import replace

from simnet.cluster.gpu_models import GpuModel
from simnet.cluster.schedule import GroupKind
from simnet.cluster.topology import Topology
from simnet.collectives import algorithms
from simnet.core.bounded_types import BYTES_PER_ELEMENT, Count, Dtype
from simnet.strategies.all_reduce import HIERARCHICAL
from simnet.strategies.base import Exchange, Strategy, all_gather, register
from simnet.strategies.compressing import BETWEEN_NODES, CompressingStrategy
from simnet.strategies.fsdp import FullShard
from simnet.strategies.local_steps import LocalStepsStrategy, OuterExchange, check_fits, fragment
from simnet.strategies.named import strategy_from_text
from simnet.strategies.program import Communicate, Kernel, Operation, Program
from simnet.strategies.shard_memory import sharded_memory
from simnet.workload.buckets import Bucket
from simnet.workload.gpu_memory import ModelMemory, RankMemory
from simnet.workload.kernel_cost import KernelCost
from simnet.workload.training_step import Step

PSEUDO_GRADIENT = KernelCost(name="pseudo_gradient", bytes_per_element=12.0, is_streaming=True)
"""Read outer and local parameters, write their difference."""
OUTER_COPIES = 2
"""Outer parameters and their momentum, which stay beside those of the worker."""
STEPPED_COPIES = 5
"""Of what is exchanged, that binsgdm.DiLoCo holds at once: the mean, a new momentum, the way along both, new outer
parameters, and the check that they are finite."""
OUTER_UPDATE = KernelCost(name="outer_update", bytes_per_element=24.0, is_streaming=True)
"""Nesterov: read the mean difference, the momentum and outer parameters; write the latter two and local parameters."""


@register
class DiLoCo(LocalStepsStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="diloco"):
    """Train workers apart for many steps, then let an outer Nesterov step follow the mean of what they moved.

    With workers of several ranks each rank exchanges its slice of the parameters between nodes, takes the outer step on
    it, and gathers the slices of the others in the node.

    Source: Douillard et al., DiLoCo, 2023, https://arxiv.org/abs/2311.08105; fragments and overlap: Douillard et al.,
    Streaming DiLoCo, 2025, https://arxiv.org/abs/2501.18512. Fragments are equal parts of all parameters; in the paper
    they are groups of layers.

    Attributes:
        outer_dtype: number format in which the difference travels.
        exchange_by: a system that compresses the difference, with options after a colon, such as
            "byte_grad:topology=scatter_reduce" or "ef_sign_sgd:scale_per=bucket"; by default it is all-reduced in
            `outer_dtype`.
        in_node: how the ranks of a worker train together: with "ddp" each holds all parameters, with "fsdp" a shard,
            whose outer step it takes.
        fragments: parts of the parameters that are exchanged at different steps of a period.
        overlap_steps: steps that hide an exchange, after which its result is applied.
    """

    title: ClassVar[str] = "DiLoCo"
    kernels: ClassVar[tuple[KernelCost, ...]] = (PSEUDO_GRADIENT, OUTER_UPDATE)

    inner_steps: Count = 50
    workers: Literal["rank", "node"] = "node"
    outer_dtype: Dtype | None = None
    exchange_by: str = ""
    in_node: Literal["ddp", "fsdp"] = "ddp"
    fragments: Count = 1
    overlap_steps: Annotated[int, Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        system = self._system
        if self.inner_steps % self.fragments:
            raise ValueError(
                f"fragments: {self.fragments}: must divide inner_steps ({self.inner_steps}); change one of them"
            )
        if self.overlap_steps >= self.inner_steps // self.fragments:
            raise ValueError(
                f"overlap_steps: {self.overlap_steps}: must be below inner_steps / fragments "
                f"({self.inner_steps // self.fragments}), so that one exchange ends before the next; lower it"
            )
        if system is not None and (self.outer_dtype is not None or self.algorithm is not None):
            raise ValueError(
                "exchange_by: a system brings its own numbers; drop outer_dtype and algorithm, or exchange_by"
            )

        if self.in_node == "fsdp" and (self.workers, self.bucketing, self.bucket_cap) != ("node", "ddp", None):
            raise ValueError(
                "in_node: 'fsdp': needs workers of several ranks, which then have no buckets; set workers = 'node', "
                "and drop bucketing and bucket_cap"
            )

    @property
    def _system(self) -> CompressingStrategy | None:
        if not self.exchange_by:
            return None
        found = strategy_from_text(self.exchange_by, "exchange_by")
        if isinstance(found, CompressingStrategy) and found.used_topology not in BETWEEN_NODES:
            return found
        raise ValueError(
            f"exchange_by: {self.exchange_by!r}: must be a system that compresses gradients, in a topology that is not "
            "hierarchical; give such as 'ef_sign_sgd:scale_per=bucket' or 'byte_grad:topology=scatter_reduce'"
        )

    @property
    def form(self) -> str:
        """What a worker is."""
        return f"FSDP in a node, a worker a {self.workers}" if self.in_node == "fsdp" else f"a worker a {self.workers}"

    def trains_as(self, other: Strategy) -> bool:
        """Tell whether a training with another strategy says how one with this goes: the same, but for workers."""
        return isinstance(other, DiLoCo) and other._arithmetic == self._arithmetic

    @property
    def _arithmetic(self) -> tuple[object, ...]:
        return self.inner_steps, self.fragments, self.overlap_steps, self.outer_dtype or "fp32", self._system

    def check_gpu(self, gpu: GpuModel) -> None:
        """Refuse a GPU on which the system inside cannot run.

        Raises:
            SimnetError: it is one.
        """
        if self._system is not None:
            self._system.check_gpu(gpu)

    @classmethod
    def presets(cls) -> dict[str, tuple[Strategy, ...]]:
        """Return as many steps as this project has trained, in 8 bits and one bit too, and those of papers."""
        auto, title = algorithms.AUTO, cls.title
        one_bit = "ef_sign_sgd:topology=scatter_reduce,scale_per=bucket"
        return {
            f"{title} 30": (cls(inner_steps=30, algorithm=auto),),
            f"{title} 30 int8": (cls(inner_steps=30, exchange_by="byte_grad:topology=scatter_reduce"),),
            f"{title} 30 1-bit": (cls(inner_steps=30, exchange_by=one_bit),),
            f"{title} 50": (cls(algorithm=auto),),
            f"{title} 500": (cls(inner_steps=500, algorithm=auto),),
            f"streaming {title} 100": (cls(inner_steps=100, fragments=4, overlap_steps=5, algorithm=auto),),
        }

    def topology_variants(self) -> tuple[Strategy, ...]:
        """Return it with the all-reduces worth a try, or with workers that hold all parameters and that shard them."""
        if self.workers == "node":
            return tuple(replace(self, in_node=in_node) for in_node in ("ddp", "fsdp"))
        return (self, replace(self, algorithm=HIERARCHICAL)) if self.algorithm == algorithms.AUTO else (self,)

    def memory(self, model: ModelMemory, step: Step, topology: Topology) -> RankMemory:
        """Return what a rank holds: its slice of the outer parameters and their momentum, and what it sends of them."""
        held = self._held(model, step, topology)
        ranks = topology.ranks_per_node if self.workers == "node" else 1
        own = step.num_elements / ranks * BYTES_PER_ELEMENT["fp32"]
        system = self._system
        workers = topology.world_size // ranks
        lost = 0.0 if system is None else system.residual_bytes(step.num_elements / ranks, workers)
        sent = own / self.fragments
        gathered = sent * ranks if ranks > 1 and self.in_node == "ddp" else 0.0
        return replace(
            held,
            residuals=OUTER_COPIES * own + lost,
            buckets=held.buckets + (sent if self.overlap_steps else 0.0),
            update=max(held.update, STEPPED_COPIES * sent + gathered),
        )

    def _held(self, model: ModelMemory, step: Step, topology: Topology) -> RankMemory:
        """Return what a rank holds of its worker."""
        if self.in_node == "fsdp":
            return sharded_memory(FullShard(), model, step, topology.ranks_per_node)
        return self.held_by_worker(model, topology)

    def inner_step(self, step: Step, topology: Topology) -> Program:
        """Return a step of a worker.

        Raises:
            SimnetError: shards need what the workload does not have.
        """
        if self.in_node == "ddp":
            return super().inner_step(step, topology)
        return FullShard().program_among(topology.group("intra_node"), step, topology)

    def program(self, step: Step, topology: Topology) -> Program:
        """Return the steps from one exchange of a fragment to that of the next.

        Raises:
            SimnetError: there are more fragments than tensors, or the exchange does not fit the workload or cluster.
        """
        if step.tensors:
            rule = f"the model has {len(step.tensors)} tensors"
            check_fits("fragments", self.fragments, len(step.tensors), rule)
        steps = self.inner_steps // self.fragments
        outer = self._outer(fragment(step, self.fragments), topology)
        return self.period(step, topology, outer, steps=steps, overlapped=self.overlap_steps)

    def _outer(self, part: Bucket, topology: Topology) -> OuterExchange:
        ranks = topology.ranks_per_node if self.workers == "node" else 1
        own = replace(part, num_elements=part.num_elements / ranks, shapes=part.shapes if ranks == 1 else None)
        update = Kernel(name=OUTER_UPDATE.name, part="decode", num_elements=own.num_elements)
        exchange = self._exchange(own, topology)
        return OuterExchange(
            (Kernel(name=PSEUDO_GRADIENT.name, part="encode", num_elements=own.num_elements),),
            exchange._replace(payload_bytes=exchange.payload_bytes * ranks),
            (update, *self._gathered(part, topology)),
        )

    def _exchange(self, own: Bucket, topology: Topology) -> Exchange:
        """Return the mean of a rank's slice over workers."""
        kind: GroupKind = "inter_node" if self.workers == "node" else "world"
        system = self._system
        if system is not None:
            return system.exchange_among(kind, system.used_topology, own, topology)
        message_bytes = own.num_elements * BYTES_PER_ELEMENT[self.outer_dtype or "fp32"]
        schedule = algorithms.choose_on(self.algorithm, topology, message_bytes, topology.group(kind))
        return Exchange((Communicate(schedule=schedule, message_bytes=message_bytes),), message_bytes, schedule.label)

    def _gathered(self, part: Bucket, topology: Topology) -> tuple[Operation, ...]:
        """Return the gather of new parameters in the node, where each rank has taken the step on a slice alone."""
        if self.workers == "rank" or self.in_node == "fsdp" or topology.ranks_per_node == 1:
            return ()
        return (all_gather(topology.group("intra_node"), topology, part.num_elements * BYTES_PER_ELEMENT["fp32"]),)

"""Marsit: one bit an element on every hop of a ring, or of the rings of a torus (Wu et al., DAC 2022)."""

from collections.abc import Callable
from typing import Annotated, ClassVar

from msgspec import Meta

from simnet.cluster.schedule import Group, GroupKind, Schedule
from simnet.cluster.topology import Topology as NetworkTopology
from simnet.collectives import ring
from simnet.core.bounded_types import Count
from simnet.strategies.all_reduce import DenseAllReduce
from simnet.strategies.base import DenseStage, Exchange, Strategy, padded_sign_bytes, register
from simnet.strategies.compressing import (
    MOMENTUM,
    SCALE_BYTES,
    CompressingStrategy,
    Momentum,
    Topology,
    decode_kernel,
    encode_kernels,
    kernel_costs,
    merge_kernel,
)
from simnet.strategies.program import Communicate, Operation
from simnet.workload.buckets import Bucket
from simnet.workload.kernel_cost import KernelCost


@register
class Marsit(CompressingStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="marsit"):
    """Marsit (Wu et al., DAC 2022): one bit an element on every hop of a ring, or of the rings of a torus.

    `iteration_s` is that of a 1-bit step; with `run.steps` the end-to-end time counts those in full precision.

    Attributes:
        sync_period: all ranks average in full precision once in as many steps; none: never.
        torus: whether signs go round the ring of each node, then round rings between nodes, instead of one ring.
        scale: what a sign stands for; by default the mean magnitude, which ranks gather in either case.
        residual_decay: part of what signs missed that is added to the next gradient.
        momentum: decay of the momentum that each rank sends in place of its gradients; 0 for none.
    """

    has_feedback: ClassVar[bool] = True
    title: ClassVar[str] = "Marsit"
    topologies: ClassVar[tuple[Topology, ...]] = ("ring", "hierarchical")
    is_rate_independent: ClassVar[bool] = True
    kernels: ClassVar[tuple[KernelCost, ...]] = (
        *kernel_costs("marsit", 20.125, 0.375, 4.125),
        MOMENTUM,
    )

    sync_period: Count | None = 100
    torus: bool = False
    scale: Annotated[float, Meta(gt=0.0)] | None = None
    residual_decay: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0
    momentum: Momentum = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.torus and self.topology == "hierarchical":
            raise ValueError("torus: has no effect with topology 'hierarchical', which averages in the node; drop one")

    @property
    def has_momentum(self) -> bool:
        """Whether `momentum` is not 0."""
        return self.momentum > 0

    def dense_stage(self, steps: int | None) -> DenseStage | None:
        """Return the steps in full precision: every `sync_period`-th one."""
        if self.sync_period is None:
            return None
        dense = DenseAllReduce(
            algorithm="hierarchical" if self.torus else "ring",
            bucketing=self.bucketing,
            bucket_cap=self.bucket_cap,
            overlap=self.overlap,
            planner=self.planner,
        )
        return DenseStage(dense, (steps or 0) // self.sync_period)

    @property
    def dense_fraction(self) -> float:
        """Part of the steps in full precision."""
        return 1 / self.sync_period if self.sync_period else 0.0

    @classmethod
    def presets(cls) -> dict[str, tuple[Strategy, ...]]:
        """Return one ring, and the torus."""
        return {cls.title: (cls(), cls(torus=True))}

    @property
    def form(self) -> str:
        """Its topology, or that it goes round the rings of a torus."""
        return "torus" if self.torus else super().form

    def topology_variants(self) -> tuple[Strategy, ...]:
        """Return it with each topology; a torus has no other."""
        return (self,) if self.torus else super().topology_variants()

    def exchange_among(self, group: GroupKind, form: str, bucket: Bucket, topology: NetworkTopology) -> Exchange:  # noqa: ARG002
        """Merge signs hop by hop round one ring or two, and hand them back."""
        world = topology.group(group)
        message_bytes = float(padded_sign_bytes(bucket.num_elements, world.size))
        scales = Communicate(schedule=ring.all_gather(world), message_bytes=float(SCALE_BYTES * world.size))
        kinds: tuple[GroupKind, ...] = ("intra_node", "inter_node") if self.torus else (group,)
        groups = [topology.group(kind) for kind in kinds]
        operations: tuple[Operation, ...] = (
            *encode_kernels(self, bucket),
            scales,
            *_round_rings(groups, message_bytes, ring.reduce_scatter),
            merge_kernel(self, bucket),
            *_round_rings(groups, message_bytes, ring.all_gather)[::-1],
            decode_kernel(self, bucket.num_elements),
        )
        return Exchange(operations, message_bytes, "torus" if self.torus else "ring")


def _round_rings(groups: list[Group], message_bytes: float, way: Callable[[Group], Schedule]) -> list[Communicate]:
    """Return one collective a ring, each on a chunk of the last one's."""
    # After the reduce-scatter of the first ring a rank owns 1/size of the message, which the next ring goes on with.
    found = []
    for group in groups:
        found.append(Communicate(schedule=way(group), message_bytes=message_bytes))
        message_bytes /= group.size
    return found

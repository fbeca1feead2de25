"""Systems that send some of the elements: Top-k, MSTop-k, Random-k."""

from typing import Annotated, ClassVar

from msgspec import Meta
from msgspec.structs import replace

from simnet.cluster.schedule import GroupKind
from simnet.cluster.topology import Topology as NetworkTopology
from simnet.core.bounded_types import Count
from simnet.strategies.all_reduce import Algorithm, check_algorithm
from simnet.strategies.base import DenseStage, Exchange, Strategy, register
from simnet.strategies.compressing import (
    INDEX_BYTES,
    MOMENTUM,
    VALUE_BYTES,
    GatheredPayload,
    GatheringStrategy,
    Momentum,
    Topology,
    all_reduce_payload,
    gathering_kernel_costs,
    kernel_costs,
)
from simnet.workload.buckets import Bucket
from simnet.workload.kernel_cost import KernelCost

Ratio = Annotated[float, Meta(gt=0.0, le=1.0)]
USUAL_RATIO = 0.01


class Sparsifying(GatheringStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keep some elements of each bucket; `ratio` or `k` says how many.

    Attributes:
        ratio: fraction of a bucket's elements that travels.
        k: elements of a bucket that travel.
        momentum: decay of the momentum that each rank sends in place of its gradients; 0 for none.
        warmup_steps: steps at the start of the training over which the ratio falls to `ratio` by equal factors; needs
            `run.steps`. Each is counted as one with their mean ratio.
    """

    has_feedback: ClassVar[bool] = True
    ratio: Ratio | None = None
    k: Count | None = None
    momentum: Momentum = 0.0
    warmup_steps: Annotated[int, Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.ratio is None) == (self.k is None):
            raise ValueError("ratio: must be given once; give ratio or k")
        if self.warmup_steps and self.ratio is None:
            raise ValueError(f"warmup_steps: {self.warmup_steps}: needs ratio; give it instead of k")

    @property
    def has_momentum(self) -> bool:
        """Whether `momentum` is not 0."""
        return self.momentum > 0

    def dense_stage(self, steps: int | None) -> DenseStage | None:  # noqa: ARG002
        """Return the steps of the warm-up, with their mean ratio."""
        if not self.warmup_steps or self.ratio is None:
            return None
        steps_to_ratio = self.warmup_steps + 1
        total = sum(self.ratio ** (step / steps_to_ratio) for step in range(1, steps_to_ratio))
        return DenseStage(replace(self, ratio=total / self.warmup_steps, warmup_steps=0), self.warmup_steps)

    def for_longer_training(self, scale: float) -> Strategy:
        """Return the strategy with `scale` times the steps of the warm-up."""
        return replace(self, warmup_steps=round(self.warmup_steps * scale))

    def check_steps(self, steps: int | None) -> None:
        """Refuse `warmup_steps` without `run.steps`, or more of them than `run.steps`.

        Raises:
            ValueError: "key: given: rule".
        """
        if self.warmup_steps and steps is None:
            raise ValueError(f"warmup_steps: {self.warmup_steps}: has no effect without run.steps; give both")
        if self.warmup_steps > (steps or self.warmup_steps):
            raise ValueError(f"warmup_steps: {self.warmup_steps}: more than run.steps ({steps})")

    @classmethod
    def presets(cls) -> dict[str, tuple[Strategy, ...]]:
        """Return the usual ratio."""
        return {f"{cls.title} 1 %": (cls(ratio=USUAL_RATIO),)}

    def num_kept(self, num_elements: float) -> float:
        """Return how many of a bucket's elements travel."""
        wanted = float(self.k) if self.k is not None else max(1.0, round((self.ratio or 0.0) * num_elements))
        return min(wanted, num_elements)

    def payload(self, bucket: Bucket) -> GatheredPayload:
        """Return values with their indices, which decoding adds at their places."""
        kept = self.num_kept(bucket.num_elements)
        return GatheredPayload((VALUE_BYTES + INDEX_BYTES) * kept, kept)


@register
class TopK(Sparsifying, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="top_k"):
    """Values of largest magnitude with their indices, gathered by all."""

    title: ClassVar[str] = "Top-k"
    is_rate_independent: ClassVar[bool] = True
    # decode counts kept elements; encode selects the k largest: bytes say little of its time
    kernels: ClassVar[tuple[KernelCost, ...]] = (
        *gathering_kernel_costs("top_k", 20.0, 16.0, decoded_fraction=USUAL_RATIO, measured_only=("encode",)),
        MOMENTUM,
    )


@register
class MSTopK(Sparsifying, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ms_top_k"):
    """Values of largest magnitude with their indices, found by counting instead of sorting (Shi et al., MLSys 2021)."""

    title: ClassVar[str] = "MSTop-k"
    is_rate_independent: ClassVar[bool] = True
    kernels: ClassVar[tuple[KernelCost, ...]] = (
        *gathering_kernel_costs("ms_top_k", 136.0, 16.0, decoded_fraction=USUAL_RATIO),  # 31 counts read all
        MOMENTUM,
    )


@register
class RandomK(Sparsifying, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="random_k"):
    """Values that all ranks draw alike, added up by an all-reduce; unbiased, or with error feedback.

    Attributes:
        unbiased: whether values are scaled up so that the mean is right, instead of error feedback.
        algorithm: the all-reduce algorithm, as that of `all_reduce`.
    """

    title: ClassVar[str] = "Random-k"
    topologies: ClassVar[tuple[Topology, ...]] = ("all_reduce", "hierarchical")
    # encode draws numbers for all elements and selects the k largest
    kernels: ClassVar[tuple[KernelCost, ...]] = (
        *kernel_costs("random_k", 12.0, 0.0, 4.0, measured_only=("encode",)),
        MOMENTUM,
    )

    unbiased: bool = False
    algorithm: Algorithm | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_algorithm("algorithm", self.algorithm)

    @property
    def keeps_feedback(self) -> bool:
        """Whether it is not unbiased."""
        return not self.unbiased

    @classmethod
    def presets(cls) -> dict[str, tuple[Strategy, ...]]:
        """Return the usual ratio."""
        return {f"{cls.title} 1 %": (cls(ratio=USUAL_RATIO, algorithm="auto"),)}

    def exchange_among(self, group: GroupKind, form: str, bucket: Bucket, topology: NetworkTopology) -> Exchange:  # noqa: ARG002
        """Return an all-reduce of the values, whose indices all ranks know."""
        message_bytes = VALUE_BYTES * self.num_kept(bucket.num_elements)
        return all_reduce_payload(self, bucket, message_bytes, self.algorithm, group, topology)

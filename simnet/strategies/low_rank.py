"""Systems that send thin factors of each gradient matrix: PowerSGD, GradZip, ATOMO."""

import math
from typing import Annotated, ClassVar

from msgspec import Meta

from simnet.cluster.schedule import GroupKind
from simnet.cluster.topology import Topology as NetworkTopology
from simnet.strategies.all_reduce import Algorithm, check_algorithm
from simnet.strategies.base import Exchange, Strategy, choose_all_reduce, register
from simnet.strategies.compressing import (
    VALUE_BYTES,
    CompressingStrategy,
    GatheredPayload,
    GatheringStrategy,
    Topology,
    all_reduce_payload,
    decode_kernel,
    encode_kernels,
    kernel_costs,
    matrix_shape,
    merge_kernel,
    tensor_shapes,
)
from simnet.strategies.program import Operation
from simnet.workload.buckets import Bucket
from simnet.workload.kernel_cost import KernelCost
from simnet.workload.pieces import Cut


class LowRank(CompressingStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Thin factors of each matrix, and the other tensors as they are, averaged by all-reduces.

    Attributes:
        matrix_rank: columns of each factor.
        algorithm: the all-reduce algorithm, as that of `all_reduce`.
    """

    has_feedback: ClassVar[bool] = True
    topologies: ClassVar[tuple[Topology, ...]] = ("all_reduce", "hierarchical")
    cut: ClassVar[Cut] = "rows"

    matrix_rank: Annotated[int, Meta(ge=1, le=65_536)] = 4
    algorithm: Algorithm | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_algorithm("algorithm", self.algorithm)

    @classmethod
    def presets(cls) -> dict[str, tuple[Strategy, ...]]:
        """Return the usual rank."""
        return {f"{cls.title} rank {cls().matrix_rank}": (cls(algorithm="auto"),)}

    def factor_bytes(self, bucket: Bucket) -> tuple[float, float, float]:
        """Return the bytes of the left factors (n, r), of the right ones (m, r), and of what is not factored."""
        factored, whole = _parted(self, bucket, self.matrix_rank)
        left = sum(rows for rows, _ in factored) * self.matrix_rank
        right = sum(columns for _, columns in factored) * self.matrix_rank
        return VALUE_BYTES * left, VALUE_BYTES * right, VALUE_BYTES * whole


@register
class PowerSGD(LowRank, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="power_sgd"):
    """PowerSGD (Vogels et al., NeurIPS 2019): two all-reduces a bucket, the second waits for the first."""

    title: ClassVar[str] = "PowerSGD"
    # M Q reads g and residual, writes M; M^T P reads M; P Q^T twice, residual written. `merge_kernel` makes columns
    # orthogonal, one after the other, on which PowerSGD spends most (pytorch/pytorch#65813): bytes tell little of it.
    kernels: ClassVar[tuple[KernelCost, ...]] = kernel_costs("power_sgd", 12.0, 4.0, 12.0, measured_only=("merge",))

    def exchange_among(self, group: GroupKind, form: str, bucket: Bucket, topology: NetworkTopology) -> Exchange:  # noqa: ARG002
        """Average the left factors with what is not factored, then the right ones."""
        left, right, whole = self.factor_bytes(bucket)
        sizes = [size for size in (left + whole, right) if size]
        reductions = [choose_all_reduce(self.algorithm, topology, size, group) for size in sizes]
        first, *second = (collective for collective, _ in reductions)
        operations: tuple[Operation, ...] = (
            *encode_kernels(self, bucket),
            first,
            merge_kernel(self, bucket),
            *second,
            decode_kernel(self, bucket.num_elements),
        )
        return Exchange(operations, sum(sizes), reductions[0][1])


@register
class GradZip(LowRank, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="grad_zip"):
    """GradZip (Cho et al., NeurIPS 2019 workshop): one factor a step; the mean of the two turns is simulated."""

    title: ClassVar[str] = "GradZip"
    # encode makes columns orthogonal: bytes say little of its time
    kernels: ClassVar[tuple[KernelCost, ...]] = kernel_costs("grad_zip", 12.0, 0.0, 12.0, measured_only=("encode",))

    def exchange_among(self, group: GroupKind, form: str, bucket: Bucket, topology: NetworkTopology) -> Exchange:  # noqa: ARG002
        """Add up one factor, whose bytes are the mean of the two turns, and what is not factored."""
        left, right, whole = self.factor_bytes(bucket)
        return all_reduce_payload(self, bucket, (left + right) / 2 + whole, self.algorithm, group, topology)


@register
class Atomo(GatheringStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="atomo"):
    """ATOMO on singular vectors (Wang et al., NeurIPS 2018): drawn triplets of each matrix, gathered by all.

    Attributes:
        budget: singular triplets of each matrix that travel, on average.
    """

    title: ClassVar[str] = "ATOMO"
    is_rate_independent: ClassVar[bool] = True
    # encode is counted as if the decomposition were one read: far from what it takes
    kernels: ClassVar[tuple[KernelCost, ...]] = kernel_costs("atomo", 4.0, 0.0, 8.0, measured_only=("encode",))
    topologies: ClassVar[tuple[Topology, ...]] = ("gather", "hierarchical")
    cut: ClassVar[Cut] = "rows"

    budget: Annotated[float, Meta(gt=0.0, le=65_536.0)] = 3.0

    @classmethod
    def presets(cls) -> dict[str, tuple[Strategy, ...]]:
        """Return the usual budget."""
        return {f"{cls.title} budget {cls().budget:g}": (cls(),)}

    def payload(self, bucket: Bucket) -> GatheredPayload:
        """Return triplets, with how many there are of each matrix, and what is not factored."""
        factored, whole = _parted(self, bucket, self.budget)
        triplets = sum(min(self.budget, *sides) * sum(sides) for sides in factored)
        num_bytes = VALUE_BYTES * (triplets + whole + len(factored))
        return GatheredPayload(num_bytes, bucket.num_elements, is_variable_length=True)


def _parted(strategy: Strategy, bucket: Bucket, matrix_rank: float) -> tuple[list[tuple[int, int]], int]:
    """Return rows and columns of the matrices that factors make smaller, and the elements of all other tensors."""
    shapes = tensor_shapes(strategy, bucket)
    sides = [matrix_shape(shape) for shape in shapes]
    factored = [(rows, columns) for rows, columns in sides if matrix_rank * (rows + columns) < rows * columns]
    whole = sum(math.prod(shape) for shape in shapes) - sum(rows * columns for rows, columns in factored)
    return factored, whole

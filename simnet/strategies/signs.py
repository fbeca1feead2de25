"""Systems that send one bit or one trit an element: SignSGD, EF-SignSGD, 1-bit SGD, TernGrad."""

import math
from typing import ClassVar, Literal

from simnet.cluster.schedule import GroupKind
from simnet.cluster.topology import Topology as NetworkTopology
from simnet.collectives import direct
from simnet.strategies.base import Exchange, all_gather, padded_sign_bytes, register
from simnet.strategies.compressing import (
    MOMENTUM,
    SCALE_BYTES,
    CompressingStrategy,
    GatheredPayload,
    GatheringStrategy,
    Momentum,
    Topology,
    bytes_of_bits,
    decode_kernel,
    encode_kernels,
    gathering_kernel_costs,
    kernel_costs,
    matrix_shape,
    merge_kernel,
    tensor_shapes,
)
from simnet.strategies.program import Communicate, Operation
from simnet.workload.buckets import Bucket
from simnet.workload.kernel_cost import KernelCost
from simnet.workload.pieces import Cut

TRITS_PER_BYTE = 5


@register
class OneBitSGD(GatheringStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="one_bit_sgd"):
    """1-bit SGD (Seide et al., Interspeech 2014): signs and two means a column of each matrix, gathered by all.

    Attributes:
        momentum: decay of the momentum that each rank sends in place of its gradients; 0 for none.
    """

    has_feedback: ClassVar[bool] = True
    title: ClassVar[str] = "1-bit SGD"
    cut: ClassVar[Cut] = "columns"
    is_rate_independent: ClassVar[bool] = True
    kernels: ClassVar[tuple[KernelCost, ...]] = (
        *gathering_kernel_costs("one_bit_sgd", 20.125, 8.125),
        MOMENTUM,
    )

    momentum: Momentum = 0.0

    @property
    def has_momentum(self) -> bool:
        """Whether `momentum` is not 0."""
        return self.momentum > 0

    def payload(self, bucket: Bucket) -> GatheredPayload:
        """Return signs and means."""
        columns = sum(matrix_shape(shape)[1] for shape in tensor_shapes(self, bucket) if math.prod(shape))
        num_bytes = bytes_of_bits(bucket.num_elements) + 2 * SCALE_BYTES * columns
        return GatheredPayload(num_bytes, bucket.num_elements)


@register
class SignSGD(CompressingStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="sign_sgd"):
    """SignSGD with majority vote (Bernstein et al., ICML 2018): one bit an element each way, each rank counts some.

    Attributes:
        momentum: decay of the momentum that each rank sends in place of its gradients (Signum); 0 for none.
    """

    title: ClassVar[str] = "SignSGD"
    topologies: ClassVar[tuple[Topology, ...]] = ("scatter_reduce", "hierarchical")
    is_rate_independent: ClassVar[bool] = True
    kernels: ClassVar[tuple[KernelCost, ...]] = (*kernel_costs("sign_sgd", 4.125, 0.25, 4.125), MOMENTUM)

    momentum: Momentum = 0.0

    @property
    def has_momentum(self) -> bool:
        """Whether `momentum` is not 0."""
        return self.momentum > 0

    def exchange_among(self, group: GroupKind, form: str, bucket: Bucket, topology: NetworkTopology) -> Exchange:  # noqa: ARG002
        """Swap signs among all ranks, count, and gather the winners; a byte with each chunk tells if it is finite."""
        ranks = topology.group(group)
        message_bytes = float(padded_sign_bytes(bucket.num_elements, ranks.size) + ranks.size)
        operations: tuple[Operation, ...] = (
            *encode_kernels(self, bucket),
            Communicate(schedule=direct.all_to_all(ranks), message_bytes=message_bytes),
            merge_kernel(self, bucket),
            all_gather(ranks, topology, message_bytes),
            decode_kernel(self, bucket.num_elements),
        )
        return Exchange(operations, message_bytes, "all_to_all")


@register
class EFSignSGD(GatheringStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ef_sign_sgd"):
    """EF-SignSGD (Karimireddy et al., ICML 2019): signs and the mean magnitude of what shares it, gathered by all.

    Attributes:
        scale_per: which elements share one fp32 scale.
        momentum: decay of the momentum that each rank sends in place of its gradients; 0 for none.
    """

    has_feedback: ClassVar[bool] = True
    title: ClassVar[str] = "EF-SignSGD"
    is_rate_independent: ClassVar[bool] = True
    kernels: ClassVar[tuple[KernelCost, ...]] = (
        *gathering_kernel_costs("ef_sign_sgd", 20.125, 8.125),
        MOMENTUM,
    )

    scale_per: Literal["tensor", "bucket"] = "tensor"
    momentum: Momentum = 0.0

    @property
    def has_momentum(self) -> bool:
        """Whether `momentum` is not 0."""
        return self.momentum > 0

    def payload(self, bucket: Bucket) -> GatheredPayload:
        """Return signs and scales."""
        num_scales = len(tensor_shapes(self, bucket)) if self.scale_per == "tensor" else 1
        num_bytes = bytes_of_bits(bucket.num_elements) + SCALE_BYTES * num_scales
        return GatheredPayload(num_bytes, bucket.num_elements)


@register
class TernGrad(GatheringStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="terngrad"):
    """TernGrad (Wen et al., NeurIPS 2017): five elements a byte and a scale a tensor, gathered by all."""

    title: ClassVar[str] = "TernGrad"
    is_rate_independent: ClassVar[bool] = True
    kernels: ClassVar[tuple[KernelCost, ...]] = gathering_kernel_costs("terngrad", 8.2, 8.2)

    def payload(self, bucket: Bucket) -> GatheredPayload:
        """Return trits and scales."""
        num_scales = len(tensor_shapes(self, bucket))
        num_bytes = math.ceil(bucket.num_elements / TRITS_PER_BYTE) + SCALE_BYTES * num_scales
        return GatheredPayload(num_bytes, bucket.num_elements)

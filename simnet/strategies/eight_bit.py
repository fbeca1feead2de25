"""ByteGrad: one byte an element and a scale a block."""

import math
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from simnet.strategies.base import Mathematics, register
from simnet.strategies.compressing import (
    SCALE_BYTES,
    GatheredPayload,
    GatheringStrategy,
    Topology,
    gathering_kernel_costs,
)
from simnet.workload.buckets import Bucket
from simnet.workload.kernel_cost import KernelCost


@register
class ByteGrad(GatheringStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="byte_grad"):
    """ByteGrad of BAGUA (Gan et al., VLDB 2022): a byte an element and a scale a block, averaged by pieces.

    Attributes:
        dtype: of a byte; messages are the same.
        block_size: elements that share a scale.
    """

    title: ClassVar[str] = "ByteGrad"
    topologies: ClassVar[tuple[Topology, ...]] = (
        "scatter_reduce",
        "gather",
        "hierarchical",
    )
    is_rate_independent: ClassVar[bool] = True
    kernels: ClassVar[tuple[KernelCost, ...]] = gathering_kernel_costs("byte_grad", 9.0, 9.0)

    dtype: Literal["int8", "fp8_e4m3", "fp8_e5m2"] = "int8"
    block_size: Annotated[int, Meta(ge=1, le=1_048_576)] = 256

    @property
    def mathematics(self) -> Mathematics:
        """Rounding to a byte."""
        return "rounding"

    def payload(self, bucket: Bucket) -> GatheredPayload:
        """Return bytes and scales."""
        num_bytes = math.ceil(bucket.num_elements) + SCALE_BYTES * math.ceil(bucket.num_elements / self.block_size)
        return GatheredPayload(num_bytes, bucket.num_elements)

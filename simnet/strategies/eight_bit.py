"""Eight bits an element: ByteGrad, and the int8 and fp8 all-reduces, which are its scatter-reduce by other names."""

import math
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from simnet.cluster.gpu_models import GpuModel
from simnet.core.errors import SimnetError
from simnet.strategies.base import Mathematics, Strategy, register
from simnet.strategies.compressing import (
    SCALE_BYTES,
    GatheredPayload,
    GatheringStrategy,
    Topology,
    gathering_kernel_costs,
)
from simnet.workload.buckets import Bucket
from simnet.workload.kernel_cost import KernelCost

BlockSize = Annotated[int, Meta(ge=1, le=1_048_576)]
Fp8 = Literal["fp8_e4m3", "fp8_e5m2"]


class EightBitStrategy(GatheringStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What sends a byte an element and an fp32 scale a block, by the kernels of ByteGrad.

    Attributes:
        block_size: elements that share a scale.
    """

    topologies: ClassVar[tuple[Topology, ...]] = ("scatter_reduce",)
    runs_kernels_of: ClassVar[str] = "byte_grad"
    kernels: ClassVar[tuple[KernelCost, ...]] = gathering_kernel_costs("byte_grad", 9.0, 9.0)

    block_size: BlockSize = 256

    @property
    def mathematics(self) -> Mathematics:
        """Rounding to a byte."""
        return "rounding"

    @property
    def byte_dtype(self) -> str:
        """What a byte is."""
        raise NotImplementedError  # as `Strategy.exchange`

    def kernel_options(self) -> dict[str, object]:
        """Return the options as ByteGrad has them."""
        return super().kernel_options() | {"dtype": self.byte_dtype}

    def trains_as(self, other: Strategy) -> bool:
        """Tell whether a training with another strategy says how one with this goes: rounded alike, as often."""
        if not isinstance(other, EightBitStrategy) or other.byte_dtype != self.byte_dtype:
            return False
        return self.has_arithmetic_of(other)

    def payload(self, bucket: Bucket) -> GatheredPayload:
        """Return bytes and scales."""
        num_bytes = math.ceil(bucket.num_elements) + SCALE_BYTES * math.ceil(bucket.num_elements / self.block_size)
        return GatheredPayload(num_bytes, bucket.num_elements)


@register
class ByteGrad(EightBitStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="byte_grad"):
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

    dtype: Literal["int8", "fp8_e4m3", "fp8_e5m2"] = "int8"

    @property
    def byte_dtype(self) -> str:
        """What a byte is."""
        return self.dtype

    @classmethod
    def presets(cls) -> dict[str, tuple[Strategy, ...]]:
        """Return what `int8` is not."""
        return {cls.title: (cls(topology="hierarchical"),)}

    def topology_variants(self) -> tuple[Strategy, ...]:
        """Return it with each topology; a setting in another topology than its own without the scatter-reduce."""
        own, *others = super().topology_variants()
        return (own, *others) if self.used_topology == self.topologies[0] else tuple(others)


@register
class Int8AllReduce(EightBitStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="int8"):
    """All-reduce in int8, as torchft's `allreduce_quantized` on GPUs without fp8: ByteGrad's scatter-reduce.

    Every rank sends each other one its piece as codes and scales, adds up in fp32 what arrives, rounds the mean again
    and gathers. Source: meta-pytorch/torchft, torchft/collectives.py and quantization.py. Differs: there a row of a
    matrix shares a scale, here a block.

    Attributes:
        block_size: elements that share a scale.
    """

    title: ClassVar[str] = "int8 all-reduce"
    is_rate_independent: ClassVar[bool] = True

    @property
    def byte_dtype(self) -> str:
        """What a byte is."""
        return "int8"


@register
class Fp8AllReduce(EightBitStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fp8"):
    """All-reduce in 8-bit floats, as torchft's `allreduce_quantized` on GPUs with fp8: `int8` with other bytes.

    Attributes:
        dtype: of a byte; messages are the same.
        block_size: elements that share a scale.
    """

    title: ClassVar[str] = "fp8 all-reduce"
    is_rate_independent: ClassVar[bool] = True

    dtype: Fp8 = "fp8_e4m3"

    @property
    def byte_dtype(self) -> str:
        """What a byte is."""
        return self.dtype

    def check_gpu(self, gpu: GpuModel) -> None:
        """Refuse a GPU without 8-bit floats, on which torchft takes int8 itself.

        Raises:
            SimnetError: it is one.
        """
        if "fp8" not in gpu.peak_flops:
            known = ", ".join(gpu.peak_flops)
            raise SimnetError(
                f"cluster.gpu: {gpu.name!r}: has no 8-bit floats for an all-reduce in fp8: it has {known}; use 'int8', "
                "or a GPU with fp8"
            )

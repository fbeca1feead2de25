"""QSGD and its kin: levels of the norm of a block of elements, drawn at random so that the mean is right."""

import math
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from simnet.strategies.base import Strategy, register
from simnet.strategies.compressing import (
    SCALE_BYTES,
    GatheredPayload,
    GatheringStrategy,
    bytes_of_bits,
    gathering_kernel_costs,
)
from simnet.workload.buckets import Bucket
from simnet.workload.kernel_cost import KernelCost

BLOCK_LENGTH_BYTES = 4


class Quantizing(GatheringStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Levels of the norm of a block, drawn at random; packed codes and an fp32 norm a block.

    Attributes:
        bits: bits of a code, its sign included.
        block_size: elements that share a norm.
        coding: "packed" codes of `bits` bits, or Elias codes, whose length depends on the values, so that a gather of
            the lengths comes before that of the payloads.
        coded_bits: measured bits of an element with coding "elias", which needs it.
    """

    bits: Annotated[int, Meta(ge=2, le=8)] = 4
    block_size: Annotated[int, Meta(ge=1, le=1_048_576)] = 8192
    coding: Literal["packed", "elias"] = "packed"
    coded_bits: Annotated[float, Meta(gt=0.0, le=64.0)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.coding == "elias") != (self.coded_bits is not None):
            if self.coded_bits is None:
                raise ValueError("coded_bits: missing; coding 'elias' needs what was measured, in bits per element")
            raise ValueError(f"coded_bits: {self.coded_bits}: has no effect with coding {self.coding!r}; drop it")

    @classmethod
    def presets(cls) -> dict[str, tuple[Strategy, ...]]:
        """Return the usual width."""
        return {f"{cls.title} {cls().bits} bit": (cls(),)}

    def payload(self, bucket: Bucket) -> GatheredPayload:
        """Return codes and norms, and with "elias" the lengths of blocks."""
        num_blocks = math.ceil(bucket.num_elements / self.block_size)
        if self.coded_bits is None:
            num_bytes = SCALE_BYTES * num_blocks + bytes_of_bits(bucket.num_elements * self.bits)
        else:
            coded_bytes = bytes_of_bits(bucket.num_elements * self.coded_bits)
            num_bytes = (SCALE_BYTES + BLOCK_LENGTH_BYTES) * num_blocks + coded_bytes
        return GatheredPayload(num_bytes, bucket.num_elements, self.coding == "elias")


@register
class QSGD(Quantizing, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="qsgd"):
    """QSGD with the L2 norm (Alistarh et al., NeurIPS 2017): unbiased, gathered by all."""

    title: ClassVar[str] = "QSGD"
    is_rate_independent: ClassVar[bool] = True
    kernels: ClassVar[tuple[KernelCost, ...]] = gathering_kernel_costs("qsgd", 8.5, 8.5)


@register
class QSGDInf(Quantizing, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="qsgd_inf"):
    """QSGD with the maximum norm."""

    title: ClassVar[str] = "QSGDinf"
    is_rate_independent: ClassVar[bool] = True
    kernels: ClassVar[tuple[KernelCost, ...]] = gathering_kernel_costs("qsgd_inf", 8.5, 8.5)


@register
class NUQSGD(Quantizing, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="nuqsgd"):
    """QSGD with levels 1, 1/2, 1/4 and so on of the norm (Ramezani-Kebrya et al., JMLR 2021).

    Attributes:
        bits: bits of a code, its sign included.
        with_zero: whether 0 is a level.
    """

    title: ClassVar[str] = "NUQSGD"
    is_rate_independent: ClassVar[bool] = True
    kernels: ClassVar[tuple[KernelCost, ...]] = gathering_kernel_costs("nuqsgd", 8.5, 8.5)

    bits: Annotated[int, Meta(ge=2, le=7)] = 4
    with_zero: bool = True

"""How the simulator sees it: what is sent, and what its kernels cost."""

from typing import ClassVar

from simnet.strategies import Bucket, GatheredPayload, GatheringStrategy, KernelCost, gathering_kernel_costs

BYTES_PER_ELEMENT = 2


class HalfPrecision(GatheringStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="half_precision"):
    """Gradients in fp16, gathered by all (Micikevicius et al., ICLR 2018)."""

    title: ClassVar[str] = "Half precision"
    # Encode reads g and the residual, and writes codes and the residual; decode reads a code, reads and writes the sum.
    kernels: ClassVar[tuple[KernelCost, ...]] = gathering_kernel_costs("half_precision", 14.0, 10.0)

    largest: float = 65504.0

    def payload(self, bucket: Bucket) -> GatheredPayload:
        """Return the codes."""
        return GatheredPayload(BYTES_PER_ELEMENT * bucket.num_elements, decoded_elements=bucket.num_elements)

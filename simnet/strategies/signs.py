"""Systems that send one bit or one trit an element: SignSGD, EF-SignSGD, 1-bit SGD, TernGrad."""

import math
from typing import ClassVar, Literal

from simnet.collectives import direct, ring
from simnet.network.topology import Topology
from simnet.program import Communicate
from simnet.strategies.base import Exchange, padded_sign_bytes, register
from simnet.strategies.compressing import (
    SCALE_BYTES,
    Compressing,
    Gathering,
    Payload,
    as_matrix,
    costs,
    decode,
    encode,
    merge,
    shapes_of,
    whole_bytes,
)
from simnet.workload.buckets import Bucket
from simnet.workload.kernels import KernelCost
from simnet.workload.model import Step

TRITS_PER_BYTE = 5


@register
class OneBitSGD(Gathering, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="one_bit_sgd"):
    """1-bit SGD (Seide et al., Interspeech 2014): signs and two means a column of each matrix, gathered by all."""

    title: ClassVar[str] = "1-bit SGD"
    ignores_rates: ClassVar[bool] = True
    kernels: ClassVar[tuple[KernelCost, ...]] = costs("one_bit_sgd", 20.125, 0.0, 8.125)

    def payload(self, bucket: Bucket) -> Payload:
        """Return signs and means."""
        columns = sum(as_matrix(shape)[1] for shape in shapes_of(self, bucket) if math.prod(shape))
        num_bytes = whole_bytes(bucket.num_elements) + 2 * SCALE_BYTES * columns
        return Payload(num_bytes, bucket.num_elements)


@register
class SignSGD(Compressing, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="sign_sgd"):
    """SignSGD with majority vote (Bernstein et al., ICML 2018): one bit an element each way, each rank counts some."""

    title: ClassVar[str] = "SignSGD"
    ignores_rates: ClassVar[bool] = True
    kernels: ClassVar[tuple[KernelCost, ...]] = costs("sign_sgd", 4.125, 0.25, 4.125)

    def exchange(self, bucket: Bucket, step: Step, topology: Topology) -> Exchange:  # noqa: ARG002
        """Swap signs among all ranks, count, and gather the winners; a byte with each chunk tells if it is finite."""
        world = topology.group("world")
        message_bytes = float(padded_sign_bytes(bucket.num_elements, world.size) + world.size)
        operations = (
            encode(self, bucket),
            Communicate(schedule=direct.all_to_all(world), message_bytes=message_bytes),
            merge(self, bucket),
            Communicate(schedule=ring.all_gather(world), message_bytes=message_bytes),
            decode(self, bucket.num_elements),
        )
        return Exchange(operations, message_bytes, "all_to_all")


@register
class EFSignSGD(Gathering, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ef_sign_sgd"):
    """EF-SignSGD (Karimireddy et al., ICML 2019): signs and the mean magnitude of what shares it, gathered by all.

    Attributes:
        scale_per: which elements share one fp32 scale.
    """

    title: ClassVar[str] = "EF-SignSGD"
    ignores_rates: ClassVar[bool] = True
    kernels: ClassVar[tuple[KernelCost, ...]] = costs("ef_sign_sgd", 20.125, 0.0, 8.125)

    scale_per: Literal["tensor", "bucket"] = "tensor"

    def payload(self, bucket: Bucket) -> Payload:
        """Return signs and scales."""
        num_scales = len(shapes_of(self, bucket)) if self.scale_per == "tensor" else 1
        num_bytes = whole_bytes(bucket.num_elements) + SCALE_BYTES * num_scales
        return Payload(num_bytes, bucket.num_elements)


@register
class TernGrad(Gathering, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="terngrad"):
    """TernGrad (Wen et al., NeurIPS 2017): five elements a byte and a scale a tensor, gathered by all."""

    title: ClassVar[str] = "TernGrad"
    ignores_rates: ClassVar[bool] = True
    kernels: ClassVar[tuple[KernelCost, ...]] = costs("terngrad", 8.2, 0.0, 8.2)

    def payload(self, bucket: Bucket) -> Payload:
        """Return trits and scales."""
        num_scales = len(shapes_of(self, bucket))
        num_bytes = math.ceil(bucket.num_elements / TRITS_PER_BYTE) + SCALE_BYTES * num_scales
        return Payload(num_bytes, bucket.num_elements)

"""What systems that compress gradients share: encode a bucket, exchange, decode, as `binsgdm.compressors` does.

Kernels are named after the system: NAME_encode before its first message, NAME_merge between messages, NAME_decode after
the last. Decoding of gathered payloads counts the elements of all of them. Bytes of kernels, per element: encode reads
g, and the residual where there is one, once for what elements share (norm, mean, threshold) and once for the codes, and
writes the residual; decode, per element of each payload, reads the code, and reads and writes the sum.
"""

import math
from typing import Annotated, NamedTuple

from msgspec import Meta

from simnet.collectives import ring
from simnet.errors import SimnetError
from simnet.network.topology import Topology
from simnet.program import Communicate, Kernel, Operation
from simnet.strategies.base import BITS_PER_BYTE, Exchange, Strategy, choose_all_reduce
from simnet.workload.buckets import Bucket
from simnet.workload.kernel_cost import KernelCost
from simnet.workload.training_step import Step

# The length of a payload, sent as one int64 where it depends on the values.
LENGTH_BYTES = 8
SCALE_BYTES = INDEX_BYTES = VALUE_BYTES = 4


MOMENTUM = KernelCost(name="momentum", bytes_per_element=12.0)  # read g, m; write m
Momentum = Annotated[float, Meta(ge=0.0, lt=1.0)]


class CompressingStrategy(Strategy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A system that compresses gradients."""

    @property
    def has_momentum(self) -> bool:
        """Whether each rank sends its own momentum in place of its gradients."""
        return False


class GatheredPayload(NamedTuple):
    """The message of one rank for a bucket, which all ranks gather.

    Attributes:
        num_bytes: its size.
        decoded_elements: elements of one payload that decoding touches.
        is_variable_length: whether the size depends on the values, so that a gather of the lengths comes first.
    """

    num_bytes: float
    decoded_elements: float
    is_variable_length: bool = False


def kernel_costs(
    name: str, encode: float, merge: float, decode: float, *, measured_only: tuple[str, ...] = ()
) -> tuple[KernelCost, ...]:
    """Return the kernels of a system from the bytes that each moves per element; 0: there is none.

    Args:
        name: of the system.
        encode: before the first message.
        merge: between messages.
        decode: after the last.
        measured_only: those whose bytes tell too little of their times.
    """
    parts = {"encode": encode, "merge": merge, "decode": decode}
    return tuple(
        KernelCost(name=f"{name}_{part}", bytes_per_element=moved, is_estimable=part not in measured_only)
        for part, moved in parts.items()
        if moved
    )


def gather_payloads(
    strategy: CompressingStrategy, bucket: Bucket, payload: GatheredPayload, topology: Topology
) -> Exchange:
    """Gather every rank's payload on every rank, which decodes all."""
    world = topology.group("world")
    lengths = Communicate(schedule=ring.all_gather(world), message_bytes=float(LENGTH_BYTES * world.size))
    operations: tuple[Operation, ...] = (
        *encode_kernels(strategy, bucket),
        *((lengths,) if payload.is_variable_length else ()),
        Communicate(schedule=ring.all_gather(world), message_bytes=payload.num_bytes * world.size),
        decode_kernel(strategy, payload.decoded_elements * world.size),
    )
    return Exchange(operations, payload.num_bytes, "all_gather")


def all_reduce_payload(
    strategy: CompressingStrategy, bucket: Bucket, message_bytes: float, algorithm: str | None, topology: Topology
) -> Exchange:
    """Add up payloads that stand for the same on all ranks."""
    collective, chosen = choose_all_reduce(algorithm, topology, message_bytes)
    operations: tuple[Operation, ...] = (
        *encode_kernels(strategy, bucket),
        collective,
        decode_kernel(strategy, bucket.num_elements),
    )
    return Exchange(operations, message_bytes, chosen)


class GatheringStrategy(CompressingStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A system whose payloads all ranks gather and decode."""

    def payload(self, bucket: Bucket) -> GatheredPayload:
        """Return the message of one rank for a bucket.

        Raises:
            SimnetError: the workload lacks what the size depends on.
        """
        raise NotImplementedError  # as `Strategy.exchange`

    def exchange(self, bucket: Bucket, step: Step, topology: Topology) -> Exchange:  # noqa: ARG002
        """Return the gather of all payloads."""
        return gather_payloads(self, bucket, self.payload(bucket), topology)


def encode_kernels(strategy: CompressingStrategy, bucket: Bucket) -> tuple[Kernel, ...]:
    """Return the kernels before the first message: the momentum where there is one, and the encoding."""
    names = ("momentum",) * strategy.has_momentum + (f"{strategy.kind}_encode",)
    return tuple(Kernel(name=name, part="encode", num_elements=bucket.num_elements) for name in names)


def merge_kernel(strategy: Strategy, bucket: Bucket) -> Kernel:
    """Return the kernel between messages."""
    return Kernel(name=f"{strategy.kind}_merge", part="encode", num_elements=bucket.num_elements)


def decode_kernel(strategy: Strategy, num_elements: float) -> Kernel:
    """Return the kernel after the last message."""
    return Kernel(name=f"{strategy.kind}_decode", part="decode", num_elements=num_elements)


def bytes_of_bits(bits: float) -> float:
    """Return the least whole bytes that hold `bits` bits."""
    return math.ceil(bits / BITS_PER_BYTE)


def tensor_shapes(strategy: Strategy, bucket: Bucket) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of a bucket's tensors.

    Raises:
        SimnetError: they are not known.
    """
    if bucket.shapes is None:
        raise SimnetError(
            f"strategy.kind: {strategy.kind!r}: needs the shapes of the tensors; give "
            "workload.gradients, or a shape with each of workload.tensors"
        )
    return bucket.shapes


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return rows and columns of a tensor as a matrix: its first dimension, and all others."""
    return shape[0] if shape else 1, math.prod(shape[1:])

"""What systems that compress gradients share: encode a bucket, exchange, decode, as `binsgdm.compressors` does.

Kernels are named after the system: NAME_encode before its first message, NAME_merge between messages, NAME_decode after
the last. Decoding of gathered payloads counts the elements of all of them. Bytes of kernels, per element: encode reads
g, and the residual where there is one, once for what elements share (norm, mean, threshold) and once for the codes, and
writes the residual; decode, per element of each payload, reads the code, and reads and writes the sum.
"""

import math
from typing import NamedTuple

from simnet.collectives import ring
from simnet.errors import SimnetError
from simnet.network.topology import Topology
from simnet.program import Communicate, Kernel, Operation
from simnet.strategies.base import BITS_PER_BYTE, Exchange, Strategy, all_reduced
from simnet.workload.buckets import Bucket
from simnet.workload.kernels import KernelCost
from simnet.workload.model import Step

LENGTH_BYTES = 8
"""Of a payload whose length depends on the values, as one int64."""
SCALE_BYTES = INDEX_BYTES = VALUE_BYTES = 4


class Compressing(Strategy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A system that compresses gradients."""


class Payload(NamedTuple):
    """What one rank gives for a bucket.

    Attributes:
        num_bytes: of it.
        decoded: elements of one payload that decoding touches.
        states_length: its length depends on the values, so a gather of the lengths comes first.
    """

    num_bytes: float
    decoded: float
    states_length: bool = False


def costs(
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


def gathered(strategy: Strategy, bucket: Bucket, payload: Payload, topology: Topology) -> Exchange:
    """Gather every rank's payload on every rank, which decodes all."""
    world = topology.group("world")
    lengths = Communicate(schedule=ring.all_gather(world), message_bytes=float(LENGTH_BYTES * world.size))
    operations: tuple[Operation, ...] = (
        encode(strategy, bucket),
        *((lengths,) if payload.states_length else ()),
        Communicate(schedule=ring.all_gather(world), message_bytes=payload.num_bytes * world.size),
        decode(strategy, payload.decoded * world.size),
    )
    return Exchange(operations, payload.num_bytes, "all_gather")


def added_up(strategy: Strategy, bucket: Bucket, message_bytes: float, algorithm: str, topology: Topology) -> Exchange:
    """Add up payloads that stand for the same on all ranks."""
    collective, chosen = all_reduced(algorithm, topology, message_bytes)
    operations = (encode(strategy, bucket), collective, decode(strategy, bucket.num_elements))
    return Exchange(operations, message_bytes, chosen)


class Gathering(Compressing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A system whose payloads all ranks gather and decode."""

    def payload(self, bucket: Bucket) -> Payload:
        """Return what one rank gives for a bucket.

        Raises:
            SimnetError: it depends on what is not known of the workload.
        """
        raise NotImplementedError  # as `Strategy.exchange`

    def exchange(self, bucket: Bucket, step: Step, topology: Topology) -> Exchange:  # noqa: ARG002
        """Return the gather of all payloads."""
        return gathered(self, bucket, self.payload(bucket), topology)


def encode(strategy: Strategy, bucket: Bucket) -> Kernel:
    """Return the kernel before the first message."""
    return Kernel(name=f"{strategy.kind}_encode", part="encode", num_elements=bucket.num_elements)


def merge(strategy: Strategy, bucket: Bucket) -> Kernel:
    """Return the kernel between messages."""
    return Kernel(name=f"{strategy.kind}_merge", part="encode", num_elements=bucket.num_elements)


def decode(strategy: Strategy, num_elements: float) -> Kernel:
    """Return the kernel after the last message."""
    return Kernel(name=f"{strategy.kind}_decode", part="decode", num_elements=num_elements)


def whole_bytes(bits: float) -> float:
    """Return the bytes that hold so many bits."""
    return math.ceil(bits / BITS_PER_BYTE)


def shapes_of(strategy: Strategy, bucket: Bucket) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of a bucket's tensors.

    Raises:
        SimnetError: they are not known.
    """
    if bucket.shapes is None:
        raise SimnetError(
            f"strategy.kind: {strategy.kind!r}: its payload depends on the shapes of the tensors: give "
            "workload.gradients, or a shape with each of workload.tensors"
        )
    return bucket.shapes


def as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return rows and columns of a tensor as a matrix: its first dimension, and all others."""
    return shape[0] if shape else 1, math.prod(shape[1:])

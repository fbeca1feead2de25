"""What compressing systems do with a bucket, as `binsgdm.compressors` does: encode, collectives, decode.

Kernels are named after the system: NAME_encode before its first message, NAME_merge between messages, NAME_decode after
the last. Decoding of gathered payloads counts the elements of all of them.
"""

import math
from collections.abc import Callable

from simnet.collectives import direct, ring
from simnet.collectives.schedule import Group
from simnet.network.topology import Topology
from simnet.strategies import (
    Algorithm,
    AnyCompressing,
    Atomo,
    EFSignSGD,
    GradZip,
    Marsit,
    OneBitSGD,
    PowerSGD,
    Quantizing,
    RandomK,
    SignSGD,
    Sparsifying,
    TernGrad,
)
from simnet.training import all_reduce
from simnet.training.stages import Collective, Exchange, Kernel, Stage
from simnet.workload import payload
from simnet.workload.buckets import Bucket

BITS_PER_BYTE = 8
LENGTH_BYTES = 8
"""Of a payload whose length depends on the values, as one int64."""
SCALE_BYTES = 4

_Gathering = Quantizing | EFSignSGD | OneBitSGD | TernGrad | Atomo | Sparsifying


def exchange(strategy: AnyCompressing, bucket: Bucket, topology: Topology) -> Exchange:
    """Return the stages of one bucket.

    Raises:
        SimnetError: the payload depends on shapes that are not known.
    """
    name = str(strategy.__struct_config__.tag)
    if isinstance(strategy, SignSGD):
        return _voted(name, bucket, topology)
    if isinstance(strategy, Marsit):
        return _round_rings(name, strategy, bucket, topology)
    if isinstance(strategy, PowerSGD):
        return _power_iteration(name, strategy, bucket, topology)
    if isinstance(strategy, GradZip | RandomK):
        return _reduced(name, bucket, _reduced_bytes(strategy, bucket), strategy.algorithm, topology)
    payload_bytes, is_stated = _payload(strategy, bucket)
    decoded = strategy.num_kept(bucket.num_elements) if isinstance(strategy, Sparsifying) else bucket.num_elements
    return _gathered(name, bucket, payload_bytes, topology, states_length=is_stated, decoded=decoded)


def _reduced_bytes(strategy: GradZip | RandomK, bucket: Bucket) -> float:
    """Return the bytes of what is added up; of GradZip the mean of its two turns."""
    if isinstance(strategy, RandomK):
        return payload.kept_bytes(strategy, bucket, with_indices=False)
    left, right, whole = payload.factor_bytes(strategy, bucket)
    return (left + right) / 2 + whole


def _payload(strategy: _Gathering, bucket: Bucket) -> tuple[float, bool]:
    """Return the bytes of a gathered payload, and whether its length depends on the values."""
    if isinstance(strategy, Sparsifying):
        return payload.kept_bytes(strategy, bucket, with_indices=True), False
    if isinstance(strategy, Quantizing):
        return payload.quantized_bytes(strategy, bucket), strategy.coding == "elias"
    if isinstance(strategy, EFSignSGD):
        return payload.ef_sign_bytes(strategy, bucket), False
    if isinstance(strategy, OneBitSGD):
        return payload.one_bit_sgd_bytes(strategy, bucket), False
    if isinstance(strategy, TernGrad):
        return payload.terngrad_bytes(strategy, bucket), False
    return payload.atomo_bytes(strategy, bucket), True


def _gathered(  # noqa: PLR0913
    name: str,
    bucket: Bucket,
    payload_bytes: float,
    topology: Topology,
    *,
    states_length: bool,
    decoded: float,
) -> Exchange:
    """Gather every rank's payload on every rank, which decodes all.

    Args:
        name: of the system.
        bucket: which.
        payload_bytes: of one rank.
        topology: the ranks.
        states_length: a gather of the lengths comes first.
        decoded: elements of one payload that decoding touches.
    """
    world = topology.group("world")
    lengths = Collective(schedule=ring.all_gather(world), message_bytes=float(LENGTH_BYTES * world.size))
    stages: tuple[Stage, ...] = (
        Kernel(name=f"{name}_encode", part="encode", num_elements=bucket.num_elements),
        *((lengths,) if states_length else ()),
        Collective(schedule=ring.all_gather(world), message_bytes=payload_bytes * world.size),
        Kernel(name=f"{name}_decode", part="decode", num_elements=decoded * world.size),
    )
    return Exchange(stages=stages, payload_bytes=payload_bytes, algorithm="all_gather")


def _reduced(name: str, bucket: Bucket, message_bytes: float, algorithm: Algorithm, topology: Topology) -> Exchange:
    """Add up payloads that stand for the same on all ranks."""
    schedule = all_reduce.choose(algorithm, topology, message_bytes)
    stages: tuple[Stage, ...] = (
        Kernel(name=f"{name}_encode", part="encode", num_elements=bucket.num_elements),
        Collective(schedule=schedule, message_bytes=message_bytes),
        Kernel(name=f"{name}_decode", part="decode", num_elements=bucket.num_elements),
    )
    return Exchange(stages=stages, payload_bytes=message_bytes, algorithm=schedule.name.split()[0])


def _power_iteration(name: str, strategy: PowerSGD, bucket: Bucket, topology: Topology) -> Exchange:
    """Average the left factors with what is not factored, then the right ones."""
    left, right, whole = payload.factor_bytes(strategy, bucket)
    sizes = [size for size in (left + whole, right) if size]
    schedules = [all_reduce.choose(strategy.algorithm, topology, size) for size in sizes]
    first, *second = (Collective(schedule=s, message_bytes=size) for s, size in zip(schedules, sizes, strict=True))
    stages: tuple[Stage, ...] = (
        Kernel(name=f"{name}_encode", part="encode", num_elements=bucket.num_elements),
        first,
        Kernel(name=f"{name}_merge", part="encode", num_elements=bucket.num_elements),
        *second,
        Kernel(name=f"{name}_decode", part="decode", num_elements=bucket.num_elements),
    )
    return Exchange(stages=stages, payload_bytes=sum(sizes), algorithm=schedules[0].name.split()[0])


def _voted(name: str, bucket: Bucket, topology: Topology) -> Exchange:
    """Swap signs among all ranks, count, and gather the winners; a byte with each chunk says whether it is finite."""
    world = topology.group("world")
    message_bytes = float(_padded_bytes(bucket.num_elements, world.size) + world.size)
    stages: tuple[Stage, ...] = (
        Kernel(name=f"{name}_encode", part="encode", num_elements=bucket.num_elements),
        Collective(schedule=direct.all_to_all(world), message_bytes=message_bytes),
        Kernel(name=f"{name}_merge", part="encode", num_elements=bucket.num_elements),
        Collective(schedule=ring.all_gather(world), message_bytes=message_bytes),
        Kernel(name=f"{name}_decode", part="decode", num_elements=bucket.num_elements),
    )
    return Exchange(stages=stages, payload_bytes=message_bytes, algorithm="all_to_all")


def _round_rings(name: str, strategy: Marsit, bucket: Bucket, topology: Topology) -> Exchange:
    """Merge signs hop by hop round one ring or two, and hand them back."""
    world = topology.group("world")
    message_bytes = float(_padded_bytes(bucket.num_elements, world.size))
    scales = Collective(schedule=ring.all_gather(world), message_bytes=float(SCALE_BYTES * world.size))
    kinds = ("intra_node", "inter_node") if strategy.torus else ("world",)
    groups = [topology.group(kind) for kind in kinds]  # type: ignore[arg-type]
    there = _stages(groups, message_bytes, ring.reduce_scatter)
    back = _stages(groups, message_bytes, ring.all_gather)[::-1]
    stages: tuple[Stage, ...] = (
        Kernel(name=f"{name}_encode", part="encode", num_elements=bucket.num_elements),
        scales,
        *there,
        Kernel(name=f"{name}_merge", part="encode", num_elements=bucket.num_elements),
        *back,
        Kernel(name=f"{name}_decode", part="decode", num_elements=bucket.num_elements),
    )
    return Exchange(stages=stages, payload_bytes=message_bytes, algorithm="torus" if strategy.torus else "ring")


def _stages(groups: list[Group], message_bytes: float, schedule: Callable[[Group], object]) -> list[Collective]:
    """Return one collective a ring, each on a chunk of the last one's."""
    found = []
    for group in groups:
        found.append(Collective(schedule=schedule(group), message_bytes=message_bytes))  # type: ignore[arg-type]
        message_bytes /= group.size
    return found


def _padded_bytes(num_elements: float, world_size: int) -> int:
    """Return the bytes of one bit an element, whole bytes for every rank."""
    return math.ceil(num_elements / (BITS_PER_BYTE * world_size)) * world_size

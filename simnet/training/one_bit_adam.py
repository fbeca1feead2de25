"""1-bit Adam's compression stage: error-compensated signs of the momentum, exchanged over all ranks after backward.

Source: Tang et al., "1-bit Adam: Communication efficient large-scale training with Adam's convergence speed",
ICML 2021, algorithm 1, with the exchange of DeepSpeed's compressed all-reduce: all-to-all of each rank's signs, mean at
the owner of a chunk, all-gather. One fp32 scale travels with every chunk. The hierarchical variant is
this project's own. Padding is not counted.
"""

from simnet.collectives import direct, ring
from simnet.collectives.schedule import Group
from simnet.network.topology import Topology
from simnet.strategies import OneBitAdam
from simnet.training.stages import Collective, Exchange, Kernel, Stage
from simnet.workload.buckets import Bucket

BITS_PER_BYTE = 8
SCALE_BYTES = VALUE_BYTES = 4


def exchange(strategy: OneBitAdam, bucket: Bucket, topology: Topology) -> Exchange:
    """Return the stages of the fused momentum, which has the `bucket`'s elements on every rank."""
    world, num_elements = topology.group("world"), bucket.num_elements
    if strategy.topology == "flat":
        averaging = (Kernel(name="momentum", part="encode", num_elements=num_elements), *_averaged(num_elements, world))
    else:
        averaging = _hierarchical(num_elements, topology)
    stages: tuple[Stage, ...] = (
        *((_agreement(bucket, world),) if strategy.agreement else ()),
        *averaging,
        Kernel(name="decompress", part="decode", num_elements=num_elements),
        Kernel(name="adam_update", part="optimizer", num_elements=num_elements),
    )
    payload_bytes = num_elements / BITS_PER_BYTE + SCALE_BYTES * world.size
    return Exchange(stages=stages, payload_bytes=payload_bytes, algorithm=strategy.topology)


def _agreement(bucket: Bucket, world: Group) -> Collective:
    """Gather a byte for the step and one for each tensor (one in all where they are not known)."""
    flags_bytes = 1.0 + len(bucket.shapes or ((),))
    return Collective(schedule=ring.all_gather(world), message_bytes=flags_bytes * world.size)


def _averaged(num_elements: float, group: Group) -> tuple[Stage, ...]:
    """Leave every rank of a group with the encoded average of a momentum that each has."""
    message_bytes = num_elements / BITS_PER_BYTE + SCALE_BYTES * group.size
    return (
        Kernel(name="compress", part="encode", num_elements=num_elements),
        Collective(schedule=direct.all_to_all(group), message_bytes=message_bytes),
        Kernel(name="server_mean", part="encode", num_elements=num_elements),
        Kernel(name="server_residual", part="encode", num_elements=num_elements / group.size),
        Collective(schedule=ring.all_gather(group), message_bytes=message_bytes),
    )


def _hierarchical(num_elements: float, topology: Topology) -> tuple[Stage, ...]:
    """Average in the node in fp32, each local rank a slice; average the slices between nodes; gather in the node."""
    in_node, between = topology.group("intra_node"), topology.group("inter_node")
    gathered_bytes = num_elements / BITS_PER_BYTE + SCALE_BYTES * topology.world_size
    return (
        Kernel(name="momentum", part="encode", num_elements=num_elements),
        Collective(schedule=direct.all_to_all(in_node), message_bytes=VALUE_BYTES * num_elements),
        Kernel(name="mean", part="encode", num_elements=num_elements),
        *_averaged(num_elements / in_node.size, between),
        Collective(schedule=ring.all_gather(in_node), message_bytes=gathered_bytes),
    )

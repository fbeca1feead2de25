"""1-bit Adam's compression stage: error-compensated signs of the momentum, exchanged over all ranks after backward.

Source: Tang et al., "1-bit Adam: Communication efficient large-scale training with Adam's convergence speed",
ICML 2021, algorithm 1, with the exchange of DeepSpeed's compressed all-reduce: all-to-all of each rank's signs, mean at
the owner of a chunk, all-gather. One fp32 scale travels with every chunk.
"""

from simnet.cluster.topology import Topology
from simnet.collectives import direct, ring
from simnet.training.stages import Collective, Exchange, Kernel

BITS_PER_BYTE = 8
SCALE_BYTES = 4


def exchange(num_elements: float, topology: Topology) -> Exchange:
    """Return the stages of the fused momentum of `num_elements` on every rank."""
    world = topology.group("world")
    message_bytes = num_elements / BITS_PER_BYTE + SCALE_BYTES * world.size
    stages = (
        Kernel(name="momentum", part="encode", num_elements=num_elements),
        Kernel(name="compress", part="encode", num_elements=num_elements),
        Collective(schedule=direct.all_to_all(world), message_bytes=message_bytes),
        Kernel(name="merge", part="encode", num_elements=num_elements),
        Kernel(name="server_residual", part="encode", num_elements=num_elements / world.size),
        Collective(schedule=ring.all_gather(world), message_bytes=message_bytes),
        Kernel(name="decompress", part="decode", num_elements=num_elements),
        Kernel(name="adam_update", part="optimizer", num_elements=num_elements),
    )
    return Exchange(stages=stages, payload_bytes=message_bytes, algorithm="flat")

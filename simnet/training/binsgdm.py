"""BinSGDM's exchange: average the bounded update u = m / b, rounded at random to one bit where it leaves the node.

    m = beta m + (1 - beta) g      b = beta b + (1 - beta) |g|      x -= lr * Q(mean of Q(mean of u in the node))

Source: "Birder: Communication-efficient 1-bit adaptive optimizer for practical distributed DNN training", NeurIPS 2023.
Differs: the paper states the intent of the hierarchical all-reduce; the four steps are this project's reading
(docs/model.md). Padding of a slice to whole bytes is not counted.
"""

from collections.abc import Sequence

from simnet.collectives import direct, ring
from simnet.network.topology import Topology
from simnet.strategies import BinSGDM
from simnet.training import all_reduce
from simnet.training.stages import Collective, Exchange, Kernel, Stage
from simnet.values import BYTES_PER_ELEMENT

BITS_PER_BYTE = 8


def exchange(strategy: BinSGDM, num_elements: float, topology: Topology) -> Exchange:
    """Return the stages of one bucket of `num_elements` on every rank, up to the signs that all agree on."""
    if strategy.topology == "flat":
        stages = _flat(num_elements, topology)
    else:
        reduce = _average_gradients if strategy.average == "gradients" else _reduce_in_node
        in_node = reduce(strategy.intra or "fp32", num_elements, topology)
        stages = (*in_node, *_between_nodes(num_elements, topology))
    return Exchange(stages=stages, payload_bytes=num_elements / BITS_PER_BYTE, algorithm=strategy.topology)


def settlement(strategy: BinSGDM, bucket_elements: Sequence[float], topology: Topology) -> tuple[Stage, ...]:
    """Return what follows the last bucket: all ranks agree whether the step counts, then parameters move.

    The message is a byte for the step and one for each bucket (binsgdm sends one for each tensor): its time is that of
    its rounds.
    """
    flags_bytes = 1.0 + len(bucket_elements)
    schedule = all_reduce.choose(strategy.agreement, topology, flags_bytes)
    apply = (Kernel(name="binsgdm_apply", part="decode", num_elements=number) for number in bucket_elements)
    return (Collective(schedule=schedule, message_bytes=flags_bytes), *apply)


def _flat(num_elements: float, topology: Topology) -> tuple[Stage, ...]:
    """Quantize, swap pieces among all ranks, average and quantize again, gather."""
    world = topology.group("world")
    signs_bytes = num_elements / BITS_PER_BYTE
    return (
        Kernel(name="binsgdm_update_quantize", part="encode", num_elements=num_elements),
        Collective(schedule=direct.all_to_all(world), message_bytes=signs_bytes),
        Kernel(name="merge", part="encode", num_elements=num_elements),
        Collective(schedule=ring.all_gather(world), message_bytes=signs_bytes),
    )


def _between_nodes(num_elements: float, topology: Topology) -> tuple[Stage, ...]:
    """Exchange one bit an element of a slice between nodes, then gather the slices in the node."""
    in_node, between = topology.group("intra_node"), topology.group("inter_node")
    slice_elements = num_elements / topology.ranks_per_node
    slice_bytes = slice_elements / BITS_PER_BYTE
    return (
        Collective(schedule=direct.all_to_all(between), message_bytes=slice_bytes),
        Kernel(name="merge", part="encode", num_elements=slice_elements),
        Collective(schedule=ring.all_gather(between), message_bytes=slice_bytes),
        Collective(schedule=ring.all_gather(in_node), message_bytes=num_elements / BITS_PER_BYTE),
    )


def _reduce_in_node(intra: str, num_elements: float, topology: Topology) -> tuple[Stage, ...]:
    """Leave each local rank with the quantized mean of its slice of u.

    The slices are swapped and added up in the order of ranks, not passed round a ring, so that the sum does not depend
    on the transport; as many bytes leave each rank.
    """
    in_node = topology.group("intra_node")
    if intra == "one_bit":
        return (
            Kernel(name="binsgdm_update_quantize", part="encode", num_elements=num_elements),
            Collective(schedule=direct.all_to_all(in_node), message_bytes=num_elements / BITS_PER_BYTE),
            Kernel(name="merge", part="encode", num_elements=num_elements),
        )
    message_bytes = num_elements * BYTES_PER_ELEMENT[intra]
    return (
        Kernel(name="binsgdm_update", part="encode", num_elements=num_elements),
        Collective(schedule=direct.all_to_all(in_node), message_bytes=message_bytes),
        Kernel(name="mean", part="encode", num_elements=num_elements),
        Kernel(name="quantize", part="encode", num_elements=num_elements / topology.ranks_per_node),
    )


def _average_gradients(intra: str, num_elements: float, topology: Topology) -> tuple[Stage, ...]:
    """Leave each local rank with the quantized update of its slice, from the mean gradient of the node."""
    slice_elements = num_elements / topology.ranks_per_node
    message_bytes = num_elements * BYTES_PER_ELEMENT[intra]
    return (
        Kernel(name="gather_gradients", part="encode", num_elements=num_elements),
        Collective(schedule=direct.all_to_all(topology.group("intra_node")), message_bytes=message_bytes),
        Kernel(name="mean", part="encode", num_elements=num_elements),
        Kernel(name="binsgdm_update_quantize", part="encode", num_elements=slice_elements),
    )

"""What a system of binsgdm sends in a step, and what simnet simulates of it, both as collective, group and bytes."""

from dataclasses import replace

import msgspec
import torch

from binsgdm.comm import AllGather, AllReduceSum, AllToAll, Message, RankContext, SendRecv, group_members
from binsgdm.compressors.base import GradientBucket, numel_of
from binsgdm.compressors.registry import make
from simnet import strategies
from simnet.cluster.hardware import Calibration, Cluster, Link
from simnet.cluster.schedule import Group, group_of
from simnet.cluster.topology import Topology
from simnet.cluster.topology import build as build_topology
from simnet.core.units import Bandwidth, Duration
from simnet.strategies.program import Communicate
from simnet.workload.buckets import Bucket
from simnet.workload.training_step import Step

SHAPES = ((64, 32), (32,), (10, 64, 3, 3), (7, 5), ())
NAMES = {AllGather: "all_gather", AllToAll: "all_to_all", AllReduceSum: "all_reduce", SendRecv: "send_recv"}
Messages = list[tuple[str, Group, float]]
STEP = Step(
    tensors=(), num_elements=1.0, bytes_per_element=4, forward_s=1.0, backward_s=1.0, optimizer_s=0.0, samples=1
)


def drive(protocol, context: RankContext, seen: list[Message]) -> torch.Tensor:
    """Run one rank's protocol as if all ranks sent what it sends."""
    answer = None
    while True:
        try:
            message = protocol.send(answer)
        except StopIteration as stop:
            return stop.value
        seen.append(message)
        size = len(group_members(message.group, context.rank, context.world_size, context.ranks_per_node))
        if isinstance(message, AllGather):
            answer = message.sent.expand(size, *message.sent.shape).clone()
        else:
            answer = message.sent * size if isinstance(message, AllReduceSum) else message.sent.clone()


def real_messages(name: str, options: dict, layout: tuple[int, int], steps: int = 1) -> Messages:
    context = RankContext(rank=0, world_size=layout[0] * layout[1], ranks_per_node=layout[1], seed=0, step=1)
    system = make(name, rank=0, world_size=context.world_size, ranks_per_node=layout[1], **options)
    values = torch.randn(numel_of(SHAPES), generator=torch.Generator().manual_seed(1))
    bucket = GradientBucket(values=values, parameters=tuple(range(len(SHAPES))), shapes=SHAPES)
    seen: list[Message] = []
    for step in range(1, steps + 1):
        drive(system.mean(bucket, replace(context, step=step)), context, seen)
    sizes = {"world": context.world_size, "intra_node": layout[1], "inter_node": layout[0]}
    return [
        (NAMES[type(message)], group_of(message.group, *layout), message.sent.numel() * message.sent.element_size())
        for message in seen
        if sizes[message.group] > 1
    ]


def simulated_messages(name: str, options: dict, layout: tuple[int, int]) -> Messages:
    kind = "all_reduce" if name == "dense" else name
    strategy = msgspec.convert(options, strategies.STRATEGIES.find(kind))
    topology = topology_of(layout)
    bucket = Bucket(index=0, num_elements=float(numel_of(SHAPES)), backward_fraction=1.0, shapes=SHAPES)
    found: Messages = []
    for operation in strategy.exchange(bucket, STEP, topology).operations:
        if isinstance(operation, Communicate) and operation.schedule.rounds:
            # A torus has rings in the node, too; a hierarchical topology swaps and gathers there.
            is_in_node = operation.schedule.group == topology.group("intra_node")
            is_hop = name == "marsit" and not (options.get("topology") == "hierarchical" and is_in_node)
            found += as_sent(operation, is_ring=is_hop)
    return found


def topology_of(layout: tuple[int, int]) -> Topology:
    link = Link(bytes_per_s=Bandwidth(1e9), alpha_s=Duration(1e-6))
    cluster = Cluster(num_nodes=layout[0], ranks_per_node=layout[1], intra_node=link, inter_node=link)
    return build_topology(cluster, Calibration())


def as_sent(sent: Communicate, *, is_ring: bool) -> Messages:
    """Return a collective as binsgdm counts it: what one rank gives, or its hops round a ring."""
    algorithm, collective, group = sent.schedule.algorithm, sent.schedule.collective, sent.schedule.group
    part = sent.message_bytes / group.size
    is_scale = collective == "all_gather" and part == 4  # gathered by the backend, not hop by hop
    if is_ring and not is_scale:
        assert algorithm == "ring"
        return [("send_recv", group, part)] * (group.size - 1)
    return [(collective, group, part if collective == "all_gather" else sent.message_bytes)]

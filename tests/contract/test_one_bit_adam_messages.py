"""The messages of 1-bit Adam's real steps are those that simnet simulates, in both stages and topologies."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from binsgdm.exchange import AllGather, AllReduceSum, AllToAll, Member, group_members
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from simnet import strategies
from simnet.collectives.schedule import Group, group_of
from simnet.hardware import Calibration, Cluster, Link
from simnet.network.topology import build as build_topology
from simnet.program import Communicate
from simnet.strategies.one_bit_adam import CHECKSUM_BYTES
from simnet.units import Bandwidth, Duration
from simnet.workload.buckets import Bucket
from simnet.workload.training_step import Step

LAYOUTS = [(2, 1), (2, 2), (3, 2), (4, 8)]
NAMES = {AllGather: "all_gather", AllToAll: "all_to_all", AllReduceSum: "all_reduce"}
Messages = list[tuple[str, Group, float]]
STEP = Step(
    tensors=(), num_elements=1.0, bytes_per_element=4, forward_s=1.0, backward_s=1.0, optimizer_s=0.0, samples=1
)


def shapes(world_size: int) -> tuple[tuple[int, ...], ...]:
    """Return shapes that need no padding."""
    return ((8 * world_size, 5), (8 * world_size,))


REMEDIES = {"variance_floor": 0.001, "scales_momenta": True}


def real_messages(topology: str, layout: tuple[int, int], num_steps: int = 3, **options: Any) -> Messages:
    """Return what one rank sends in its last step; the first is the dense stage."""
    world_size = layout[0] * layout[1]
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes(world_size)]
    optimizer = OneBitAdam(parameters, dense_steps=1, topology=topology, **options)
    optimizer.join(Member(rank=0, world_size=world_size, ranks_per_node=layout[1], run=None))
    seen: Messages = []
    for _ in range(num_steps):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        seen = drive(optimizer, layout)
    return seen


def drive(optimizer: OneBitAdam, layout: tuple[int, int]) -> Messages:
    """Take a step as if all ranks sent what this one sends."""
    protocol, answer, seen = optimizer.step_protocol(), None, []
    sizes = {"world": layout[0] * layout[1], "intra_node": layout[1], "inter_node": layout[0]}
    while True:
        try:
            message = protocol.send(answer)
        except StopIteration:
            return seen
        size = len(group_members(message.group, 0, sizes["world"], layout[1]))
        name = NAMES[type(message)]
        if sizes[message.group] > 1:
            group = group_of(message.group, *layout)
            seen.append((name, group, message.sent.numel() * message.sent.element_size()))
        answer = message.sent * size if name == "all_reduce" else message.sent
        if name == "all_gather":
            answer = message.sent.expand(size, *message.sent.shape).clone()


def simulated_messages(strategy: strategies.AnyStrategy, layout: tuple[int, int]) -> Messages:
    link = Link(bytes_per_s=Bandwidth(1e9), alpha_s=Duration(1e-6))
    cluster = Cluster(num_nodes=layout[0], ranks_per_node=layout[1], intra_node=link, inter_node=link)
    world_size = layout[0] * layout[1]
    numel = float(sum(torch.Size(shape).numel() for shape in shapes(world_size)))
    bucket = Bucket(index=0, num_elements=numel, backward_fraction=1.0, shapes=shapes(world_size))
    found = strategy.exchange(bucket, STEP, build_topology(cluster, Calibration()))
    messages = []
    for operation in found.operations:
        if isinstance(operation, Communicate) and operation.schedule.rounds:
            name, group = operation.schedule.collective, operation.schedule.group
            given = operation.message_bytes / group.size if name == "all_gather" else operation.message_bytes
            messages.append((name, group, given))
    return messages


@pytest.mark.parametrize("options", [{}, REMEDIES])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("topology", ["flat", "hierarchical"])
def test_a_compressed_step_sends_what_is_simulated(topology, layout, options):
    real = real_messages(topology, layout, **options)
    assert real == simulated_messages(strategies.OneBitAdam(topology=topology), layout)
    assert len(real) >= 3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_dense_step_sends_flags_and_one_all_reduce(layout):
    flags, *real = real_messages("flat", layout, num_steps=1)
    assert flags == ("all_gather", group_of("world", *layout), 3 + CHECKSUM_BYTES)
    assert real == simulated_messages(strategies.OneBitAdam().dense, layout)


def test_what_is_frozen_is_agreed_on_once_by_16_bytes_a_tensor():
    """`simnet` leaves this message out: it is sent in the last dense step alone."""
    plain, agreed = real_messages("flat", (2, 2), num_steps=1), real_messages("flat", (2, 2), num_steps=1, **REMEDIES)
    assert agreed == [*plain, ("all_gather", group_of("world", 2, 2), 2 * len(shapes(4)) * 8)]

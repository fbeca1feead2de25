"""The messages of every compressing system are those that simnet simulates: collective, group, bytes, order."""

import pytest

torch = pytest.importorskip("torch")

from dataclasses import replace

import msgspec

from binsgdm.exchange import AllGather, AllReduceSum, AllToAll, Message, RankContext, SendRecv, group_members
from binsgdm.systems.base import GradientBucket, numel_of
from binsgdm.systems.registry import SYSTEMS, make
from simnet import strategies
from simnet.collectives.schedule import Group, group_of
from simnet.hardware import Calibration, Cluster, Link
from simnet.network.topology import Topology
from simnet.network.topology import build as build_topology
from simnet.program import Communicate
from simnet.units import Bandwidth, Duration
from simnet.workload.buckets import Bucket
from simnet.workload.training_step import Step

LAYOUTS = [(2, 1), (2, 2), (3, 2), (4, 8)]
SHAPES = ((64, 32), (32,), (10, 64, 3, 3), (7, 5), ())
NAMES = {AllGather: "all_gather", AllToAll: "all_to_all", AllReduceSum: "all_reduce", SendRecv: "send_recv"}
OPTIONS = [
    ("dense", {}),
    ("one_bit_sgd", {}),
    ("sign_sgd", {}),
    ("ef_sign_sgd", {}),
    ("ef_sign_sgd", {"scale_per": "bucket"}),
    ("terngrad", {}),
    ("qsgd", {}),
    ("qsgd", {"bits": 2, "block_size": 100}),
    ("qsgd_inf", {"bits": 8}),
    ("nuqsgd", {"bits": 3, "with_zero": False}),
    ("marsit", {}),
    ("marsit", {"torus": True, "scale": 0.1}),
    ("power_sgd", {}),
    ("power_sgd", {"matrix_rank": 1}),
    ("power_sgd", {"matrix_rank": 64}),
    ("top_k", {"ratio": 0.01}),
    ("ms_top_k", {"k": 100}),
    ("random_k", {"ratio": 0.1}),
    ("random_k", {"k": 50, "unbiased": True}),
]
Messages = list[tuple[str, Group, float]]
STEP = Step(
    tensors=(), num_elements=1.0, bytes_per_element=4, forward_s=1.0, backward_s=1.0, optimizer_s=0.0, samples=1
)


def test_every_system_is_compared():
    """GradZip's turns differ and ATOMO's payload is drawn: their means are compared below."""
    assert {name for name, _ in OPTIONS} | {"grad_zip", "atomo"} == set(SYSTEMS)


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
    system = make(name, rank=0, world_size=context.world_size, **options)
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
            found += as_sent(operation, is_ring=name == "marsit")
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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_a_system_sends_what_is_simulated(name, options, layout):
    real = real_messages(name, options, layout)
    assert real == simulated_messages(name, options, layout)
    assert real


def test_elias_sends_lengths_and_then_as_many_bits_as_were_measured():
    real = real_messages("qsgd", {"coding": "elias", "bits": 2}, (2, 2))
    norm_and_length_bytes = 8
    coded_bits = (real[1][2] - norm_and_length_bytes) * 8 / numel_of(SHAPES)
    options = {"coding": "elias", "bits": 2, "coded_bits": coded_bits}
    assert simulated_messages("qsgd", options, (2, 2)) == [real[0], (*real[1][:2], pytest.approx(real[1][2], abs=1))]


def test_grad_zip_sends_on_average_what_is_simulated():
    real = real_messages("grad_zip", {}, (2, 2), steps=2)
    (simulated,) = simulated_messages("grad_zip", {}, (2, 2))
    assert [message[:2] for message in real] == [simulated[:2]] * 2
    assert (real[0][2] + real[1][2]) / 2 == simulated[2]


def test_atomo_sends_on_average_what_is_simulated():
    """200 draws of about 3 triplets for each of two matrices: the mean is known within a few percent."""
    real = real_messages("atomo", {}, (2, 2), steps=200)
    lengths, simulated = simulated_messages("atomo", {}, (2, 2))
    assert real[0::2] == [lengths] * 200
    mean = sum(message[2] for message in real[1::2]) / 200
    assert mean == pytest.approx(simulated[2], rel=0.05)

"""The messages of binsgdm's real exchange are those that simnet simulates: collective, group, bytes, order."""

import pytest

torch = pytest.importorskip("torch")

from binsgdm import exchange
from binsgdm.exchange import AllGather, RankContext
from binsgdm.flat_buckets import FlatBucket
from binsgdm.kernels import select
from simnet.collectives.schedule import Group, group_of
from simnet.hardware import Calibration, Cluster, Link
from simnet.network.topology import Topology
from simnet.network.topology import build as build_topology
from simnet.program import Communicate
from simnet.strategies import BinSGDM
from simnet.units import Bandwidth, Duration
from simnet.workload import buckets as simulated
from simnet.workload.training_step import Step

Messages = list[tuple[str, Group, float]]
STEP = Step(
    tensors=(), num_elements=1.0, bytes_per_element=4, forward_s=1.0, backward_s=1.0, optimizer_s=0.0, samples=1
)
SHAPES = [(2, 1), (2, 2), (3, 2), (4, 8), (8, 1)]
SCHEMES = {
    "hierarchical": BinSGDM(),
    "hierarchical_bf16": BinSGDM(intra_node_dtype="bf16"),
    "hierarchical_one_bit": BinSGDM(intra_node_dtype="one_bit"),
    "hierarchical_gradients": BinSGDM(average="gradients"),
    "hierarchical_gradients_bf16": BinSGDM(average="gradients", intra_node_dtype="bf16"),
    "flat": BinSGDM(topology="flat"),
}


def topology(num_nodes: int, ranks_per_node: int) -> Topology:
    link = Link(bytes_per_s=Bandwidth(1e9), alpha_s=Duration(1e-6))
    cluster = Cluster(num_nodes=num_nodes, ranks_per_node=ranks_per_node, intra_node=link, inter_node=link)
    return build_topology(cluster, Calibration())


def real_messages(scheme: str, num_nodes: int, ranks_per_node: int, numel: int) -> Messages:
    """Return (collective, group, bytes that a rank gives) of one rank's protocol; groups of one rank left out."""
    context = RankContext(rank=0, world_size=num_nodes * ranks_per_node, ranks_per_node=ranks_per_node, seed=0, step=1)
    bucket = FlatBucket(index=0, start=0, numel=numel, segments=())
    kernels = select("reference")
    u, signs = torch.zeros(numel), torch.zeros(numel // 8, dtype=torch.uint8)

    def sign(mean: torch.Tensor) -> torch.Tensor:
        return torch.zeros(mean.numel() // 8, dtype=torch.uint8)

    protocol = {
        "hierarchical": lambda: exchange.hierarchical(u, bucket, context, kernels),
        "hierarchical_bf16": lambda: exchange.hierarchical(u, bucket, context, kernels, bf16=True),
        "hierarchical_one_bit": lambda: exchange.hierarchical_one_bit(signs, bucket, context, kernels),
        "hierarchical_gradients": lambda: exchange.hierarchical(u, bucket, context, kernels, quantize=sign),
        "hierarchical_gradients_bf16": lambda: exchange.hierarchical(
            u, bucket, context, kernels, quantize=sign, bf16=True
        ),
        "flat": lambda: exchange.flat(signs, bucket, context, kernels),
    }[scheme]()
    sizes = {"world": context.world_size, "intra_node": ranks_per_node, "inter_node": num_nodes}
    found, answer = [], None
    while True:
        try:
            message = protocol.send(answer)
        except StopIteration:
            return found
        gathers = isinstance(message, AllGather)
        if sizes[message.group] > 1:
            name = "all_gather" if gathers else "all_to_all"
            group = group_of(message.group, num_nodes, ranks_per_node)
            found.append((name, group, message.sent.numel() * message.sent.element_size()))
        answer = message.sent.expand(sizes[message.group], -1).clone() if gathers else message.sent


def simulated_messages(strategy: BinSGDM, num_nodes: int, ranks_per_node: int, numel: int) -> Messages:
    found = []
    whole = simulated.Bucket(index=0, num_elements=float(numel), backward_fraction=1.0)
    for operation in strategy.exchange(whole, STEP, topology(num_nodes, ranks_per_node)).operations:
        if isinstance(operation, Communicate) and operation.schedule.rounds:
            name, group = operation.schedule.collective, operation.schedule.group
            given = operation.message_bytes / group.size if name == "all_gather" else operation.message_bytes
            found.append((name, group, given))
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("num_nodes", "ranks_per_node"), SHAPES)
def test_the_real_exchange_sends_what_is_simulated(scheme, num_nodes, ranks_per_node):
    numel = 8 * num_nodes * ranks_per_node * 10
    real = real_messages(scheme, num_nodes, ranks_per_node, numel)
    assert real == simulated_messages(SCHEMES[scheme], num_nodes, ranks_per_node, numel)
    assert len(real) >= 2


@pytest.mark.parametrize(("num_nodes", "ranks_per_node"), [(2, 2), (4, 8)])
def test_nic_bytes_out_of_a_node_are_those_of_the_paper(num_nodes, ranks_per_node):
    """2(N-1)/N d/8: of what each rank gives between nodes, all but its own part leaves the node."""
    numel = 8 * num_nodes * ranks_per_node * 10
    out = 0.0
    for name, group, given in real_messages("hierarchical", num_nodes, ranks_per_node, numel):
        if group == group_of("inter_node", num_nodes, ranks_per_node):
            sent = given * (num_nodes - 1) / num_nodes if name == "all_to_all" else given * (num_nodes - 1)
            out += sent * ranks_per_node
    assert out == pytest.approx(2 * (num_nodes - 1) / num_nodes * numel / 8)

"""A real step of BinSGDM runs the kernels and sends the messages that are simulated, in every scheme and rounding."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm import AllGather, AllReduceMax, AllToAll, Member
from binsgdm.kernels import select
from binsgdm.optimizers import worker
from binsgdm.optimizers.binsgdm import BinSGDM as RealBinSGDM
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.settings import SCHEMES, Rounding, Scheme
from simnet.calibration.kernels import SIMULATED_NAMES
from simnet.cluster.hardware import Calibration
from simnet.cluster.schedule import group_of
from simnet.cluster.topology import build
from simnet.strategies import BinSGDM
from simnet.strategies.binsgdm import DEFAULT_ROUNDING, ROUNDINGS
from simnet.strategies.program import Communicate, Kernel
from simnet.workload.buckets import Bucket
from tests.helpers.messages import STEP
from tests.helpers.topologies import cluster

LAYOUTS = [(1, 2), (2, 1), (2, 2), (3, 2), (4, 8)]
NAMES = {AllGather: "all_gather", AllToAll: "all_to_all"}
EACH = 64  # of each rank, so that nothing is padded
Trace = list[tuple[Any, ...]]


class RecordedKernels:
    """The reference, with a note of each kernel: its simulated name, elements of all its vectors, and their number."""

    name = "reference"

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(first: Any, *others: Any, **given: Any) -> Any:
            if not isinstance(first, torch.Tensor):
                size = 1, sum(one.numel() for one in first)
            elif "numel" in given:
                size = first.shape[0], first.shape[0] * given["numel"]
            else:
                size = first.shape[0] if name == "mean_" else 1, first.numel()
            self._trace.append((SIMULATED_NAMES.get(name, name), size[1], size[0]))
            return getattr(select("reference"), name)(first, *others, **given)

        return call


def real(scheme: Scheme, rounding: Rounding, layout: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> Trace:
    """Return what rank 0 does in its second step, as if all ranks sent what it sends."""
    num_nodes, ranks_per_node = layout
    world_size = num_nodes * ranks_per_node
    parameters = [torch.nn.Parameter(torch.zeros(EACH * world_size, columns)) for columns in (5, 1)]
    optimizer = RealBinSGDM(parameters, rounding=rounding, kernels="reference")
    session = Session(Member(rank=0, world_size=world_size, ranks_per_node=ranks_per_node, run=None), scheme)
    optimizer.join(session)
    trace: Trace = []
    session.worker._kernels = RecordedKernels(trace)
    copy_each = worker.copy_each

    def gathered(targets: Any, sources: Any) -> None:
        trace.append(("gather_gradients", sum(source.numel() for source in sources), 1))
        copy_each(targets, sources)

    monkeypatch.setattr(worker, "copy_each", gathered)
    for _ in range(2):
        trace.clear()
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        _drive(optimizer, layout, trace)
    return trace


def _drive(optimizer: RealBinSGDM, layout: tuple[int, int], trace: Trace) -> None:
    protocol, answer = optimizer.step_protocol(), None
    sizes = {"world": layout[0] * layout[1], "inter_node": layout[0], "intra_node": layout[1]}
    while True:
        try:
            message = protocol.send(answer)
        except StopIteration:
            return
        answer = message.sent
        if isinstance(message, AllReduceMax):
            continue
        if sizes[message.group] > 1:
            sent_bytes = message.sent.numel() * message.sent.element_size()
            trace.append((NAMES[type(message)], group_of(message.group, *layout), sent_bytes))
        if isinstance(message, AllGather):
            answer = message.sent.expand(sizes[message.group], *message.sent.shape).clone()


def simulated(strategy: BinSGDM, layout: tuple[int, int]) -> Trace:
    """Return kernels and messages in order; what is merged of one rank is only copied, and no kernel of its own."""
    bucket = Bucket(index=0, num_elements=6.0 * EACH * layout[0] * layout[1], backward_fraction=1.0)
    topology = build(cluster(*layout), Calibration())
    _check, *applied = strategy.epilogue((bucket,), topology)
    found: Trace = []
    for operation in (*strategy.exchange(bucket, STEP, topology).operations, *applied):
        if isinstance(operation, Communicate) and operation.schedule.rounds:
            name, group = operation.schedule.collective, operation.schedule.group
            given = operation.message_bytes / (group.size if name == "all_gather" else 1)
            found.append((name, group, given))
        if isinstance(operation, Kernel) and (operation.name, operation.num_vectors) != ("merge", 1):
            found.append((operation.name, operation.num_elements, operation.num_vectors))
    return found


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_a_real_step_does_what_is_simulated(scheme, rounding, layout, monkeypatch):
    in_node = {} if scheme.topology == "flat" else {"intra_node_dtype": scheme.intra_node_dtype}
    strategy = BinSGDM(topology=scheme.topology, average=scheme.average, rounding=rounding, **in_node)
    wanted = simulated(strategy, layout)
    assert real(scheme, rounding, layout, monkeypatch) == wanted
    other = next(one for one in ROUNDINGS if one != rounding)
    assert simulated(replace(strategy, rounding=other), layout) != wanted


def test_both_sides_round_alike_by_default():
    optimizer = RealBinSGDM([torch.nn.Parameter(torch.zeros(8))])
    assert optimizer.param_groups[0]["rounding"] == DEFAULT_ROUNDING

"""A step that is recorded on two numbers of nodes and resized to a third is the step that is recorded there."""

import json
from collections.abc import Callable

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import binsgdm
from simnet.strategies import step_file
from simnet.strategies.step_file import RecordedLayout
from simnet.strategies.step_layouts import at_layout
from tests.helpers.recorded_steps import model, recorded, train

PER_NODE = 4


def sgd(module: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1)


def data_parallel() -> None:
    module = DistributedDataParallel(model())
    train(module, sgd(module))


def power_sgd() -> None:
    module = DistributedDataParallel(model())
    module.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    train(module, sgd(module))


def sharded(shape: tuple[int, ...]) -> None:
    names = ("replicate", "shard")[-len(shape) :]
    module, mesh = model(), init_device_mesh("cpu", shape, mesh_dim_names=names)
    for layer in module:
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    train(module, sgd(module))


def fully_sharded() -> None:
    sharded((dist.get_world_size(),))


def hybrid_sharded() -> None:
    sharded((dist.get_world_size() // PER_NODE, PER_NODE))


def one_bit() -> None:
    module = DistributedDataParallel(model())
    optimizer = binsgdm.BinSGDM(module.parameters(), lr=1e-3)
    binsgdm.attach(optimizer, module)
    train(module, optimizer)


def gathered() -> None:
    """Each rank adds a payload of its own, as Top-k does."""
    module, size = model(), dist.get_world_size()
    train(module, sgd(module), after_step=lambda _: dist.all_gather_single(torch.zeros(size * 7), torch.zeros(7)))


SCRIPTS = [data_parallel, power_sgd, fully_sharded, hybrid_sharded, one_bit, gathered]


def layouts(script: Callable[[], object], *nodes: int) -> tuple[RecordedLayout, ...]:
    source = {"how": "record", "compute": "counted"}
    recordings = [recorded(script, number, PER_NODE) for number in nodes]
    data = {"format": "simnet-step", "version": 1, "source": source, "recordings": recordings}
    return step_file.decode(json.dumps(data).encode(), "step.json").recordings


def sent(layout: RecordedLayout) -> list[tuple[str, int, int, float]]:
    groups = layout.groups
    return [
        (operation.kind, groups[operation.group].size, groups[operation.group].stride, operation.message_bytes)
        for operation in layout.operations
        if operation.kind != "compute"
    ]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_groups_and_messages_are_those_of_a_recording_there(script: Callable[[], object]) -> None:
    *two, wanted = layouts(script, 2, 4, 8)
    source = step_file.StepSource(how="record")
    step = step_file.StepFile(format="simnet-step", version=1, source=source, recordings=tuple(two))
    found = at_layout(step, 8, PER_NODE, "step.json")
    assert [message[:3] for message in sent(found)] == [one[:3] for one in sent(wanted)]
    # BinSGDM rounds up to 32 values a rank; the resized step has the least padding of its recordings.
    padding_bytes = 4 * 32 * wanted.world_size if script is one_bit else 0
    for mine, theirs in zip(sent(found), sent(wanted), strict=True):
        assert mine[3] == pytest.approx(theirs[3], rel=1e-9, abs=padding_bytes)
    assert sum(one[3] for one in sent(found)) > 0

"""Exchanges between copies of a sharded model: what one rank does alone."""

from functools import partial
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from binsgdm import compress_replicas
from binsgdm.comm.transport import Transport
from binsgdm.errors import BinsgdmError
from binsgdm.kernels import streams


@pytest.fixture
def mesh(alone: None) -> Any:
    return init_device_mesh("cpu", (1, 1), mesh_dim_names=("nodes", "ranks"))


def sharded(mesh: Any) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 5)
    fully_shard(model, mesh=mesh["ranks"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, compress_replicas(optimizer, mesh, "qsgd")


def backward(model: Any, step: int) -> None:
    model.zero_grad()
    model(torch.randn(4, 6, generator=torch.Generator().manual_seed(step))).square().mean().backward()


def whole(model: Any) -> Any:
    return torch.cat([parameter.full_tensor().detach().reshape(-1) for parameter in model.parameters()])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method")  # of torch's own modules, which its compiler imports
def test_a_compiled_step_draws_anew_in_each_step(mesh: Any) -> None:
    plain, compiled = sharded(mesh), sharded(mesh)

    @partial(torch.compile, backend="eager")
    def train_step() -> None:
        compiled[1].step()

    steps = (plain[1].step, train_step)
    for number in range(4):
        for (model, _, _), step in zip((plain, compiled), steps, strict=True):
            backward(model, number)
            step()
    assert compiled[2].step == plain[2].step == 5
    assert torch.equal(whole(compiled[0]), whole(plain[0]))


def test_a_step_in_a_cuda_graph_is_refused(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer, exchange = sharded(mesh)
    backward(model, 0)
    before, asked = whole(model), []

    def captured(where: str, device: torch.device, reason: str) -> None:
        asked.append(device)
        raise BinsgdmError(f"{where}: captured: {reason}")

    monkeypatch.setattr(streams, "check_not_captured", captured)
    with pytest.raises(BinsgdmError, match=r"^compress_replicas: captured: each step draws anew"):
        optimizer.step()
    assert (asked, exchange.step) == ([torch.device("cpu")], 1)
    assert torch.equal(whole(model), before)


def test_the_host_waits_for_what_was_exchanged_before_the_optimizer_steps(
    mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer, exchange = sharded(mesh)
    waits: list[tuple[str, int]] = []
    monkeypatch.setattr(Transport, "wait", lambda _, what: waits.append((what, exchange.step)))
    backward(model, 0)
    optimizer.step()
    assert waits == [("the exchange of gradients", 1)]

"""Steps of local SGD and DiLoCo under a compiler, in a CUDA graph and under a GradScaler."""

from functools import partial
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm import DiLoCo, LocalSGD
from binsgdm.errors import BinsgdmError
from tests.helpers.pretend_device import pretended_device

MAKE: dict[str, Any] = {
    "LocalSGD": partial(LocalSGD, inner_steps=2),
    "DiLoCo": partial(DiLoCo, inner_steps=2),
    "overlapped": partial(DiLoCo, inner_steps=3, overlap_steps=1),
}
STEPS = 7


def optimizer_of(name: str, device: str = "cpu") -> Any:
    value = torch.nn.Parameter(torch.linspace(-1, 1, 40).to(device))
    return MAKE[name](torch.optim.SGD([value], lr=0.1))


def give_gradient(optimizer: Any, step: int) -> None:
    (value,) = optimizer.parameters
    value.grad = torch.randn(40, generator=torch.Generator().manual_seed(step)).to(value.device)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", MAKE)
def test_a_compiled_step_does_what_the_step_does(name: str) -> None:
    plain, compiled = optimizer_of(name), optimizer_of(name)

    @partial(torch.compile, backend="eager")
    def train_step() -> None:
        compiled.step()

    step_of = {plain: plain.step, compiled: train_step}
    for number in range(STEPS):
        for optimizer, step in step_of.items():
            give_gradient(optimizer, number)
            step()
    assert compiled.num_steps == plain.num_steps == STEPS
    assert torch.equal(compiled.parameters[0], plain.parameters[0])


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", ["LocalSGD", "DiLoCo"])
def test_a_step_in_a_cuda_graph_is_refused_and_counts_for_nothing(name: str) -> None:
    with pretended_device() as counts:
        optimizer = optimizer_of(name, "cuda:0")
        give_gradient(optimizer, 0)
        before = optimizer.parameters[0].detach().clone()
        counts.is_capturing = True
        with pytest.raises(
            BinsgdmError, match=rf"^{name}: step\(\) while a CUDA graph is captured: .*; capture forward"
        ):
            optimizer.step()
        assert optimizer.num_steps == 0
        assert torch.equal(optimizer.parameters[0].values, before.values)
        counts.is_capturing = False
        optimizer.step()
        assert optimizer.num_steps == 1


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("infinity", [0.0, 1.0])
def test_what_a_grad_scaler_found_is_read_at_once(infinity: float) -> None:
    with pretended_device() as counts:
        optimizer = optimizer_of("LocalSGD", "cuda:0")
        give_gradient(optimizer, 0)
        before, gradient = (one.values.clone() for one in (optimizer.parameters[0].data, optimizer.parameters[0].grad))
        optimizer.found_inf = torch.tensor(infinity, device="cuda:0")
        optimizer.grad_scale = torch.tensor(1024.0, device="cuda:0")
        counts.reset()
        optimizer.step()
        assert counts.reads.total() == 1
        wanted = before if infinity else before - 0.1 * gradient / 1024
        assert torch.allclose(optimizer.parameters[0].data.values, wanted)

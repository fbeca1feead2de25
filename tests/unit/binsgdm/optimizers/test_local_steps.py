"""Local SGD and DiLoCo: fragments and outer steps; under a compiler, in a CUDA graph and under a GradScaler."""

from functools import partial
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm import DiLoCo, LocalSGD
from binsgdm.comm import Member
from binsgdm.errors import BinsgdmError
from binsgdm.optimizers.outer_steps import Fragment, OuterSettings, OuterSteps, cut, write_into
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


def test_fragments_are_of_about_equal_size():
    assert cut([3, 3, 3, 3, 3, 3], 3) == [range(2), range(2, 4), range(4, 6)]


@pytest.mark.parametrize("nesterov", [True, False])
def test_the_outer_step_is_that_of_torchs_sgd_to_the_bit(nesterov):
    generator = torch.Generator().manual_seed(0)
    parameter = torch.randn(7, generator=generator)
    settings = OuterSettings(nesterov=nesterov)
    fragment = Fragment(0, [parameter.clone()], 0, 1)
    sgd = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=nesterov)
    for _ in range(4):
        mean = torch.randn(7, generator=generator)
        parameter.grad = mean.clone()
        sgd.step()
        fragment.outer, fragment.momentum = fragment.stepped(mean, settings)
    torch.testing.assert_close(fragment.outer, parameter, rtol=0, atol=0)


def test_a_worker_of_bf16_that_has_not_moved_has_no_pseudo_gradient():
    parameter = torch.zeros(5, dtype=torch.bfloat16)
    fragment = Fragment(0, [parameter], 0, 1)
    fragment.outer = torch.linspace(0.1, 0.7, 5)
    write_into([parameter], fragment.outer)
    assert not torch.equal(parameter.float(), fragment.outer)
    assert not fragment.pseudo_gradient().values.any()


def test_slices_of_a_worker_are_its_parameters_and_zeros():
    parameters = [torch.arange(1.0, 4.0), torch.arange(4.0, 8.0)]
    slices = [Fragment(0, parameters, position, 4).outer for position in range(4)]
    assert torch.cat(slices).tolist() == [1, 2, 3, 4, 5, 6, 7, 0]


def test_a_share_of_the_workers_own_parameters_stays():
    parameters = [torch.tensor([1.0, 2.0])]
    write_into(parameters, torch.tensor([5.0, 10.0]), 0.25)
    assert parameters[0].tolist() == [4.0, 8.0]


@pytest.mark.parametrize("outer", [torch.zeros(2), torch.zeros(3, dtype=torch.float64), None], ids=str)
def test_a_state_of_another_form_is_refused(outer):
    steps = OuterSteps([torch.zeros(3)], OuterSettings(), Member())
    state = steps.state_dict()
    state["fragments"][0]["outer"] = outer
    with pytest.raises(BinsgdmError, match="outer of the state"):
        steps.load_state_dict(state)

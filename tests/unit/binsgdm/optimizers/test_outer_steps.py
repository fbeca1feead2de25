"""Fragments: how tensors are shared out, the outer step, what is written."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm import Member
from binsgdm.errors import BinsgdmError
from binsgdm.optimizers.outer_steps import Fragment, OuterSettings, OuterSteps, cut, write_into


def test_fragments_are_of_about_equal_size():
    assert cut([3, 3, 3, 3, 3, 3], 3) == [range(2), range(2, 4), range(4, 6)]


def test_more_fragments_than_tensors_are_refused():
    with pytest.raises(BinsgdmError, match="fragments: 3: the model has 2 tensors"):
        cut([4, 4], 3)


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

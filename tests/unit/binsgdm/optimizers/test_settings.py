"""The settings of rounding and decays, and what is refused."""

import math
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import numpy as np
import torch

import binsgdm
from binsgdm.optimizers.settings import gain_of, is_gain, momenta_of


def parameters(number: int = 1) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(3)) for _ in range(number)]


def test_one_decay_leaves_the_gain_and_two_correct_it_for_the_bias_of_both():
    assert gain_of({"beta": 0.9, "beta_b": None, "gain": 2.0}, 1) == 2.0
    assert gain_of({"beta": 0.9, "beta_b": 0.9, "gain": 2.0}, 7) == 2.0
    assert gain_of({"beta": 0.9, "beta_b": 0.99, "gain": 2.0}, 1) == pytest.approx(0.2)
    assert gain_of({"beta": 0.9, "beta_b": 0.5, "gain": 1.0}, 1) == pytest.approx(5.0)
    assert gain_of({"beta": 0.9, "beta_b": 0.99, "nesterov": True, "gain": 2.0}, 1) == pytest.approx(0.02 / 0.19)
    assert gain_of({"beta": 0.9, "beta_b": 0.99, "gain": 2.0}, 10_000) == pytest.approx(2.0)
    assert momenta_of({"beta": 0.5, "beta_b": None}) == {"beta": 0.5, "beta_b": 0.5, "nesterov": False}


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("rounding", ["random", "shaped"])
def test_a_steady_gradient_has_a_gain_u_of_one_from_the_first_step_on_whatever_the_decays(rounding, nesterov):
    (value,) = parameters()
    settings = {"beta": 0.5, "beta_b": 0.99, "nesterov": nesterov, "gain": 1.0, "rounding": rounding}
    optimizer = binsgdm.BinSGDM([value], lr=1.0, **settings)
    for _ in range(5):
        value.grad = torch.full((3,), 0.1)
        optimizer.step()
    # Where u is 1 a draw is always +1, and a residual brings at most one -1, in the first step.
    assert ((value == -5.0) | ((value == -3.0) & (rounding == "shaped"))).all()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"rounding": "shapd"}, "BinSGDM: rounding: 'shapd': must be 'random' or 'shaped'"),
        ({"rounding": None}, "BinSGDM: rounding: None: must be 'random' or 'shaped'"),
        ({"gain": 0.0}, "BinSGDM: gain: 0.0: must be a number above 0, and finite in float32"),
        ({"gain": -1.0}, "BinSGDM: gain: -1.0: must be"),
        ({"gain": float("nan")}, "BinSGDM: gain: nan: must be"),
        ({"gain": float("inf")}, "BinSGDM: gain: inf: must be"),
        ({"gain": 1e-50}, "BinSGDM: gain: 1e-50: must be"),
        ({"gain": 1e39}, r"BinSGDM: gain: 1e\+39: must be"),
        ({"gain": 10**400}, r"BinSGDM: gain: a int: must be"),
        ({"gain": "2"}, "BinSGDM: gain: '2': must be"),
        ({"gain": True}, "BinSGDM: gain: True: must be"),
        ({"nesterov": 1}, "BinSGDM: nesterov: 1: must be True or False"),
        ({"beta_b": 1.0}, r"BinSGDM: beta_b: 1.0: must be in \[0, 1\), or None"),
        ({"beta_b": -0.1}, "BinSGDM: beta_b: -0.1: must be"),
        ({"beta_b": "0.9"}, "BinSGDM: beta_b: '0.9': must be"),
    ],
)
def test_values_out_of_range_are_refused(settings, sentence):
    with pytest.raises(binsgdm.BinsgdmError, match=sentence):
        binsgdm.BinSGDM(parameters(), **settings)


@pytest.mark.parametrize("setting", [{"rounding": "shaped"}, {"gain": 7.0}, {"seed": 3}])
def test_groups_have_one_seed_one_rounding_and_one_gain(setting: dict[str, Any]):
    one, other = parameters(2)
    ((name, value),) = setting.items()
    with pytest.raises(binsgdm.BinsgdmError, match=f"BinSGDM: {name} of a group: {value!r}: must equal .* once"):
        binsgdm.BinSGDM([{"params": [one]}, {"params": [other], **setting}], rounding="random")
    optimizer = binsgdm.BinSGDM([one], rounding="random")
    with pytest.raises(binsgdm.BinsgdmError, match=f"{name} of a group"):
        optimizer.add_param_group({"params": [other], **setting})
    assert len(optimizer.param_groups) == 1


def test_groups_may_have_decays_of_their_own():
    one, other = parameters(2)
    optimizer = binsgdm.BinSGDM([{"params": [one], "beta_b": 0.0}, {"params": [other]}], lr=1.0, beta=0.0)
    for value in (one, other):
        value.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("rounding", "random", "rounding of a group: 'random': was 'shaped' when the optimizer was made, and cannot"),
        ("gain", float("nan"), "gain: nan: must be a number above 0"),
        ("beta", 1.0, "beta: 1.0: must be in"),
        ("beta_b", "0.9", "beta_b: '0.9': must be in"),
    ],
)
def test_a_setting_that_a_script_puts_in_later_is_refused_in_the_next_step(setting, value, said):
    one = torch.nn.Parameter(torch.zeros(3))
    optimizer = binsgdm.BinSGDM([one], lr=1.0)
    one.grad = torch.ones(3)
    optimizer.step()
    optimizer.param_groups[0][setting] = value
    before = one.detach().clone()
    with pytest.raises(binsgdm.BinsgdmError, match=said):
        optimizer.step()
    assert torch.equal(one.detach(), before)


@pytest.mark.parametrize("bound", [2.0**-150, 2.0**-149, (2 - 2.0**-24) * 2.0**127])
def test_a_gain_is_above_0_and_finite_in_float32(bound):
    for value in (math.nextafter(bound, 0), bound, math.nextafter(bound, math.inf)):
        with np.errstate(over="ignore"):
            assert is_gain(value) == (0 < np.float32(value) < math.inf)


def test_a_gain_of_numpy_is_a_number():
    assert is_gain(np.float32(2))
    assert not is_gain(np.float32("nan"))


def test_an_optimizer_that_a_former_version_pickled_takes_new_groups():
    first, second = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(3))
    optimizer = binsgdm.BinSGDM([first], lr=1.0, **binsgdm.PAPER)
    state = optimizer.__getstate__()
    for name in binsgdm.PAPER:
        del state["defaults"][name]
        for group in state["param_groups"]:
            del group[name]
    resumed = binsgdm.BinSGDM.__new__(binsgdm.BinSGDM)
    resumed.__setstate__(state)
    resumed.add_param_group({"params": [second]})
    assert [group["gain"] for group in resumed.param_groups] == [1.0, 1.0]
    first.grad, second.grad = torch.ones(3), torch.ones(3)
    resumed.step()
    assert torch.equal(first, second)

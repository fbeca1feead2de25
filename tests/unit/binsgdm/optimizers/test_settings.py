"""The settings of rounding and decays, and what is refused."""

from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

import binsgdm


def parameters(number: int = 1) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(3)) for _ in range(number)]


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

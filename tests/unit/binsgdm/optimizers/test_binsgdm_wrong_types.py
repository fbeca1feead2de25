"""What is of a wrong type in any argument of BinSGDM is refused in a sentence that names class and argument."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

import binsgdm
from binsgdm.errors import BinsgdmError

VALUE = torch.nn.Parameter(torch.ones(3))
WRONG = [
    *(("lr", wrong) for wrong in ("x", None, True, [0.1], torch.ones(2), torch.tensor(True), 1j, -1.0, torch.nan)),
    *(("beta", wrong) for wrong in ("x", None, True, 1.0, (0.9, 0.99), torch.inf)),
    *(("beta_b", wrong) for wrong in ("x", False, 1, [0.9], torch.nan)),
    *(("nesterov", wrong) for wrong in ("yes", None, 1)),
    *(("weight_decay", wrong) for wrong in ("x", None, True, {}, -0.1, torch.tensor([0.1, 0.2]))),
    *(("maximize", wrong) for wrong in ("no", None, 0)),
    *(("seed", wrong) for wrong in ("x", None, True, 1.0, -1, 2**63)),
    *(("rounding", wrong) for wrong in (None, 3, "exact", ["shaped"])),
    *(("gain", wrong) for wrong in ("x", True, 0.0, torch.ones(1))),
    *(("kernels", wrong) for wrong in (3, False, "cuda", ["cpu"], torch.ones(2))),
]


@pytest.mark.parametrize(("name", "wrong"), WRONG, ids=lambda one: " ".join(str(one).split()))
def test_a_setting_of_a_wrong_type_is_refused(name, wrong):
    with pytest.raises(BinsgdmError) as refused:
        binsgdm.BinSGDM([VALUE], **{name: wrong})
    assert str(refused.value).startswith(f"BinSGDM: {name}: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "params",
    [
        None,
        5,
        "weights",
        VALUE,
        [],
        [VALUE, VALUE],
        [1, 2],
        ["weight"],
        [VALUE * 2],
        [{"lr": 0.1}],
        [{"params": [VALUE]}, {"params": [VALUE]}],
        [{"params": {VALUE}}],
        {"params": [VALUE]},
    ],
    ids=lambda one: f"{type(one).__name__} {str(one)[:20]}",
)
@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_params_that_are_none_are_refused(params):
    with pytest.raises(BinsgdmError, match=r"^BinSGDM: params: .*must be ") as refused:
        binsgdm.BinSGDM(params)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["lr", "weight_decay"])
def test_what_becomes_no_number_later_is_refused_before_a_parameter_moves(name):
    value = torch.nn.Parameter(torch.ones(3))
    optimizer = binsgdm.BinSGDM([value])
    value.grad = torch.ones(3)
    for wrong in (float("nan"), torch.tensor(float("nan")), float("inf"), -1.0, "x", None):
        optimizer.param_groups[0][name] = wrong
        with pytest.raises(BinsgdmError, match=f"^BinSGDM: {name}: .*: must be 0 or more, and "):
            optimizer.step()
    assert torch.equal(value.detach(), torch.ones(3))
    assert optimizer.param_groups[0]["step"] == 0


@pytest.mark.parametrize("kind", [binsgdm.BinSGDM, binsgdm.OneBitAdam])
def test_a_decay_that_turns_signs_is_refused(kind):
    value = torch.nn.Parameter(torch.ones(3))
    value.grad = torch.ones(3)
    with pytest.raises(
        BinsgdmError, match=rf"^{kind.__name__}: weight_decay: 1e\+30: must be 0 or more, and at most 1"
    ):
        kind([value], lr=1e-3, weight_decay=1e30).step()


@pytest.mark.parametrize("kind", [binsgdm.BinSGDM, binsgdm.OneBitAdam])
def test_parameters_without_values_are_refused_in_the_step(kind):
    value = torch.nn.Parameter(torch.ones(3, device="meta"))
    optimizer = kind([value], lr=1e-3)
    value.grad = torch.ones(3, device="meta")
    with pytest.raises(BinsgdmError, match=rf"^{kind.__name__}: a parameter on meta: must have values; "):
        optimizer.step()


def test_a_state_that_was_emptied_is_refused_where_its_step_would_stay():
    value = torch.nn.Parameter(torch.ones(3))
    value.grad = torch.ones(3)
    optimizer = binsgdm.OneBitAdam([value], lr=1e-3)
    optimizer.step()
    optimizer.state.clear()
    with pytest.raises(
        BinsgdmError, match=r"^OneBitAdam: parameter 0: a state without exp_avg and exp_avg_sq: must keep"
    ):
        optimizer.step()

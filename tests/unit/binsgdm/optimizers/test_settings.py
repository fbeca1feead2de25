"""The settings of optimizers: what is refused at once, in groups and in a later step, in a sentence for its user."""

from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm import BinSGDM, OneBitAdam
from binsgdm.errors import BinsgdmError, shown
from binsgdm.optimizers.outer_steps import OuterSettings

NAN, INF = float("nan"), float("inf")
VALUE = torch.nn.Parameter(torch.ones(3))
OF_LR = "must be 0 or more, and finite"
OF_DECAY = "must be 0 or more, and at most 1 / lr"
OF_GAIN = "must be a number above 0, and finite in float32, or None"
OF_STAGE = "must be a whole number from 1 on (the variance comes from them), or 'variance'"
OF_KERNELS = "must be one of 'reference', 'cpu', 'triton', or None for the fastest"
OF_FLOOR = "must be a number in [0, 1]; give 0 for none, or 0.001"
WRONG: list[tuple[Any, str, list[Any], str]] = [
    (BinSGDM, "lr", ["x", None, True, [0.1], torch.ones(2), torch.tensor(True), 1j, -1.0, NAN],
     "must be 0 or more, and finite"),
    (BinSGDM, "beta", ["x", None, True, 1.0, (0.9, 0.99), INF], "must be in [0, 1)"),
    (BinSGDM, "beta_b", ["0.9", False, 1, 1.0, -0.1, [0.9], NAN], "must be in [0, 1), or None"),
    (BinSGDM, "nesterov", ["yes", None, 1], "must be True or False"),
    (BinSGDM, "weight_decay", ["x", None, True, {}, -0.1, torch.tensor([0.1, 0.2])], OF_DECAY),
    (BinSGDM, "maximize", ["no", None, 0], "must be True or False"),
    (BinSGDM, "seed", ["x", None, True, 1.0, -1, 2**63], "must be a whole number from 0 to 2^63 - 1"),
    (BinSGDM, "rounding", [None, 3, "shapd", ["shaped"]], "must be 'random' or 'shaped'"),
    (BinSGDM, "gain", ["2", True, 0.0, -1.0, NAN, INF, 1e-50, 1e39, 10**400, torch.ones(1)], OF_GAIN),
    (BinSGDM, "kernels", [3, False, "cuda", ["cpu"], torch.ones(2)], OF_KERNELS),
    (OneBitAdam, "lr", ["x", None], OF_LR),
    (OneBitAdam, "betas", [0.9, ("a", "b"), (0.9,)], "must be two numbers, both in [0, 1)"),
    (OneBitAdam, "eps", ["x", None, 0.0], "must be a number above 0, and finite"),
    (OneBitAdam, "weight_decay", [[]], OF_DECAY),
    (OneBitAdam, "variance_floor", ["x", 1.5], OF_FLOOR),
    (OneBitAdam, "scales_momenta", [1], "must be True or False"),
    (OneBitAdam, "maximize", ["yes"], "must be True or False"),
    (OneBitAdam, "dense_steps", [0, 1.5], OF_STAGE),
    (OneBitAdam, "topology", [None], "must be 'flat' or 'hierarchical'"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "values", "sentence"), WRONG)
def test_a_setting_of_a_wrong_type_or_out_of_range_is_refused(kind, name, values, sentence):
    for wrong in values:
        with pytest.raises(BinsgdmError) as refused:
            kind([VALUE], **{name: wrong})
        assert str(refused.value) == f"{kind.__name__}: {name}: {shown(wrong)}: {sentence}"


@pytest.mark.parametrize(
    "params",
    [
        None, 5, "weights", VALUE, [], [VALUE, VALUE], [1, 2], ["weight"], [VALUE * 2], [{"lr": 0.1}],
        [{"params": [VALUE]}, {"params": [VALUE]}], [{"params": {VALUE}}], {"params": [VALUE]},
    ],
    ids=lambda one: f"{type(one).__name__} {str(one)[:20]}",
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_params_that_are_none_are_refused(params):
    with pytest.raises(BinsgdmError, match=r"^BinSGDM: params: .*must be ") as refused:
        BinSGDM(params)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("setting", [{"rounding": "shaped"}, {"gain": 7.0}, {"seed": 3}])
def test_groups_have_one_seed_one_rounding_and_one_gain(setting: dict[str, Any]):
    one, other = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
    ((name, value),) = setting.items()
    with pytest.raises(BinsgdmError, match=f"BinSGDM: {name} of a group: {value!r}: must equal .* once"):
        BinSGDM([{"params": [one]}, {"params": [other], **setting}], rounding="random")
    optimizer = BinSGDM([one], rounding="random")
    with pytest.raises(BinsgdmError, match=f"{name} of a group"):
        optimizer.add_param_group({"params": [other], **setting})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(
    ("kind", "name", "values", "sentence"),
    [
        (BinSGDM, "lr", [NAN, torch.tensor(NAN), INF, -1.0, "x", None], "BinSGDM: lr: .*: must be 0 or more, and f"),
        (BinSGDM, "weight_decay", [NAN, INF, -1.0, "x", None], "BinSGDM: weight_decay: .*: must be 0 or more, and at"),
        (BinSGDM, "weight_decay", [1e30], r"BinSGDM: weight_decay: 1e\+30: must be 0 or more, and at most 1 / lr"),
        (OneBitAdam, "weight_decay", [1e30], r"OneBitAdam: weight_decay: 1e\+30: must be 0 or more, and at most 1"),
        (BinSGDM, "rounding", ["random"], "BinSGDM: rounding of a group: 'random': was 'shaped' when the optimizer"),
        (BinSGDM, "gain", [NAN], "BinSGDM: gain: nan: must be a number above 0"),
        (BinSGDM, "beta", [1.0], "BinSGDM: beta: 1.0: must be in"),
        (BinSGDM, "beta_b", ["0.9"], "BinSGDM: beta_b: '0.9': must be in"),
    ],
)  # fmt: skip
def test_a_setting_that_a_script_puts_in_later_is_refused_before_a_parameter_moves(kind, name, values, sentence):
    value = torch.nn.Parameter(torch.ones(3))
    optimizer = kind([value], lr=1e-3)
    value.grad = torch.ones(3)
    optimizer.step()
    before = value.detach().clone()
    for wrong in values:
        optimizer.param_groups[0][name] = wrong
        with pytest.raises(BinsgdmError, match=f"^{sentence}"):
            optimizer.step()
    assert torch.equal(value.detach(), before)
    assert optimizer.param_groups[0]["step"] == 1


@pytest.mark.parametrize("kind", [BinSGDM, OneBitAdam])
def test_parameters_without_values_are_refused_in_the_step(kind):
    value = torch.nn.Parameter(torch.ones(3, device="meta"))
    optimizer = kind([value], lr=1e-3)
    value.grad = torch.ones(3, device="meta")
    with pytest.raises(BinsgdmError, match=rf"^{kind.__name__}: a parameter on meta: must have values; "):
        optimizer.step()


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("rounding", ["random", "shaped"])
def test_a_steady_gradient_has_a_gain_u_of_one_from_the_first_step_on_whatever_the_decays(rounding, nesterov):
    value = torch.nn.Parameter(torch.zeros(3))
    settings = {"beta": 0.5, "beta_b": 0.99, "nesterov": nesterov, "gain": 1.0, "rounding": rounding}
    optimizer = BinSGDM([value], lr=1.0, **settings)
    for _ in range(5):
        value.grad = torch.full((3,), 0.1)
        optimizer.step()
    # Where u is 1 a draw is always +1, and a residual brings at most one -1, in the first step.
    assert ((value == -5.0) | ((value == -3.0) & (rounding == "shaped"))).all()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"inner_steps": 0}, "inner_steps: 0: must be a whole number from 1 on"),
        ({"outer_lr": 0}, "outer_lr: 0: must be a number above 0"),
        ({"outer_momentum": 1}, r"outer_momentum: 1: must be a number in \[0, 1\)"),
        ({"outer_momentum": 0}, "nesterov: True without outer_momentum: has no effect"),
        ({"inner_steps": 4, "fragments": 3}, r"fragments: 3: must divide inner_steps \(4\)"),
        ({"inner_steps": 4, "fragments": 2, "overlap_steps": 2}, "overlap_steps: 2: must be below"),
        ({"local_share": 0.5}, "local_share: 0.5: has no effect with overlap_steps=0"),
        ({"overlap_steps": 1, "local_share": 2}, r"local_share: 2: must be a number in \[0, 1\]"),
        ({"exchange": "int4"}, "exchange: 'int4': unknown; give one of fp32, bf16, int8"),
        ({"exchange": "fp32", "options": {"bits": 4}}, "bits: an option of a system: has no effect"),
        ({"exchange": "int8", "options": {"bits": 4}}, "byte_grad: bits: unknown option"),
        ({"exchange": "qsgd", "options": {"topology": "hierarchical"}}, "topology: 'hierarchical': averages in the"),
        ({"workers": "gpu"}, "workers: 'gpu': must be one of"),
        ({"seed": -1}, "seed: -1: must be a whole number"),
        ({"nesterov": 1}, "nesterov: 1: must be one of"),
    ],
)  # fmt: skip
def test_a_setting_of_diloco_that_cannot_be_or_has_no_effect_is_refused(given, text):
    with pytest.raises(BinsgdmError, match=text):
        OuterSettings(**given)

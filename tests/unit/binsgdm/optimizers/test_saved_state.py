"""Settings and states: what each must be, in one sentence; hooks of scripts; whose averages a state has."""

import copy
from functools import reduce
from operator import getitem
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR

import binsgdm
from binsgdm import BinSGDM, OneBitAdam
from binsgdm.errors import BinsgdmError, shown
from binsgdm.optimizers.outer_steps import OuterSettings


def trained(steps: int = 3, **settings) -> binsgdm.BinSGDM:
    values = [torch.nn.Parameter(torch.linspace(-1, 1, 33)), torch.nn.Parameter(torch.ones(2, 3))]
    optimizer = binsgdm.BinSGDM([{"params": values[:1]}, {"params": values[1:]}], **settings)
    for _ in range(steps):
        step(optimizer)
    return optimizer


def step(optimizer) -> None:
    for param_state in optimizer.param_states():
        param_state.parameter.grad = param_state.parameter.detach() - 0.3
    optimizer.step()


MISSING = object()
DAMAGES: list[tuple[tuple[Any, ...], Any, str]] = [
    (("state",), MISSING, "a state without 'state': must have it; "),
    (("state",), [], "state: a list: must be a dictionary; "),
    (("param_groups",), MISSING, "a state without 'param_groups': must have it; "),
    (("param_groups",), {}, "param_groups: a dict: must be a list; "),
    (("param_groups",), [], "0 groups of parameters: the optimizer has 2; "),
    (("param_groups", 0), None, "group 0: must have a list of params; "),
    (("param_groups", 0, "params"), [0, 1], "group 0: 2 parameters: the optimizer has 1; "),
    (("param_groups", 1, "params"), [0], "params of the groups: must be different numbers; "),
    (("param_groups", 0, "beta"), MISSING, "a group of the state without beta: must have all settings of BinSGDM; "),
    (("param_groups", 0, "step"), -5, "step: -5: must be a whole number from 0 to 2^48; "),
    (("param_groups", 0, "step"), 2**60, f"step: {2**60}: must be a whole number from 0 to 2^48; "),
    (("param_groups", 1, "step"), "x", "step: 'x': must be a whole number from 0 to 2^48; "),
    (("param_groups", 0, "num_skipped"), 1.5, "num_skipped: 1.5: must be a whole number from 0 to 2^48; "),
    (("param_groups", 0, "slices"), 3, "slices: 3: must be a text; "),
    (("state", 0), MISSING, "parameter 0: {}: must be m and b of shape (33,); "),
    (("state", 1), 7, "parameter 1: a int: must be a dictionary of m and b; "),
    (("state", 0, "m"), [1.0], "parameter 0: {'m': 'list', 'b': (33,)}: must be m and b of shape (33,); "),
    (("state", 1, "b"), torch.ones(3, 2), "parameter 1: {'m': (2, 3), 'b': (3, 2)}: must be m and b of "),
    (("state", 1, "m"), torch.ones(2, 3).int(), "parameter 1: m of torch.int32 and shape (2, 3): must be "),
    (("state", 0, "m"), torch.full((33,), torch.nan), "parameter 0: m: NaN or infinity: must be finite; "),
    (("state", 0, "b"), torch.full((33,), torch.inf), "parameter 0: b: NaN or infinity: must be finite; "),
    (("state", 1, "b"), torch.full((2, 3), -1e-9), "parameter 1: b below 0: must be an average of magnitudes"),
    (
        ("state", 1, "m"),
        torch.full((2, 3), 50.0),
        "parameter 1: |m| above 100 b: must be averages of the same",
    ),
]


@pytest.mark.parametrize(("place", "value", "sentence"), DAMAGES, ids=[sentence for *_, sentence in DAMAGES])
def test_a_damaged_state_is_refused_in_one_sentence_and_nothing_is_loaded(place, value, sentence):
    state = copy.deepcopy(trained().state_dict())
    inside = reduce(getitem, place[:-1], state)
    inside[place[-1]] = value
    if value is MISSING:
        del inside[place[-1]]
    optimizer = trained(steps=0)
    with pytest.raises(BinsgdmError) as refused:
        optimizer.load_state_dict(state)
    assert str(refused.value).startswith(f"load_state_dict: {sentence}")
    assert optimizer.param_groups[0]["step"] == 0
    assert not any(state["m"].any() for state in optimizer.state.values())


@pytest.mark.parametrize("state", [None, 5, "state", [("state", {})]])
def test_what_is_no_dictionary_is_refused(state):
    with pytest.raises(BinsgdmError, match=r"^load_state_dict: state_dict: a \w+: must be a dictionary"):
        trained(steps=0).load_state_dict(state)


def test_averages_of_gradients_of_any_size_and_of_rows_seen_once_are_loaded():
    value = torch.nn.Parameter(torch.zeros(5))
    for settings in ({}, {"beta_b": None}, {"beta": 0.99, "beta_b": 0.5}, {"beta": 0.0, "beta_b": 0.999}):
        optimizer = binsgdm.BinSGDM([value], **settings)
        for number in range(60):
            value.grad = torch.tensor([1e30, 1e-38, 1e-45, 0.0, -3.0]) * float(number < 2)
            optimizer.step()
        other = binsgdm.BinSGDM([value], **settings)
        other.load_state_dict(optimizer.state_dict())
        assert torch.equal(other.state[value]["b"], optimizer.state[value]["b"])


def test_hooks_see_and_change_what_is_loaded_before_and_after():
    saved = trained()
    saved.register_state_dict_post_hook(lambda _, state: {"of_a_library": state})
    state = saved.state_dict()
    optimizer, seen = trained(steps=0), []

    def after(loaded) -> None:
        first = loaded.param_states()[0]
        seen.append(first.state["m"].dtype)
        first.state["m"].zero_()

    optimizer.register_load_state_dict_pre_hook(lambda _, given: given["of_a_library"])
    optimizer.register_load_state_dict_post_hook(after)
    optimizer.load_state_dict(state)
    assert list(state) == ["of_a_library"]
    assert seen == [torch.float32]
    first, second = optimizer.param_states()
    assert not first.state["m"].any()
    assert torch.equal(second.state["m"], saved.param_states()[1].state["m"])
    assert optimizer.param_groups[0]["step"] == 3


@pytest.mark.parametrize("make", [OneCycleLR, CyclicLR])
def test_schedulers_of_momentum_move_beta(make):
    optimizer = trained(steps=0, beta=0.9)
    given = {"total_steps": 9} if make is OneCycleLR else {"base_lr": 0.001, "step_size_up": 4, "base_momentum": 0.7}
    scheduler = make(optimizer, max_lr=0.01, **given)
    betas = []
    for _ in range(6):
        step(optimizer)
        betas.append(optimizer.param_groups[1]["beta"])
        scheduler.step()
    assert len(set(betas)) > 3
    assert all(0.6 < beta < 0.96 for beta in betas)
    assert all("momentum" not in group for group in trained(steps=1).param_groups)
    again = trained(steps=0)
    again.load_state_dict(optimizer.state_dict())  # with what the scheduler has set since the last step
    step(again)
    step(optimizer)
    assert again.param_groups[1]["beta"] == optimizer.param_groups[1]["beta"] != betas[-1]


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

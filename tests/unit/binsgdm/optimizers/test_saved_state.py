"""Loading a state: what it must be, in one sentence each; hooks of scripts and libraries; whose averages it has."""

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
from binsgdm.errors import BinsgdmError


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


def test_hooks_stay_after_a_state_that_was_refused():
    optimizer, called = trained(steps=0), []
    optimizer.register_load_state_dict_pre_hook(lambda *_: called.append("before"))
    optimizer.register_load_state_dict_post_hook(lambda *_: called.append("after"))
    with pytest.raises(BinsgdmError):
        optimizer.load_state_dict({})
    optimizer.load_state_dict(trained().state_dict())
    assert called == ["before", "before", "after"]


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

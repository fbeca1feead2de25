"""1-bit Adam: states that are saved, damaged or of another rank; settings that differ or change."""

import copy
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from binsgdm.errors import BinsgdmError
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from tests.helpers.one_bit_adam_teams import DENSE, same, set_gradients, team, tensors, together, train

LAST = DENSE + 2


def trained(steps: int, topology: str = "flat") -> list[OneBitAdam]:
    ranks = team(topology=topology)
    train(ranks, 1, steps)
    return ranks


def heard_in_step(ranks: list[OneBitAdam], number: int) -> list[Any]:
    for rank, optimizer in enumerate(ranks):
        set_gradients(optimizer, rank, number)
    return together(ranks)


def test_a_compressing_state_that_lost_its_residuals_is_refused_and_goes_on_without_if_asked(recwarn: Any) -> None:
    ranks = trained(LAST)
    state = copy.deepcopy(ranks[0].state_dict())
    for of_parameter in state["state"].values():
        del of_parameter["worker_residual"], of_parameter["server_residual"]
    ranks[0].load_state_dict(state | {"residuals": None})
    assert not recwarn
    with pytest.raises(BinsgdmError, match="residuals of a state: a dict: must be None"):
        ranks[0].load_state_dict(state | {"residuals": {}})
    with pytest.raises(BinsgdmError, match="a state of rank 0 of 4, flat without its residuals: must have them; save"):
        ranks[0].load_state_dict(state)
    for group in state["param_groups"]:
        group["residual_layout"] = ""
    with pytest.warns(UserWarning, match="without residuals: they begin with 0"):
        ranks[0].load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "value"), [("lr", 0.5), ("betas", (0.8, 0.9)), ("weight_decay", 0.1), ("eps", 1e-3), ("step", 1)]
)
@pytest.mark.parametrize("steps", [1, LAST])
def test_a_setting_of_one_rank_is_named_in_the_same_step_and_nothing_moves(steps: int, name: str, value: Any) -> None:
    ranks = trained(steps)
    before = [copy.deepcopy(tensors(one)) for one in ranks]
    ranks[1].param_groups[0][name] = value if name != "step" else steps + 1
    heard = heard_in_step(ranks, steps + 1)
    assert all(f"{name} of group 0 of rank 1" in one and "must equal rank 0's" in one for one in heard), heard
    for one, kept in zip(ranks, before, strict=True):
        assert same(tensors(one), kept)


def test_averages_that_one_rank_alone_has_loaded_are_found_in_the_next_step() -> None:
    ranks, others = trained(LAST), trained(LAST)
    for state in others[3].state.values():
        state["exp_avg"].add_(1.0)
    for rank in range(4):
        ranks[rank].load_state_dict(copy.deepcopy(others[rank].state_dict()))
    assert all("exp_avg of parameter 0 of rank 3" in heard for heard in heard_in_step(ranks, LAST + 1))


def test_left_alone_it_forgets_its_residuals() -> None:
    one = trained(LAST)[1]
    one.leave()
    assert not any("worker_residual" in state for state in one.state.values())
    one.step()


STATE = trained(LAST)[0].state_dict()
WRONG = st.sampled_from([None, "x", -1, -5.0, float("nan"), float("inf"), [], {}, True, 10**400, torch.tensor([1.0])])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_state_is_refused_in_a_sentence_or_taken_whole(data: Any) -> None:
    """Whatever one place of a state is changed to: one sentence and nothing changed, or a state that can be."""
    state = copy.deepcopy(STATE)
    place: Any = state
    while True:
        key = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else list(range(len(place)))))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    if data.draw(st.booleans()) and isinstance(place, dict):
        del place[key]
    else:
        place[key] = data.draw(WRONG)
    (optimizer,) = team()[:1]
    before = copy.deepcopy(tensors(optimizer))
    try:
        optimizer.load_state_dict(state)
    except BinsgdmError:
        assert same(before, tensors(optimizer))

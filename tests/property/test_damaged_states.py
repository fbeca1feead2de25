"""A state that was damaged in any way is refused in one sentence, and nothing is loaded; or a run can go on from it."""

import copy
import warnings

from tests.helpers.needs import needs

needs("torch")
import torch
from hypothesis import given
from hypothesis import strategies as st

import binsgdm
from binsgdm.errors import BinsgdmError

LR, STEPS = 0.01, 3


def trained(rounding: str, steps: int = STEPS) -> binsgdm.BinSGDM:
    values = [torch.nn.Parameter(torch.linspace(-1, 1, 33)), torch.nn.Parameter(torch.ones(2, 3))]
    groups = [{"params": values[:1]}, {"params": values[1:], "beta_b": None}]
    optimizer = binsgdm.BinSGDM(groups, lr=LR, rounding=rounding, kernels="reference")
    for _ in range(steps):
        step(optimizer)
    return optimizer


def step(optimizer: binsgdm.BinSGDM) -> None:
    for param_state in optimizer.param_states():
        param_state.parameter.grad = param_state.parameter.detach() - 0.3
    optimizer.step()


SAVED = {rounding: trained(rounding).state_dict() for rounding in ("shaped", "random")}
PLACES = [("state",), ("param_groups",), ("state", 0), ("state", 1), ("param_groups", 0), ("param_groups", 1)]
NAMES = {
    "state": ["m", "b", "local_residual"],
    "param_groups": [*SAVED["shaped"]["param_groups"][0]],
}
# No lr or weight decay of another size: who loads it may mean it.
NUMBERS = [-5, -1.0, True, 10**30, float("nan"), float("inf")]
OTHERS = [None, "x", "", [], {}, [1, 2], (0, 0), {"m": 1}, b"bytes", object]
TENSORS = [
    torch.tensor(1.0),
    torch.ones(2),
    torch.ones(33, dtype=torch.int64),
    torch.full((33,), torch.nan),
    torch.full((33,), -1.0),
    torch.full((2, 3), 100.0),
    torch.ones(33).to_sparse(),
    torch.full((33,), 9999, dtype=torch.int16),
]


@st.composite
def damaged_states(draw):
    rounding = draw(st.sampled_from(sorted(SAVED)))
    state = copy.deepcopy(SAVED[rounding])
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from([(), *PLACES]))
        try:
            inside = state
            for name in place:
                inside = inside[name]
            known = {0: ["state", "param_groups"], 1: [0, 1], 2: NAMES[place[0]] if place else []}[len(place)]
            name = draw(st.sampled_from(known))
            if draw(st.booleans()):
                del inside[name]
            else:
                inside[name] = draw(st.sampled_from([*NUMBERS, *OTHERS, *TENSORS]))
        except (KeyError, TypeError, IndexError, AttributeError):  # what is to be damaged is gone already
            continue
    return rounding, state


def contents(optimizer: binsgdm.BinSGDM) -> list:
    found = optimizer.state_dict()
    tensors = [tensor.clone() for state in found["state"].values() for tensor in state.values()]
    return [*tensors, repr(found["param_groups"])]


def refusal(call) -> str:
    """Return the sentence that a call raises, if any."""
    try:
        call()
    except BinsgdmError as error:
        return str(error)
    return ""


@given(damaged_states())
def test_a_damaged_state_is_refused_in_a_sentence_or_a_run_goes_on_from_it(damaged):
    rounding, state = damaged
    optimizer = trained(rounding, steps=1)
    before = contents(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = refusal(lambda: optimizer.load_state_dict(state))
        if said:
            for now, old in zip(contents(optimizer), before, strict=True):
                assert torch.equal(now, old) if isinstance(now, torch.Tensor) else now == old
        # Slices of averages are known to be none's where no rank is known.
        said_in_step = refusal(lambda: step(optimizer))
    assert said_in_step.startswith("BinSGDM: averages of x") or not said_in_step
    assert "\n" not in said
    assert len(said) < 500
    for param_state in optimizer.param_states():
        assert param_state.parameter.isfinite().all()
        for name in ("m", "b"):
            assert param_state.state[name].isfinite().all()
    trained(rounding, steps=1).load_state_dict(optimizer.state_dict())

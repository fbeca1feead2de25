"""What shaped rounding keeps: its start, its bound, where it lies, and what becomes of it in a saved state."""

import copy
import io
import pickle
import warnings
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import binsgdm
from binsgdm.comm import Member, RankContext, run_in_lockstep
from binsgdm.comm.flat_buckets import build
from binsgdm.kernels.functional import ratio, shape
from binsgdm.kernels.keys import MAX_SHAPED_VECTORS, SCALE, Key
from binsgdm.kernels.random import dither
from binsgdm.optimizers.residuals import quantizations
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.settings import SCHEMES, Scheme

SHAPES = [(5, 3), (0,), (70,), (1,)]
LR = 0.5


def parameters(dtype: Any = torch.float32) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in SHAPES]


def shaped(values: Iterable[Any], **settings: Any) -> binsgdm.BinSGDM:
    return binsgdm.BinSGDM(values, **{"lr": LR, "rounding": "shaped", "gain": 1.5, "seed": 4} | settings)


def gradient(step: int, value: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + value.numel())
    return (torch.randn(value.shape, generator=generator) + 0.5).to(value.dtype)


def step_all(optimizer: binsgdm.BinSGDM, steps: Iterable[int]) -> list[torch.Tensor]:
    values = [value for group in optimizer.param_groups for value in group["params"]]
    for step in steps:
        for value in values:
            value.grad = gradient(step, value)
        optimizer.step()
    return [value.detach().clone() for value in values]


def saved(optimizer: binsgdm.BinSGDM) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    state: dict[str, Any] = torch.load(file)
    return state


def copies_of(optimizer: binsgdm.BinSGDM) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(value.detach().clone()) for value in optimizer.param_groups[0]["params"]]


def residuals(optimizer: binsgdm.BinSGDM) -> list[torch.Tensor]:
    return [optimizer.state[value]["local_residual"] for group in optimizer.param_groups for value in group["params"]]


def test_a_rank_alone_moves_by_the_equations():
    (value,) = (torch.nn.Parameter(torch.zeros(50)),)
    optimizer = shaped([value], beta=0.8, beta_b=None, nesterov=False)
    m, b, x = torch.zeros(50), torch.zeros(50), torch.zeros(50)
    residual = dither(Key(seed=4, step=0), start=0, numel=50, limit=SCALE).to(torch.int64)
    for step in range(1, 6):
        g = gradient(step, value)
        value.grad = g.clone()
        optimizer.step()
        m, b = m * 0.8 + g * (1 - 0.8), b * 0.8 + g.abs() * (1 - 0.8)
        total = ((m / b * 1.5).clamp(-1, 1) * SCALE).round().to(torch.int64) + residual
        sign = torch.where(total >= 0, 1, -1)
        residual = total - SCALE * sign
        x = x - LR * sign
        assert torch.equal(value.detach(), x)
        assert torch.equal(optimizer.state[value]["local_residual"].to(torch.int64), residual)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("rank", [0, 5])
def test_every_element_is_rounded_by_one_rank_of_a_group_and_every_piece_fits_its_messages(scheme, rank):
    buckets = build([40, 100, 7], bucket_elements=64, ranks=6)
    contexts = [RankContext(rank=r, world_size=6, ranks_per_node=2, seed=0, step=0) for r in range(6)]
    merges = [
        quantization
        for context in contexts
        for quantization in quantizations(buckets, context, scheme)
        if quantization.stream == 1
    ]
    for index, bucket in enumerate(buckets):
        runs = sorted((merge.starts[index], merge.starts[index] + merge.numels[index]) for merge in merges)
        ends = [bucket.start, *[end for _, end in runs]]
        assert runs == list(pairwise(ends)), "one after the other, without a gap"
        assert ends[-1] == bucket.start + bucket.numel
    mine = {one.name: one for one in quantizations(buckets, contexts[rank], scheme)}
    is_one_bit = scheme.intra_node_dtype == "one_bit"
    assert mine.keys() == {"local_residual", "merge_residual"} | ({"intra_node_residual"} if is_one_bit else set())
    assert mine["merge_residual"].limit == (6 if scheme.topology == "flat" else 3)
    assert mine["local_residual"].limit == (2 if "intra_node_residual" in mine else SCALE)


def test_more_ranks_than_a_residual_can_count_are_refused():
    session = Session(Member(rank=0, world_size=MAX_SHAPED_VECTORS + 1), Scheme(topology="flat"))
    with pytest.raises(binsgdm.BinsgdmError, match="merges 32768 vectors of signs: must be at most 32767; give round"):
        shaped(parameters()).join(session)


@pytest.mark.parametrize(
    ("dtype", "rounding"), [(torch.float32, "shaped"), (torch.bfloat16, "shaped"), (torch.float16, "random")], ids=str
)
def test_a_state_a_copy_and_a_pickle_go_on_bit_for_bit(dtype, rounding):
    optimizer = shaped(parameters(dtype), beta_b=0.99, rounding=rounding)
    step_all(optimizer, range(3))
    resumed = shaped(copies_of(optimizer), seed=9, gain=3.0, lr=0.1, rounding=rounding)
    resumed.load_state_dict(saved(optimizer))
    copies = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer)), resumed]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wanted = step_all(optimizer, range(3, 7))
        for copied in copies:
            assert all(torch.equal(*pair) for pair in zip(step_all(copied, range(3, 7)), wanted, strict=True))
            for ours, theirs in zip(optimizer.param_states(), copied.param_states(), strict=True):
                assert ours.state.keys() == theirs.state.keys()
                assert all(torch.equal(kept, theirs.state[name]) for name, kept in ours.state.items())
                assert theirs.state["m"].dtype == torch.float32


def test_residuals_that_somebody_puts_into_the_state_are_used():
    value = torch.nn.Parameter(torch.zeros(40))
    optimizer = shaped([value])
    step_all(optimizer, [0])
    value.grad = torch.zeros(40)
    optimizer.state[value]["m"] = torch.zeros(40)
    optimizer.state[value]["local_residual"] = torch.tensor([9, -9] * 20, dtype=torch.int16)
    before = value.detach().clone()
    optimizer.step()
    assert torch.equal(before - value.detach(), torch.tensor([LR, -LR] * 20))
    del optimizer.state[value]["local_residual"]
    optimizer.step()
    assert torch.equal(value.detach(), before), "u stays 0: one step back"


@pytest.mark.parametrize(("own", "other"), [("random", "shaped"), ("shaped", "random")])
def test_a_state_of_the_other_rounding_is_refused_and_goes_on_with_the_averages_alone_if_asked(own, other):
    optimizer = shaped(parameters(), rounding=other)
    step_all(optimizer, range(2))
    state, mine = saved(optimizer), shaped(parameters(), rounding=own)
    before = copy.deepcopy(mine.state_dict())
    with pytest.raises(binsgdm.BinsgdmError) as refused:
        mine.load_state_dict(state)
    assert str(refused.value) == (
        f"load_state_dict: rounding of the state: {other!r}: must be {own!r}, as of this optimizer; make it with "
        f"rounding={other!r}, or go on with the averages, gain and decays of the state: set 'rounding' to "
        f"{own!r} in all param_groups of the state"
    )
    assert mine.state_dict()["param_groups"] == before["param_groups"], "nothing is loaded"
    for group in state["param_groups"]:
        group["rounding"] = own
    if own == "shaped":
        with pytest.warns(
            UserWarning, match="residuals are drawn anew: the state has none for 'a rank alone'"
        ) as warned:
            mine.load_state_dict(state)
        assert warned[0].filename == __file__
        step_all(mine, [2])
    else:
        mine.load_state_dict(state)
        step_all(mine, [2])
        assert all("local_residual" not in mine.state[value] for value in mine.param_groups[0]["params"])
    assert mine.param_groups[0]["step"] == 3


@pytest.mark.parametrize(
    ("residual", "sentence"),
    [
        (torch.zeros(15), r"parameter 0: local_residual of torch.float32 and shape \(15,\): must be torch.int16 of"),
        (torch.zeros(5, 3, dtype=torch.int16), r"of torch.int16 and shape \(5, 3\): must be torch.int16 of"),
        (torch.zeros(14, dtype=torch.int16), r"shape \(14,\): must be torch.int16 of shape \(15,\); load this rank's"),
        (torch.full((15,), -32768, dtype=torch.int16), "from -32768 to -32768: must be from -32767 to 32767; load"),
        (None, "local_residual: None: must be a tensor"),
    ],
)
def test_a_residual_that_cannot_be_is_refused_and_nothing_is_loaded(residual, sentence):
    optimizer = shaped(parameters())
    step_all(optimizer, range(2))
    state, later, fresh = saved(optimizer), saved(optimizer), shaped(parameters())
    state["state"][0]["local_residual"] = residual
    state["param_groups"][0]["step"] = 77
    wanted = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(binsgdm.BinsgdmError, match=sentence) as refused:
        optimizer.load_state_dict(state)
    assert "\n" not in str(refused.value)
    assert optimizer.state_dict()["param_groups"] == wanted["param_groups"]
    assert torch.equal(optimizer.state_dict()["state"][2]["m"], wanted["state"][2]["m"])
    with pytest.raises(binsgdm.BinsgdmError, match=sentence):  # noqa: PT012 - what depends on the layout, in the step
        fresh.load_state_dict(state)
        step_all(fresh, [3])
    fresh.load_state_dict(later)
    step_all(fresh, [3])


def of_rank(rank: int) -> binsgdm.BinSGDM:
    optimizer = shaped(parameters())
    optimizer.join(Session(Member(rank=rank, world_size=2), Scheme(topology="flat")))
    return optimizer


def test_a_state_of_another_rank_brings_its_averages_alone():
    """Or all ranks would round alike where a script saves the state of rank 0 alone."""
    ranks = [of_rank(0), of_rank(1)]
    for optimizer in ranks:
        for value in optimizer.param_groups[0]["params"]:
            value.grad = torch.ones_like(value)
    run_in_lockstep([optimizer.step_protocol() for optimizer in ranks], 1)
    state, same, other = saved(ranks[0]), of_rank(0), of_rank(1)
    same.load_state_dict(state)
    assert all(torch.equal(*pair) for pair in zip(residuals(same), residuals(ranks[0]), strict=True))
    said = "belong to 'rank 0 of 2, flat, bucket_cap_mb=65536', here is 'rank 1 of 2, flat, bucket_cap_mb=65536'"
    with pytest.warns(UserWarning, match=said):
        other.load_state_dict(state)
    assert all(torch.equal(*pair) for pair in zip(residuals(other), residuals(of_rank(1)), strict=True))
    assert all(other.state[value]["b"].all() for value in other.param_groups[0]["params"])


def test_a_group_that_is_added_begins_with_its_own_draws_and_the_others_go_on():
    optimizer = shaped(parameters())
    step_all(optimizer, range(2))
    before = [residual.clone() for residual in residuals(optimizer)]
    added = torch.nn.Parameter(torch.zeros(40))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.add_param_group({"params": [added]})
    assert all(torch.equal(*pair) for pair in zip(residuals(optimizer), before, strict=False))
    assert torch.equal(
        optimizer.state[added]["local_residual"], dither(Key(seed=4, step=0), start=0, numel=40, limit=SCALE)
    )


def test_a_frozen_parameter_and_one_without_gradient_stay_while_their_residuals_go_on():
    values = parameters()
    optimizer = shaped(values)
    step_all(optimizer, [0])
    before = [value.detach().clone() for value in values]
    averages = [optimizer.state[value] for value in values]
    wanted = [shape(ratio(a["m"], a["b"]).view(-1), a["local_residual"], gain=1.5)[1] for a in averages]
    values[0].requires_grad_(False)
    values[2].grad = None
    values[3].grad = torch.ones(1)
    optimizer.step()
    assert torch.equal(values[0], before[0])
    assert torch.equal(values[2], before[2])
    assert not torch.equal(values[3], before[3])
    assert all(torch.equal(residuals(optimizer)[number], wanted[number]) for number in (0, 1, 2))


@pytest.mark.parametrize("flattens", [False, True])
@pytest.mark.parametrize("asks_first", [False, True])
def test_a_state_by_names_keeps_residuals_or_is_refused(flattens, asks_first):
    """As `torch.distributed.checkpoint.state_dict` loads it: flattened, by the names that the new state has."""
    options = StateDictOptions(flatten_optimizer_state_dict=flattens)
    model = torch.nn.Linear(5, 3)
    optimizer = shaped(model.parameters())
    step_all(optimizer, range(2))
    by_name = copy.deepcopy(get_optimizer_state_dict(model, optimizer, options=options))
    other = torch.nn.Linear(5, 3)
    other.load_state_dict(model.state_dict())
    resumed = shaped(other.parameters())
    if asks_first:  # as `torch.distributed.checkpoint.load` needs
        get_optimizer_state_dict(other, resumed, options=options)
    if flattens and not asks_first:
        with pytest.raises(binsgdm.BinsgdmError, match="a state of a rank alone without its residuals: must have them"):
            set_optimizer_state_dict(other, resumed, by_name, options=options)
        return
    set_optimizer_state_dict(other, resumed, by_name, options=options)
    step_all(optimizer, range(2, 4))
    step_all(resumed, range(2, 4))
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), other.parameters(), strict=True))


def test_residuals_that_are_loaded_before_attach_are_still_there_when_a_state_is_asked_for():
    optimizer = shaped(parameters())
    step_all(optimizer, range(2))
    state = saved(optimizer)
    for group in state["param_groups"]:
        group["residual_layout"] = "rank 1 of 4, say"
    resumed = shaped(copies_of(optimizer))
    resumed.load_state_dict(copy.deepcopy(state))
    kept = resumed.state_dict()
    assert kept["param_groups"][0]["residual_layout"] == "rank 1 of 4, say"
    for number, one in state["state"].items():
        assert torch.equal(one["local_residual"], kept["state"][number]["local_residual"])

"""1-bit Adam: Adam to rounding while dense, then the same bits on all ranks; states saved, damaged or foreign."""

import copy
import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from binsgdm.comm import Member, run_in_lockstep
from binsgdm.errors import BinsgdmError
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.one_bit_adam_plain import is_stable

SHAPES = [(5, 3), (), (0,), (33, 9), (7,)]
DENSE = 3


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def gradient(rank: int, step: int, number: int) -> torch.Tensor:
    """Return the gradient of a parameter."""
    generator = torch.Generator().manual_seed(1000 * rank + 10 * step + number)
    return torch.randn(SHAPES[number], generator=generator) + 0.5


def team(world_size: int = 4, dtype: torch.dtype = torch.float32, **options: Any) -> list[OneBitAdam]:
    """Return the optimizers of all ranks, two to a node."""
    ranks = [OneBitAdam(parameters(dtype), **({"dense_steps": DENSE} | options)) for _ in range(world_size)]
    for rank, optimizer in enumerate(ranks):
        optimizer.join(Member(rank=rank, world_size=world_size, ranks_per_node=2 if world_size % 2 == 0 else 1))
    return ranks


def params_of(optimizer: OneBitAdam) -> list[torch.nn.Parameter]:
    return [param_state.parameter for param_state in optimizer.param_states()]


def set_gradients(optimizer: OneBitAdam, rank: int, step: int) -> None:
    for number, parameter in enumerate(params_of(optimizer)):
        parameter.grad = gradient(rank, step, number).to(parameter.dtype)


def together(ranks: Sequence[OneBitAdam]) -> list[bool | str]:
    """Take a step with the gradients there are; return of each rank whether it counted, or what it raised."""

    def listening(optimizer: OneBitAdam) -> Any:
        try:
            return bool((yield from optimizer.step_protocol()))
        except BinsgdmError as error:
            return str(error)

    with torch.no_grad():
        return run_in_lockstep([listening(one) for one in ranks], min(len(ranks), 2))


def train(ranks: Sequence[OneBitAdam], first: int, last: int) -> None:
    """Take steps by their numbers."""
    for step in range(first, last + 1):
        for rank, optimizer in enumerate(ranks):
            set_gradients(optimizer, rank, step)
        assert together(ranks) == [True] * len(ranks)


def tensors(optimizer: OneBitAdam) -> list[torch.Tensor]:
    """Return parameters and all that is kept of them, in order."""
    return [
        torch.as_tensor(value).detach()
        for param_state in optimizer.param_states()
        for value in (param_state.parameter, *(param_state.state[name] for name in sorted(param_state.state)))
    ]


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


REMEDIES = {"variance_floor": 0.001, "scales_momenta": True}
topologies = pytest.mark.parametrize("topology", ["flat", "hierarchical"])


@pytest.mark.parametrize("world_size", [1, 4])
def test_while_dense_it_is_adam_on_the_mean_gradient_to_rounding(world_size: int) -> None:
    ours = team(world_size, lr=0.01, weight_decay=0.1, dense_steps=100)
    theirs = torch.optim.AdamW(parameters(), lr=0.01, weight_decay=0.1)
    train(ours, 1, 20)
    for step in range(1, 21):
        for number, parameter in enumerate(theirs.param_groups[0]["params"]):
            parameter.grad = torch.stack([gradient(rank, step, number) for rank in range(world_size)]).mean(dim=0)
        theirs.step()
    for one, other in zip(params_of(ours[-1]), theirs.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-6)


@topologies
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_all_ranks_agree_to_the_bit_in_both_stages(topology: str, dtype) -> None:
    ranks = team(topology=topology, dtype=dtype, lr=0.01)
    train(ranks, 1, DENSE)
    variance = [param_state.state["exp_avg_sq"].clone() for param_state in ranks[0].param_states()]
    before = [p.detach().clone() for p in params_of(ranks[0])]
    assert not ranks[0].is_dense
    train(ranks, DENSE + 1, 8)
    for optimizer in ranks:
        assert same(params_of(ranks[0]), params_of(optimizer))
        assert same(variance, [one.state["exp_avg_sq"] for one in optimizer.param_states()])
        assert optimizer.param_states()[0].state["exp_avg"].dtype == torch.float32
        assert params_of(optimizer)[0].dtype == dtype
    for parameter, old in zip(params_of(ranks[0]), before, strict=True):
        assert not parameter.numel() or not torch.equal(parameter, old)


@pytest.mark.parametrize(
    ("topology", "stop", "options"),
    [("flat", 2, {}), ("flat", 5, REMEDIES), ("hierarchical", 2, REMEDIES), ("hierarchical", 5, {}),
     ("flat", DENSE, REMEDIES), ("hierarchical", DENSE, {})],
)  # fmt: skip
def test_a_resumed_run_goes_on_bit_for_bit(topology: str, stop: int, options) -> None:
    straight, halted, resumed = (team(topology=topology, dtype=torch.bfloat16, **options) for _ in range(3))
    train(straight, 1, 8)
    train(halted, 1, stop)
    for old, new in zip(halted, resumed, strict=True):
        for one, other in zip(params_of(old), params_of(new), strict=True):
            other.data.copy_(one.data)
        new.load_state_dict(pickle.loads(pickle.dumps(old.state_dict())))
        assert same(tensors(old), tensors(new))
    train(resumed, stop + 1, 8)
    assert all(same(tensors(one), tensors(other)) for one, other in zip(straight, resumed, strict=True))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 2.0**63])
@pytest.mark.parametrize("step", [2, DENSE + 2])
def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_step_on_all(bad: float, step: int) -> None:
    ranks = team()
    train(ranks, 1, step - 1)
    before = [[tensor.clone() for tensor in tensors(optimizer)] for optimizer in ranks]
    for rank, optimizer in enumerate(ranks):
        set_gradients(optimizer, rank, step)
    params_of(ranks[1])[3].grad[2, 2] = bad
    with pytest.warns(UserWarning, match="was skipped on all ranks"):
        assert together(ranks) == [False] * 4
    assert all(same(old, tensors(optimizer)) for old, optimizer in zip(before, ranks, strict=True))
    assert [optimizer.num_skipped for optimizer in ranks] == [1] * 4
    control = team()
    train(control, 1, 6)
    train(ranks, step, 6)
    assert all(same(tensors(one), tensors(other)) for one, other in zip(control, ranks, strict=True))


@pytest.mark.parametrize("step", [2, DENSE + 2])
def test_a_parameter_without_gradients_stays_and_one_rank_without_counts_as_zero(step: int) -> None:
    ranks = team()
    train(ranks, 1, step - 1)
    before = [p.detach().clone() for p in params_of(ranks[0])]
    for rank, optimizer in enumerate(ranks):
        set_gradients(optimizer, rank, step)
        params_of(optimizer)[0].grad = None
    params_of(ranks[3])[3].grad = None
    assert together(ranks) == [True] * 4
    assert torch.equal(params_of(ranks[0])[0], before[0])
    assert ranks[0].param_states()[0].state["step"] == step - 1
    assert not torch.equal(params_of(ranks[0])[3], before[3])
    assert all(same(params_of(ranks[0]), params_of(optimizer)) for optimizer in ranks)


def test_an_element_that_never_had_a_gradient_does_not_run_away() -> None:
    ranks = team(lr=0.01)
    start = params_of(ranks[0])[3].detach().clone()
    for step in range(1, 30):
        for rank, optimizer in enumerate(ranks):
            set_gradients(optimizer, rank, step)
            params_of(optimizer)[3].grad[10:] = 0
        together(ranks)
    assert torch.equal(params_of(ranks[0])[3][10:], start[10:])
    moved = (params_of(ranks[0])[3][:10] - start[:10]).abs()
    assert 0 < moved.min() <= moved.max() < 1


def test_the_criterion_freezes_a_variance_that_stands_and_no_growing_one() -> None:
    assert [is_stable(norm, 1.0) for norm in (0.95, 0.96, 1.04, 1.05)] == [False, True, True, False]
    assert not is_stable(1.0, 0.0)
    standing, growing = (team(2, dense_steps="variance", betas=(0.9, 0.75)) for _ in range(2))
    for step in range(1, 9):
        for optimizer in standing + growing:
            for parameter in params_of(optimizer):
                parameter.grad = torch.ones_like(parameter) * (1 if optimizer in standing else 1.1**step)
        together(standing)
        together(growing)
        assert [optimizer.is_dense for optimizer in standing] == [step < 8] * 2
    assert all(optimizer.is_dense for optimizer in growing)


@pytest.mark.slow
def test_it_trains_nearly_as_well_as_adam() -> None:
    centers = torch.randn(4, 100, generator=torch.Generator().manual_seed(1))

    def far(dense_steps: int, topology: str = "flat") -> float:
        options = {"dense_steps": dense_steps, "topology": topology}
        ranks = [OneBitAdam([torch.nn.Parameter(torch.zeros(100))], **options) for _ in centers]
        noise = torch.Generator().manual_seed(2)
        for rank, optimizer in enumerate(ranks):
            optimizer.join(Member(rank=rank, world_size=4, ranks_per_node=2))
        for step in range(300):
            for center, optimizer in zip(centers, ranks, strict=True):
                optimizer.param_groups[0]["lr"] = 0.05 / (1 + step / 20)
                (x,) = params_of(optimizer)
                x.grad = x.detach() - center + 0.1 * torch.randn(100, generator=noise)
            together(ranks)
        return float((params_of(ranks[0])[0].detach() - centers.mean(dim=0)).norm() / centers.mean(dim=0).norm())

    assert far(300) < 0.05
    assert far(20) < 0.3
    assert far(20, "hierarchical") < 0.3


def test_what_cannot_be_stepped_or_loaded_is_refused_in_a_sentence() -> None:
    with pytest.raises(BinsgdmError, match=r"a parameter of torch\.float64"):
        OneBitAdam([torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))])
    embedding = torch.nn.Embedding(3, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(BinsgdmError, match="a sparse gradient"):
        OneBitAdam(embedding.parameters()).step()
    ranks = team()
    with pytest.raises(BinsgdmError, match="no driver for the messages of several ranks"):
        ranks[0].step()
    with pytest.raises(BinsgdmError, match="a copy of an attached optimizer"):
        copy.deepcopy(ranks[0]).step()
    train(ranks, 1, DENSE + 1)
    state = ranks[0].state_dict()
    with pytest.raises(BinsgdmError, match="add all parameters before"):
        ranks[0].add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    ranks[1].load_state_dict(state)
    heard = together(ranks)
    assert "residuals of rank 0 of 4, flat: this is rank 1 of 4, flat: load this rank's own" in heard[1]
    assert "rank 1 refused: OneBitAdam: residuals of rank 0" in heard[0]
    ranks[1].load_state_dict(state | {"residuals": None})
    next(ranks[1].step_protocol())
    ranks[1].leave()
    ranks[1].state.clear()
    with pytest.raises(BinsgdmError, match=r"^OneBitAdam: parameter 0: a state without exp_avg and exp_avg_sq: must"):
        ranks[1].step()
    with pytest.raises(BinsgdmError, match="5 parameters: the optimizer has 2"):
        OneBitAdam(parameters()[:2]).load_state_dict(state)
    others = [torch.nn.Parameter(torch.zeros(shape)) for shape in [*SHAPES[:4], (8,)]]
    with pytest.raises(BinsgdmError, match=r"parameter 4: .*: must be exp_avg and exp_avg_sq of shape \(8,\)"):
        OneBitAdam(others).load_state_dict(state)
    with pytest.raises(BinsgdmError, match="format"):
        team(1)[0].load_state_dict(torch.optim.Adam(parameters()).state_dict())
    newer = [group | {"format": 99} for group in state["param_groups"]]
    with pytest.raises(BinsgdmError, match=r"^load_state_dict: format \['99'\]: this version reads format "):
        team(1)[0].load_state_dict(state | {"param_groups": newer})


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


@pytest.mark.slow
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

"""1-bit Adam's exchange and what its dense stage freezes: nothing is lost, all ranks agree, floors and scales hold."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm import Member, RankContext, run_in_lockstep
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.one_bit_adam_plain import (
    SMALLEST_SCALE,
    MomentumResiduals,
    decode,
    encode,
    freeze,
    one_bit_momentum,
    padded_numel,
)

both = pytest.mark.parametrize("topology", ["flat", "hierarchical"])


def context(rank: int, world_size: int = 4, ranks_per_node: int = 2) -> RankContext:
    return RankContext(rank=rank, world_size=world_size, ranks_per_node=ranks_per_node, seed=0, step=1)


def randn(*shape: int, seed: int = 0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def fresh(numel: int, topology: str, world_size: int = 4, ranks_per_node: int = 2) -> list[MomentumResiduals]:
    return [MomentumResiduals.zeros(numel, context(r, world_size, ranks_per_node), topology) for r in range(world_size)]


def exchange(values, residuals, topology, valid=None, ranks_per_node=2, on_sent=None):
    size = len(values)
    valid = torch.ones_like(values[0], dtype=torch.bool) if valid is None else valid
    contexts = [context(rank, size, ranks_per_node) for rank in range(size)]
    talks = [one_bit_momentum(*one, valid, topology) for one in zip(values, residuals, contexts, strict=True)]
    return run_in_lockstep(talks, ranks_per_node, on_sent)


def owed(residuals: list[MomentumResiduals], topology: str):
    """Return what the average still owes: the mean of the workers' residuals and the servers', in the flat order."""
    workers, servers = (torch.stack([getattr(r, name) for r in residuals]) for name in ("worker", "server"))
    if topology == "flat":
        return workers.mean(dim=0) + servers.reshape(-1)
    lanes = workers.view(2, 2, -1).mean(dim=0)
    return lanes.reshape(-1) + servers.view(2, 2, -1).transpose(0, 1).reshape(-1)


@both
@pytest.mark.parametrize("numel", [1, 7, 8193])
def test_all_ranks_agree_to_the_bit_and_nothing_is_lost(topology: str, numel: int) -> None:
    padded = padded_numel(numel, 4)
    values = torch.nn.functional.pad(randn(4, numel), (0, padded - numel))
    valid = torch.arange(padded) < numel
    residuals = fresh(padded, topology)
    delivered = torch.zeros(padded)
    for _ in range(3):
        averages = exchange(values, residuals, topology, valid)
        assert all(torch.equal(averages[0], other) for other in averages)
        delivered += averages[0]
    torch.testing.assert_close(delivered + owed(residuals, topology), 3 * values.mean(dim=0), rtol=0, atol=1e-5)
    assert not averages[0][numel:].any()
    assert not owed(residuals, topology)[numel:].any()
    if numel > 7:
        assert (delivered - 3 * values.mean(dim=0)).abs().max() > 0.5


@pytest.mark.parametrize("power", [1, 3, 9])
def test_the_compressor_contracts_by_exactly_what_the_theory_says(power: int) -> None:
    chunk = randn(1, 4096).double().pow(power).float()
    lost = (chunk - decode(encode(chunk, torch.ones_like(chunk, dtype=torch.bool)))).double().square().sum()
    squared = chunk.double().square().sum()
    delta = chunk.double().abs().sum() ** 2 / (4096 * squared)
    assert 1 / 4096 <= delta < 1
    torch.testing.assert_close(lost, (1 - delta) * squared, rtol=1e-5, atol=0)


@both
def test_elements_that_take_no_part_are_zero_and_keep_their_residuals(topology: str) -> None:
    values = randn(4, 64)
    valid = torch.arange(64) % 3 != 0
    residuals = fresh(64, topology)
    exchange(values, residuals, topology)
    before = owed(residuals, topology)
    without = exchange(values.masked_fill(~valid, 0.0), residuals, topology, valid)[0]
    assert not without[~valid].any()
    assert without[valid].all()
    assert torch.equal(owed(residuals, topology)[~valid], before[~valid])
    assert not torch.equal(owed(residuals, topology)[valid], before[valid])


@both
def test_zeros_stay_zeros_and_huge_values_stay_finite(topology: str) -> None:
    residuals = fresh(64, topology)
    assert not exchange(torch.zeros(4, 64), residuals, topology)[0].any()
    assert not owed(residuals, topology).any()
    average = exchange(randn(4, 64).sign() * 1e30, residuals, topology)[0]
    assert average.isfinite().all()
    assert average.abs().max() > 1e29
    assert owed(residuals, topology).isfinite().all()


def test_a_nan_reaches_every_rank_alike() -> None:
    values = randn(4, 64)
    values[2, 20] = torch.nan
    averages = exchange(values, fresh(64, "flat"), "flat")
    for average in averages:
        assert average.isnan().tolist() == [16 <= element < 32 for element in range(64)]


LR = 0.01
RANKS = 2
SIZES = (16, 16, 16)
SMALL = 1e-3  # of the second tensor's gradients; the third's are 0 in the dense stage
TINY, NONE = 3, 5  # elements of the first tensor: almost no gradient in the dense stage, and none


def team(**options) -> list[OneBitAdam]:
    """Return both ranks' optimizers, whose chunks hold elements of two tensors."""
    ranks = [
        OneBitAdam([torch.nn.Parameter(torch.zeros(size)) for size in SIZES], lr=LR, dense_steps=4, **options)
        for _ in range(RANKS)
    ]
    for rank, optimizer in enumerate(ranks):
        optimizer.join(Member(rank=rank, world_size=RANKS, ranks_per_node=1))
    return ranks


def train(ranks: list[OneBitAdam], first: int, last: int) -> None:
    for step in range(first, last + 1):
        for rank, optimizer in enumerate(ranks):
            generator = torch.Generator().manual_seed(100 * step + rank)
            factors = (1.0, SMALL, 0.0 if step <= 4 else 1.0)
            for one, factor in zip(optimizer.param_states(), factors, strict=True):
                one.parameter.grad = factor * (torch.randn(16, generator=generator) + 1)
            if step <= 4:
                params_of(optimizer)[0].grad[TINY] *= 1e-6
                params_of(optimizer)[0].grad[NONE] = 0
        assert all(map(bool, run_in_lockstep([optimizer.step_protocol() for optimizer in ranks], 1)))


def params_of(optimizer: OneBitAdam) -> list[torch.Tensor]:
    return [param_state.parameter for param_state in optimizer.param_states()]


def state(optimizer: OneBitAdam, name: str) -> list:
    return [param_state.state[name] for param_state in optimizer.param_states()]


def test_a_floor_raises_tiny_variances_of_its_tensor_and_nothing_else() -> None:
    plain, floored = team(), team(variance_floor=0.001)
    train(plain, 1, 4)
    train(floored, 1, 4)
    for before, after in zip(state(plain[0], "exp_avg_sq"), state(floored[1], "exp_avg_sq"), strict=True):
        floor = 0.001 * before.mean()
        is_raised = (before > 0) & (before < floor)
        assert torch.equal(after[~is_raised], before[~is_raised])
        torch.testing.assert_close(after[is_raised], floor.expand(int(is_raised.sum())), rtol=1e-6, atol=0)
    before, after = state(plain[0], "exp_avg_sq")[0], state(floored[0], "exp_avg_sq")[0]
    assert before[TINY] > 0 == before[NONE] == after[NONE]
    assert after[TINY] > 1e6 * before[TINY]


def test_a_floor_bounds_how_far_an_element_of_tiny_variance_moves() -> None:
    """Its root is at least sqrt(0.001) of the tensor's, and the magnitude of a chunk about that root: 32 lr a step."""
    moved = {}
    for floor in (0.0, 0.001):
        ranks = team(variance_floor=floor)
        train(ranks, 1, 4)
        before = params_of(ranks[0])[0].detach().clone()
        train(ranks, 5, 5)
        moved[floor] = float((params_of(ranks[0])[0].detach() - before)[TINY].abs()) / LR
    assert moved[0.0] > 1e4
    assert 5 < moved[0.001] < 100


def test_scaled_momenta_let_a_chunk_deliver_small_and_large_tensors() -> None:
    """Unscaled, the first chunk's one magnitude is about half the large tensor's, a thousand times the small one's."""
    factors = {}
    for scales in (False, True):
        ranks = team(scales_momenta=scales, variance_floor=0.001)
        train(ranks, 1, 4)
        wanted = [float(m.norm()) for m in state(ranks[0], "exp_avg")[:2]]
        train(ranks, 5, 5)
        delivered = [float(m.norm()) for m in state(ranks[0], "exp_avg")[:2]]
        factors[scales] = [ours / theirs for ours, theirs in zip(delivered, wanted, strict=True)]
        assert all(torch.equal(*pair) for pair in zip(*map(params_of, ranks), strict=True))
    assert factors[False][1] > 100
    assert 0.4 < min(factors[True]) <= max(factors[True]) < 2.5


def test_a_scale_is_that_of_the_tensor_but_none_is_far_below_the_common_one() -> None:
    ranks = team(scales_momenta=True)
    train(ranks, 1, 4)
    roots = [float(m.square().mean().sqrt()) for m in state(ranks[0], "exp_avg")]
    scales = state(ranks[0], "momentum_scale")
    assert scales == state(ranks[1], "momentum_scale")
    assert scales[:2] == pytest.approx(roots[:2], rel=1e-6)
    common = (sum(root**2 for root in roots) / 2) ** 0.5
    assert scales[2] == pytest.approx(common, rel=1e-6)
    means = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1e-20, 0.0]], dtype=torch.float64)
    freeze(ranks[0].slices(), means)
    assert state(ranks[0], "momentum_scale")[1] == pytest.approx(SMALLEST_SCALE * 0.5**0.5)

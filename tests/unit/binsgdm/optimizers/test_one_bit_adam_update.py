"""What 1-bit Adam freezes at the end of its dense stage: variances with a floor, and the scales of momenta."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm import Member, run_in_lockstep
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.one_bit_adam_plain import SMALLEST_SCALE, freeze

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
    return [one.parameter for one in optimizer.param_states()]


def state(optimizer: OneBitAdam, name: str) -> list:
    return [one.state[name] for one in optimizer.param_states()]


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
        assert all(torch.equal(one, other) for one, other in zip(*map(params_of, ranks), strict=True))
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

"""Majority vote, scaled signs, 1-bit SGD and TernGrad against their theory."""

import math
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.compressors.signs import MajorityVote, OneBitSGD, ScaledSign, TernGrad
from tests.helpers.gradient_buckets import means_of, normal, there_and_back

MIXED = ((3, 5), (), (0, 4), (17,), (4, 2, 3), (2, 0))
SHAPES = [((1,),), ((7,),), ((8193,),), ((),), MIXED]

Shapes = tuple[tuple[int, ...], ...]


def sizes(shapes: Shapes) -> list[int]:
    return [math.prod(shape) for shape in shapes]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_makes_what_shares_its_scale_nan(bad: float) -> None:
    shapes, values = ((3, 2), (4,)), normal(10)
    values[3] = bad
    for compressor in (ScaledSign(), TernGrad()):
        assert there_and_back(compressor, values, shapes).isnan().tolist() == [True] * 6 + [False] * 4
    assert there_and_back(ScaledSign(scale_per="bucket"), values, shapes).isnan().all()
    assert there_and_back(OneBitSGD(), values, shapes).isnan().tolist() == [False, True] * 3 + [False] * 4


def test_scaled_signs_are_signs_times_the_mean_magnitude_of_the_tensor() -> None:
    values = torch.tensor([1.0, -3.0, 0.0, -0.0, 8.0])
    wanted = torch.tensor([2.0, -2.0, 8 / 3, 8 / 3, 8 / 3])
    assert torch.equal(there_and_back(ScaledSign(), values, ((2,), (3,))), wanted)
    assert torch.allclose(
        there_and_back(ScaledSign(scale_per="bucket"), values, ((2,), (3,))), torch.tensor([2.4, -2.4, 2.4, 2.4, 2.4])
    )


@pytest.mark.parametrize("shapes", SHAPES)
def test_scaled_signs_contract_by_exactly_the_delta_of_the_paper(shapes: Shapes) -> None:
    values = normal(sum(sizes(shapes)))
    restored = there_and_back(ScaledSign(), values, shapes)
    for v, c in zip(values.double().split(sizes(shapes)), restored.double().split(sizes(shapes)), strict=True):
        if v.numel():
            delta = v.abs().sum() ** 2 / (v.numel() * v.square().sum())
            assert 1 / v.numel() <= delta * 1.000001
            assert abs((v - c).square().sum() - (1 - delta) * v.square().sum()) <= 1e-5 * v.square().sum()


def test_one_bit_sgd_keeps_the_means_of_both_halves_of_every_column() -> None:
    matrix = torch.tensor([[1.0, -2.0, 0.0], [3.0, -4.0, -1.0], [-6.0, -9.0, 5.0]])
    wanted = torch.tensor([[2.0, -5.0, 2.5], [2.0, -5.0, -1.0], [-6.0, -5.0, 2.5]])
    assert there_and_back(OneBitSGD(), matrix.view(-1), ((3, 3),)).tolist() == wanted.view(-1).tolist()
    vector = torch.tensor([1.0, 3.0, -4.0])
    assert there_and_back(OneBitSGD(), vector, ((3,),)).tolist() == [2.0, 2.0, -4.0]


@pytest.mark.parametrize("shapes", [((8193,),), ((64, 9),), ((64, 3, 3),), ((5, 8), (), (0,), (13,))])
def test_one_bit_sgd_contracts_by_what_the_means_keep(shapes: Shapes) -> None:
    values = normal(sum(sizes(shapes)))
    restored = there_and_back(OneBitSGD(), values, shapes).double()
    lost, whole = (values.double() - restored).square().sum(), values.double().square().sum()
    assert abs(lost - (whole - restored.square().sum())) <= 1e-5 * whole
    assert 0 < lost < whole
    if max(sizes(shapes)) > 5000:
        assert lost / whole == pytest.approx(1 - 2 / math.pi, abs=0.04)


@pytest.mark.parametrize("clip_sigmas", [None, 2.5, 1.0])
def test_terngrad_is_unbiased_for_the_clipped_values_with_the_variance_of_the_paper(clip_sigmas: float | None) -> None:
    one, repeats = normal(32), 500
    shapes = ((32,),) * repeats
    drawn = there_and_back(TernGrad(clip_sigmas=clip_sigmas), one.repeat(repeats), shapes).double().view(repeats, 32)
    limit = math.inf if clip_sigmas is None else clip_sigmas * one.double().square().mean().sqrt().item()
    clipped = one.double().clamp(-limit, limit)
    scale = clipped.abs().max()
    assert torch.allclose(drawn.unique(), torch.tensor([-1.0, 0.0, 1.0]).double() * scale)
    variance = clipped.abs() * (scale - clipped.abs())
    is_spread = variance > 1e-4
    sigmas = ((drawn.mean(dim=0) - clipped) / (variance / repeats).sqrt())[is_spread]
    assert sigmas.abs().max() < 5
    assert abs(sigmas.square().sum().item() - len(sigmas)) < 5 * (2 * len(sigmas)) ** 0.5
    assert torch.allclose((drawn - clipped).square().mean(dim=0).sum(), variance.sum(), rtol=0.03)


def votes_of(values: list[torch.Tensor], on_sent: Any = None) -> list[torch.Tensor]:
    return means_of([MajorityVote()] * len(values), values, shapes=((values[0].numel(),),), on_sent=on_sent)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("numel", [1, 7, 8193])
def test_the_majority_wins_and_all_ranks_agree_to_the_bit(world_size: int, numel: int) -> None:
    values = [normal(numel, seed=rank) * 10.0**rank for rank in range(world_size)]
    votes = votes_of(values)
    assert all(torch.equal(vote, votes[0]) for vote in votes)
    assert (votes[0].abs() == 1).all()
    balance = torch.stack(values).sign().sum(dim=0)
    assert torch.equal(votes[0][balance != 0], balance[balance != 0].sign())
    if numel > 7:
        assert bool((balance == 0).any()) == (world_size % 2 == 0)


def test_a_vote_of_zeros_is_plus_one() -> None:
    assert votes_of([torch.tensor([0.0, -0.0])] * 3)[0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("world_size", [1, 3])
def test_a_value_that_is_not_finite_on_one_rank_makes_the_vote_nan_on_all(bad: float, world_size: int) -> None:
    values = [normal(100, seed) for seed in range(world_size)]
    values[-1][99] = bad
    assert all(one.isnan().all() for one in votes_of(values))

"""Marsit's merge is the choice of one rank, uniformly; the residual makes up for what it loses."""

from fractions import Fraction

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm import run_in_lockstep
from binsgdm.compressors import marsit as module
from binsgdm.compressors.base import GradientBucket
from binsgdm.compressors.marsit import Marsit, all_reduce_round_rings, merge_signs
from binsgdm.kernels.bits import pack_signs, unpack_signs
from binsgdm.kernels.random import Key
from tests.helpers.gradient_buckets import context

PLAIN = {"sync_period": None}
TORUS = {"sync_period": None, "torus": True}


def exchange(values, residuals, settings=PLAIN, ranks_per_node=1, step=1, on_sent=None):
    """Exchange once with these residuals, which are changed to those of afterwards."""
    size, numel = values.shape
    bucket = [GradientBucket(values=values[r], parameters=("w",), shapes=((numel,),)) for r in range(size)]
    systems = [Marsit(**settings, rank=r, world_size=size) for r in range(size)]
    for rank, system in enumerate(systems):
        system.residuals.store(residuals[rank], bucket[rank], mean=residuals[rank])
    talks = [systems[r].mean(bucket[r], context(r, size, step, ranks_per_node)) for r in range(size)]
    means = run_in_lockstep(talks, ranks_per_node, on_sent)
    for rank, system in enumerate(systems):
        residuals[rank].copy_(system.residuals["w"])
    return means


def randn(*shape: int, seed: int = 0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("world_size", [2, 3, 4, 7, 64])
def test_a_chain_of_hops_is_the_uniform_choice_among_ranks(world_size: int) -> None:
    exact, drawn = [Fraction(1)], [Fraction(1)]
    for count in range(2, world_size + 1):
        own = Fraction(module.replacing_draws(count), 2**32)
        assert Fraction(1, count) - Fraction(1, 2**32) < own <= Fraction(1, count)
        exact = [p * Fraction(count - 1, count) for p in exact] + [Fraction(1, count)]
        drawn = [p * (1 - own) for p in drawn] + [own]
    assert exact == [Fraction(1, world_size)] * world_size
    assert sum(drawn) == 1
    assert max(abs(p - Fraction(1, world_size)) for p in drawn) < Fraction(world_size, 2**32)


def test_the_merge_replaces_as_many_bits_as_the_paper_says_and_only_where_they_differ() -> None:
    numel = 2**16
    running, own = torch.zeros(numel, dtype=torch.bool), torch.arange(numel) % 2 == 0
    packed = merge_signs(pack_signs(running), pack_signs(own), count=4, key=Key(seed=1), start=0)
    merged = unpack_signs(packed, numel) > 0
    assert not merged[1::2].any()
    replaced, expected = int(merged[::2].sum()), numel / 2 / 4
    assert abs(replaced - expected) < 5 * (expected * 3 / 4) ** 0.5


@pytest.mark.parametrize("numel", [1, 7, 8193])
@pytest.mark.parametrize("settings", [PLAIN, TORUS, {"sync_period": None, "scale": 0.5}])
def test_all_ranks_agree_to_the_bit_and_nothing_is_lost(numel: int, settings) -> None:
    values, residuals = randn(4, numel), randn(4, numel, seed=9)
    compensated = values + residuals
    given = values.clone()
    estimates = exchange(values, list(residuals), settings, 2)
    assert torch.equal(values, given)
    assert all(torch.equal(estimates[0], other) for other in estimates)
    scale = estimates[0].abs()
    assert scale.min() == scale.max()
    expected = compensated.abs().mean() if "scale" not in settings else torch.tensor(0.5)
    torch.testing.assert_close(scale[0], expected)
    torch.testing.assert_close(estimates[0] + residuals, compensated, rtol=0, atol=2e-6)
    assert (residuals - compensated).abs().max() > 0.1


@pytest.mark.parametrize("torus", [False, True])
def test_every_kth_step_is_the_exact_mean_and_clears_the_residual(torus: bool) -> None:
    settings = {"sync_period": 3, "torus": torus}
    values, residuals = randn(4, 77), randn(4, 77, seed=9)
    wanted = (values + residuals).mean(dim=0)
    estimates = exchange(values, list(residuals), settings, 2, step=6)
    assert all(torch.equal(estimates[0], other) for other in estimates)
    torch.testing.assert_close(estimates[0], wanted, rtol=0, atol=1e-6)
    assert not residuals.any()
    exchange(values, list(residuals), settings, 2, step=7)
    assert residuals.any()


@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0])
def test_as_much_of_the_residual_is_delivered_as_its_decay_leaves(decay: float) -> None:
    values, residuals = randn(4, 77), randn(4, 77, seed=9)
    wanted = (values + decay * residuals).mean(dim=0)
    (estimate, *_) = exchange(values, list(residuals), {"sync_period": 3, "residual_decay": decay}, 2, step=6)
    torch.testing.assert_close(estimate, wanted, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_quadratic_is_minimized_though_ranks_disagree() -> None:
    centers, x = randn(4, 50), torch.full((50,), 3.0)
    residuals = torch.zeros(4, 50)
    for step in range(1, 401):
        lr = 0.1 / (1 + step / 40)
        x = x - exchange(lr * (x - centers), list(residuals), {"sync_period": 10}, step=step)[0]
    assert (x - centers.mean(dim=0)).abs().max() < 0.1


def add(came, own, *_):
    return came + own


@pytest.mark.parametrize("groups", [("world",), ("intra_node", "inter_node")])
def test_all_reduce_round_rings_and_tori_is_the_sum_on_every_rank(groups) -> None:
    values = torch.arange(6 * 24).view(6, 24)
    contexts = [context(rank, 6, ranks_per_node=3) for rank in range(6)]
    talks = [all_reduce_round_rings(values[p.rank], groups, p, add) for p in contexts]
    for total in run_in_lockstep(talks, 3):
        assert torch.equal(total, values.sum(dim=0))
    assert torch.equal(values, torch.arange(6 * 24).view(6, 24))

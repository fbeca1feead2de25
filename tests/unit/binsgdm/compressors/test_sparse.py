"""Sparsifiers: exactly k values arrive, where they belong, and the rest is lost as theory says."""

from functools import partial
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm import RankContext, run_in_lockstep
from binsgdm.compressors.aggregation import all_reduce_payloads
from binsgdm.compressors.base import GradientBucket, Payload
from binsgdm.compressors.error_feedback import WithoutFeedback
from binsgdm.compressors.sparse import (
    MSTopK,
    RandomK,
    TopK,
    drawn_indices,
)
from binsgdm.errors import BinsgdmError
from binsgdm.kernels.random import Key

KEY = Key(seed=3, step=1)
CPU = torch.device("cpu")
UnbiasedRandomK = partial(RandomK, unbiased=True)
EVERY = (TopK, MSTopK, RandomK, UnbiasedRandomK)
INDEXED = (TopK, MSTopK)
DRAWN = (RandomK, UnbiasedRandomK)
SHAPES = ((16, 12), (), (0, 3), (7,), (8, 3, 2))


def bucket(values: Any, shapes: Any) -> GradientBucket:
    return GradientBucket(values=values, parameters=tuple(range(len(shapes))), shapes=shapes)


def normal(numel: int, seed: int = 1) -> Any:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def sent(compressor: Any, values: Any, shapes: Any = None, key: Key = KEY) -> Any:
    shapes = shapes or ((values.numel(),),)
    return compressor.decompress(compressor.compress(values, shapes, key), shapes, key)


def energy(values: Any) -> float:
    return float(values.double().square().sum())


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("numel", [1, 7, 8193])
@pytest.mark.parametrize("ratio", [0.01, 0.3, 1.0])
def test_exactly_k_values_arrive_where_they_were(kind: Any, numel: int, ratio: float) -> None:
    values, compressor, shapes = normal(numel), kind(ratio=ratio), ((numel,),)
    payload = compressor.compress(values, shapes, KEY)
    k = min(numel, max(1, round(ratio * numel)))
    assert payload.num_bytes == compressor.num_bytes(shapes) == k * (8 if kind in INDEXED else 4)
    result = compressor.decompress(payload, shapes, KEY)
    kept = result != 0
    assert int(kept.sum()) == k
    scale = numel / k if kind is UnbiasedRandomK and k else 1.0
    assert torch.equal(result[kept], values[kept] * scale)


@pytest.mark.parametrize("kind", EVERY)
def test_a_bucket_of_several_tensors_is_one_vector(kind: Any) -> None:
    values = normal(248)
    assert torch.equal(sent(kind(ratio=0.1), values, SHAPES), sent(kind(ratio=0.1), values))


@pytest.mark.parametrize("kind", EVERY)
def test_a_k_above_the_bucket_keeps_all(kind: Any) -> None:
    values = normal(7)
    assert torch.equal(sent(kind(k=100), values), values)


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("scale", [0.0, 1e30, 1e-42])
def test_zeros_huge_and_subnormal_values_arrive_as_they_are(kind: Any, scale: float) -> None:
    values = normal(64) * scale
    result = sent(kind(k=32), values)
    unscaled = result / 2 if kind is UnbiasedRandomK else result
    assert result.isfinite().all()
    assert ((unscaled == values) | (unscaled == 0)).all()
    if scale:
        assert int((result != 0).sum()) >= 30


@pytest.mark.parametrize("kind", EVERY)
def test_the_input_is_left_alone_and_the_same_key_gives_the_same_payload(kind: Any) -> None:
    values = normal(8193)
    before = values.clone()
    one, two = (kind(ratio=0.05).compress(values, ((8193,),), KEY) for _ in range(2))
    assert torch.equal(values, before)
    assert all(torch.equal(a, b) for a, b in zip(one.tensors, two.tensors, strict=True))


@pytest.mark.parametrize("kind", INDEXED)
@pytest.mark.parametrize("k", [1, 82, 4000, 8192])
def test_the_k_largest_magnitudes_are_kept_and_the_loss_contracts(kind: Any, k: int) -> None:
    values = normal(8193)
    result = sent(kind(k=k), values)
    order = values.abs().sort(descending=True).values
    assert torch.equal(result.abs().sort(descending=True).values[:k], order[:k])
    assert energy(values - result) == pytest.approx(energy(order[k:]), rel=1e-9)
    assert energy(values - result) < (1 - k / 8193) * energy(values)


def test_among_equal_magnitudes_exactly_k_are_kept() -> None:
    values = torch.tensor([1.0, -1.0] * 50 + [2.0, -3.0])
    for kind in INDEXED:
        result = sent(kind(k=12), values)
        assert int((result != 0).sum()) == 12
        assert result[-2:].tolist() == [2.0, -3.0]


def test_among_equal_magnitudes_ms_top_k_starts_where_the_key_says() -> None:
    kept = {tuple(sent(MSTopK(k=3), torch.ones(50), key=Key(seed=s)).nonzero().view(-1).tolist()) for s in range(20)}
    assert len(kept) > 5
    assert all(last - first == 2 for first, _, last in kept)


@pytest.mark.parametrize("num_samplings", [9, 12, 16, 20])
def test_fewer_samplings_keep_values_close_to_the_largest(num_samplings: int) -> None:
    values, k = normal(8193), 82
    kept = sent(MSTopK(k=k, num_samplings=num_samplings), values)
    magnitudes = kept[kept != 0].abs()
    smallest_wanted = values.abs().topk(k).values[-1]
    assert magnitudes.numel() == k
    assert magnitudes.min() >= smallest_wanted * (1 - 2.0 ** (8 - num_samplings))


def test_a_single_sampling_still_keeps_exactly_k() -> None:
    assert int((sent(MSTopK(k=82, num_samplings=1), normal(8193)) != 0).sum()) == 82


@pytest.mark.parametrize("kind", INDEXED)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_are_delivered_first(kind: Any, bad: float) -> None:
    values = normal(100)
    values[17] = bad
    assert not sent(kind(k=1), values)[17].isfinite()


@pytest.mark.parametrize("kind", DRAWN)
def test_a_value_that_is_not_finite_is_seen_though_it_is_not_drawn(kind: Any) -> None:
    values = normal(1000)
    index = (~sent(kind(k=3), values).bool()).nonzero()[0]
    values[index] = torch.inf
    assert sent(kind(k=3), values).isnan().sum() == 3


def test_nothing_but_nan_is_delivered_as_nan() -> None:
    for kind in INDEXED:
        assert int(sent(kind(k=5), torch.full((40,), torch.nan)).isnan().sum()) == 5


def test_drawn_indices_are_distinct_uniform_and_ascending() -> None:
    numel, k, steps = 96, 12, 4000
    counts = torch.zeros(numel, dtype=torch.float64)
    for step in range(steps):
        indices = drawn_indices(numel, k, Key(seed=8, step=step), CPU)
        assert (indices.diff() > 0).all()
        counts[indices] += 1
    chance = k / numel
    sigmas = (counts - steps * chance) / (steps * chance * (1 - chance)) ** 0.5
    assert sigmas.abs().max() < 5
    # The counts sum to a constant, so the squares have the mean numel and are a little wider than independent ones.
    assert 60 < sigmas.square().sum() < 140


def test_unbiased_random_k_has_the_mean_and_the_variance_of_theory() -> None:
    numel, k, steps = 96, 12, 4000
    values = normal(numel)
    total, loss = torch.zeros(numel, dtype=torch.float64), 0.0
    for step in range(steps):
        result = sent(UnbiasedRandomK(k=k), values, key=Key(seed=8, step=step))
        total += result
        loss += energy(result - values)
    ratio = numel / k - 1
    sigmas = (total / steps - values) / (values.double().square() * ratio / steps).sqrt()
    assert sigmas.abs().max() < 5
    assert 60 < sigmas.square().sum() < 140
    assert loss / steps / energy(values) == pytest.approx(ratio, rel=0.05)


def test_random_k_loses_the_share_of_theory() -> None:
    values, steps = normal(96), 2000
    loss = sum(energy(values - sent(RandomK(k=24), values, key=Key(seed=8, step=step))) for step in range(steps))
    assert loss / steps / energy(values) == pytest.approx(0.75, rel=0.02)


@pytest.mark.parametrize("compressor", [TopK(ratio=0.1), MSTopK(ratio=0.1)])
def test_gathered_all_ranks_have_the_mean_of_what_each_sent(compressor: Any) -> None:
    grads = [normal(248, seed) for seed in range(3)]
    contexts = [RankContext(rank=rank, world_size=3, ranks_per_node=1, seed=4, step=2) for rank in range(3)]
    talks = [
        WithoutFeedback(compressor).mean(bucket(grad, SHAPES), one) for grad, one in zip(grads, contexts, strict=True)
    ]
    results = run_in_lockstep(talks, 1)
    keys = [Key(seed=4, step=2, rank=rank) for rank in range(3)]
    wanted = sum(sent(compressor, grad, SHAPES, key) for grad, key in zip(grads, keys, strict=True)) / 3
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert torch.allclose(results[0], wanted)


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_reduced_all_ranks_have_the_mean_at_common_indices(kind: Any, size: int) -> None:
    grads = [normal(248, seed) for seed in range(size)]
    contexts = [RankContext(rank=rank, world_size=size, ranks_per_node=1, seed=4, step=2) for rank in range(size)]
    talks = [
        WithoutFeedback(kind(k=25), all_reduce_payloads).mean(bucket(grad, SHAPES), one)
        for grad, one in zip(grads, contexts, strict=True)
    ]
    results = run_in_lockstep(talks, 1)
    assert all(torch.equal(results[0], other) for other in results)
    wanted = sent(kind(k=25), torch.stack(grads).mean(dim=0), SHAPES, contexts[0].common_key)
    assert int((results[0] != 0).sum()) == 25
    assert torch.allclose(results[0], wanted, atol=1e-6)


def test_what_has_indices_cannot_be_reduced() -> None:
    context = RankContext(rank=0, world_size=1, ranks_per_node=1, seed=4, step=2)
    with pytest.raises(BinsgdmError, match="use gather_payloads"):
        next(WithoutFeedback(TopK(k=1), all_reduce_payloads).mean(bucket(normal(4), ((4,),)), context))


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "exactly one"),
        ({"ratio": 0.1, "k": 3}, "exactly one"),
        ({"ratio": 0.0}, "ratio: 0.0: must be above 0"),
        ({"ratio": 1.5}, "ratio: 1.5"),
        ({"ratio": float("nan")}, "ratio: nan"),
        ({"k": 0}, "k: 0: must be a whole number from 1 on"),
    ],
)
def test_settings_out_of_range_are_refused(kind: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BinsgdmError, match=message):
        kind(**settings)


@pytest.mark.parametrize("num_samplings", [0, 32])
def test_samplings_out_of_range_are_refused(num_samplings: int) -> None:
    with pytest.raises(BinsgdmError, match="num_samplings"):
        MSTopK(k=1, num_samplings=num_samplings)


@pytest.mark.parametrize("kind", EVERY)
def test_a_payload_of_other_settings_is_refused(kind: Any) -> None:
    payload = kind(k=2).compress(normal(9), ((9,),), KEY)
    with pytest.raises(BinsgdmError, match="same settings"):
        kind(k=3).decompress(payload, ((9,),), KEY)
    with pytest.raises(BinsgdmError, match="same settings"):
        kind(k=2).decompress(Payload(tensors=()), ((9,),), KEY)


@pytest.mark.parametrize("kind", EVERY)
def test_values_that_do_not_fit_are_refused(kind: Any) -> None:
    with pytest.raises(BinsgdmError, match="flatten the bucket"):
        kind(k=2).compress(normal(9), ((8,),), KEY)
    with pytest.raises(BinsgdmError, match="flatten the bucket"):
        kind(k=2).compress(normal(9).double(), ((9,),), KEY)


def test_a_bucket_too_large_for_an_index_is_refused() -> None:
    with pytest.raises(BinsgdmError, match="at most 2147483647; lower bucket_cap_mb, and give DDP find_unused"):
        TopK(k=2).num_bytes(((2**31,),))

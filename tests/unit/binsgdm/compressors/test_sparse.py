"""Sparsifiers: exactly k values arrive, where they belong, and the rest is lost as theory says."""

from functools import partial
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.compressors.compressor import CompressorAverager, all_reduce_payloads
from binsgdm.compressors.sparse import (
    MSTopK,
    RandomK,
    TopK,
    drawn_indices,
)
from binsgdm.errors import BinsgdmError
from binsgdm.kernels.random import Key
from tests.helpers.gradient_buckets import bucket, context, energy, normal, there_and_back

KEY = Key(seed=3, step=1)
CPU = torch.device("cpu")
UnbiasedRandomK = partial(RandomK, unbiased=True)
EVERY = (TopK, MSTopK, RandomK, UnbiasedRandomK)
INDEXED = (TopK, MSTopK)
DRAWN = (RandomK, UnbiasedRandomK)


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


@pytest.mark.parametrize("kind", INDEXED)
@pytest.mark.parametrize("k", [1, 82, 4000, 8192])
def test_the_k_largest_magnitudes_are_kept_and_the_loss_contracts(kind: Any, k: int) -> None:
    values = normal(8193)
    result = there_and_back(kind(k=k), values)
    order = values.abs().sort(descending=True).values
    assert torch.equal(result.abs().sort(descending=True).values[:k], order[:k])
    assert energy(values - result) == pytest.approx(energy(order[k:]), rel=1e-9)
    assert energy(values - result) < (1 - k / 8193) * energy(values)


def test_among_equal_magnitudes_exactly_k_are_kept() -> None:
    values = torch.tensor([1.0, -1.0] * 50 + [2.0, -3.0])
    for kind in INDEXED:
        result = there_and_back(kind(k=12), values)
        assert int((result != 0).sum()) == 12
        assert result[-2:].tolist() == [2.0, -3.0]


def test_a_single_sampling_still_keeps_exactly_k() -> None:
    assert int((there_and_back(MSTopK(k=82, num_samplings=1), normal(8193)) != 0).sum()) == 82


@pytest.mark.parametrize("kind", INDEXED)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_are_delivered_first(kind: Any, bad: float) -> None:
    values = normal(100)
    values[17] = bad
    assert not there_and_back(kind(k=1), values)[17].isfinite()


@pytest.mark.parametrize("kind", DRAWN)
def test_a_value_that_is_not_finite_is_seen_though_it_is_not_drawn(kind: Any) -> None:
    values = normal(1000)
    index = (~there_and_back(kind(k=3), values).bool()).nonzero()[0]
    values[index] = torch.inf
    assert there_and_back(kind(k=3), values).isnan().sum() == 3


def test_nothing_but_nan_is_delivered_as_nan() -> None:
    for kind in INDEXED:
        assert int(there_and_back(kind(k=5), torch.full((40,), torch.nan)).isnan().sum()) == 5


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
        result = there_and_back(UnbiasedRandomK(k=k), values, key=Key(seed=8, step=step))
        total += result
        loss += energy(result - values)
    ratio = numel / k - 1
    sigmas = (total / steps - values) / (values.double().square() * ratio / steps).sqrt()
    assert sigmas.abs().max() < 5
    assert 60 < sigmas.square().sum() < 140
    assert loss / steps / energy(values) == pytest.approx(ratio, rel=0.05)


def test_what_has_indices_cannot_be_reduced() -> None:
    with pytest.raises(BinsgdmError, match="use gather_payloads"):
        next(CompressorAverager(TopK(k=1), all_reduce_payloads).mean(bucket(normal(4), ((4,),)), context()))


def test_a_bucket_too_large_for_an_index_is_refused() -> None:
    with pytest.raises(BinsgdmError, match="at most 2147483647; lower bucket_cap_mb, and give DDP find_unused"):
        TopK(k=2).num_bytes(((2**31,),))

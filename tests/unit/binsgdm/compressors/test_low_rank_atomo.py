"""ATOMO: the mean is the matrix, the variance that of theory, and the bytes those of the triplets."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.compressors.base import Payload
from binsgdm.compressors.low_rank import Atomo, probabilities
from binsgdm.errors import BinsgdmError
from binsgdm.kernels.random import Key
from tests.helpers.gradient_buckets import KEY, NUMEL, SHAPES, energy, normal, there_and_back, with_spectrum


@pytest.mark.parametrize("budget", [0.5, 1, 2.5, 4, 24])
def test_the_chances_add_up_to_the_budget_and_are_in_proportion(budget: float) -> None:
    magnitudes = 0.8 ** torch.arange(24).double()
    chances = probabilities(magnitudes, budget)
    assert float(chances.sum()) == pytest.approx(budget)
    assert chances.max() <= 1
    proportions = (chances / magnitudes)[chances < 1]
    assert torch.allclose(proportions, proportions[:1].expand_as(proportions))
    assert (magnitudes * proportions.max() >= 1 - 1e-9)[chances == 1].all() if proportions.numel() else budget == 24


def test_what_is_zero_is_not_drawn() -> None:
    assert probabilities(torch.tensor([2.0, 0.0, 0.0]), 2).tolist() == [1.0, 0.0, 0.0]
    assert probabilities(torch.zeros(3), 2).tolist() == [0.0, 0.0, 0.0]


def test_atomo_has_the_mean_and_the_variance_of_theory() -> None:
    matrix, steps, budget = with_spectrum(12, 8, 0.7), 3000, 2.0
    total, loss, count = torch.zeros(96, dtype=torch.float64), 0.0, 0
    for step in range(steps):
        key, compressor = Key(seed=2, step=step), Atomo(budget=budget)
        payload = compressor.compress(matrix.reshape(-1), ((12, 8),), key)
        result = compressor.decompress(payload, ((12, 8),), key)
        total += result
        loss += energy(result - matrix.reshape(-1))
        count += int(payload.tensors[1].sum())
    singular = torch.linalg.svdvals(matrix.double())
    chances = probabilities(singular, budget)
    variance = float((singular.square() * (1 / chances - 1)).sum())
    assert loss / steps == pytest.approx(variance, rel=0.1)
    # The squared distance of the mean is variance / steps on average; five times is far in its tail, a fifth too.
    assert variance / steps / 5 < energy(total / steps - matrix.reshape(-1)) < 5 * variance / steps
    assert count / steps == pytest.approx(budget, abs=5 * (budget / steps) ** 0.5)


def test_atomo_of_all_triplets_is_lossless() -> None:
    values = normal(40 * 24)
    result = there_and_back(Atomo(budget=14.9), values, ((40, 24),))
    assert energy(result - values) > 0
    low = (normal(40).view(40, 1) @ normal(24, 2).view(1, 24)).reshape(-1)
    assert torch.allclose(there_and_back(Atomo(budget=2), low, ((40, 24),)), low, atol=1e-5)


def test_a_payload_of_atomo_has_the_bytes_of_its_triplets() -> None:
    payload = Atomo(budget=2).compress(normal(NUMEL), SHAPES, KEY)
    counts = payload.tensors[1].tolist()
    assert payload.num_bytes == 4 * (8 + 2 + counts[0] * (16 + 12) + counts[1] * (8 + 6))
    assert Atomo(budget=2).num_bytes(SHAPES) is None
    whole = Atomo(budget=100)
    assert whole.compress(normal(NUMEL), SHAPES, KEY).num_bytes == whole.num_bytes(SHAPES) == 4 * NUMEL


def test_atomo_survives_zeros_and_huge_values() -> None:
    assert not there_and_back(Atomo(budget=2), torch.zeros(NUMEL), SHAPES).any()
    one, other = (there_and_back(Atomo(budget=2), normal(NUMEL) * scale, SHAPES) for scale in (1.0, 2.0**99))
    assert torch.allclose(one, other / 2.0**99, atol=1e-5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_atomo_delivers_a_matrix_that_is_not_finite_as_nan_and_the_others_as_ever(bad: float) -> None:
    values = normal(NUMEL)
    values[5] = bad
    result = there_and_back(Atomo(budget=2), values, SHAPES)
    assert result[:192].isnan().all()
    assert result[192:].isfinite().all()


def test_a_wrong_payload_of_atomo_is_refused() -> None:
    payload = Atomo(budget=2).compress(normal(NUMEL), SHAPES, KEY)
    whole, counts, atoms = payload.tensors
    with pytest.raises(BinsgdmError, match="same settings"):
        Atomo(budget=100).decompress(payload, SHAPES, KEY)
    with pytest.raises(BinsgdmError, match="as its counts"):
        Atomo(budget=2).decompress(Payload(tensors=(whole, counts + 1, atoms)), SHAPES, KEY)
    with pytest.raises(BinsgdmError, match="flatten the bucket"):
        Atomo(budget=2).compress(normal(9), SHAPES, KEY)

"""Low rank: as good as theory says, no better; the same on all ranks; and never stuck."""

from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm import AllReduceSum
from binsgdm.compressors.base import Payload
from binsgdm.compressors.low_rank import Atomo, GradZip, PowerSGD, orthonormalized, probabilities
from binsgdm.errors import BinsgdmError
from binsgdm.kernels.random import Key
from tests.helpers.gradient_buckets import (
    KEY,
    NAMES,
    NUMEL,
    SHAPES,
    energy,
    means_of,
    normal,
    there_and_back,
    with_spectrum,
)


def power(matrix_rank: int = 2, size: int = 1, *, warm_start: bool = True) -> list[PowerSGD]:
    options = {"matrix_rank": matrix_rank, "warm_start": warm_start}
    return [PowerSGD(**options, rank=rank, world_size=size) for rank in range(size)]


def grad_zip(matrix_rank: int = 2, size: int = 1) -> list[GradZip]:
    return [GradZip(matrix_rank=matrix_rank, rank=rank, world_size=size) for rank in range(size)]


SYSTEMS = (power, grad_zip)
WHOLE = slice(192, 200)


def residual(system: Any, names: Any = NAMES) -> Any:
    return torch.cat([system.residuals[name] for name in names])


def approximated(system: Any, matrix: Any, step: int = 0) -> Any:
    (result,) = means_of([system], [matrix.reshape(-1)], step, (tuple(matrix.shape),), ("w",))
    return result.view(matrix.shape)


def least_loss(matrix: Any, matrix_rank: int) -> float:
    return energy(torch.linalg.svdvals(matrix.double())[matrix_rank:])


def test_columns_that_are_zero_dependent_or_not_finite_are_replaced() -> None:
    columns = normal(50).view(10, 5)
    columns[:, 1] = 0
    columns[:, 2] = columns[:, 0] * -3
    columns[4, 3] = torch.nan
    columns[4, 4] = torch.inf
    basis = orthonormalized(columns, lambda: normal(50, 2).view(10, 5))
    assert torch.allclose(basis.T @ basis, torch.eye(5), atol=1e-6)


def test_one_power_iteration_of_noise_is_better_than_random_columns_and_worse_than_the_best() -> None:
    losses, best, trials = 0.0, 0.0, 40
    for trial in range(trials):
        matrix = normal(40 * 24, 10 + trial).view(40, 24)
        losses += energy(matrix - approximated(power(3)[0], matrix, trial)) / energy(matrix)
        best += least_loss(matrix, 3) / energy(matrix)
    assert best / trials < losses / trials < 1 - 3 / 24


def test_alternating_factors_find_the_best_approximation() -> None:
    matrix, system = with_spectrum(40, 24, 0.7), grad_zip(3)[0]
    for step in range(80):
        system.residuals.reset()
        delivered = approximated(system, matrix, step)
    assert 0.999 < energy(matrix - delivered) / least_loss(matrix, 3) < 1.001


@pytest.mark.parametrize("make", SYSTEMS)
def test_with_error_feedback_all_of_a_constant_gradient_arrives(make: Any) -> None:
    matrix, system, steps = normal(20 * 12).view(20, 12), make(2)[0], 200
    total = sum(approximated(system, matrix, step) for step in range(steps))
    assert energy(total / steps - matrix) < 0.01 * energy(matrix)
    assert torch.allclose(total + system.residuals["w"].view(20, 12), matrix * steps, atol=0.01)


@pytest.mark.parametrize("make", SYSTEMS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_ranks_agree_to_the_bit_and_together_lose_what_their_residuals_say(make: Any, size: int) -> None:
    ranks = make(2, size)
    old = torch.zeros(NUMEL)
    for step in range(3):
        grads = [normal(NUMEL, 10 * step + rank) for rank in range(size)]
        results = means_of(ranks, grads, step)
        assert all(torch.equal(results[0], other) for other in results)
        lost = torch.stack([residual(one) for one in ranks]).mean(dim=0)
        wanted = torch.stack(grads).mean(dim=0) + old
        assert torch.allclose(results[0] + lost, wanted, rtol=0, atol=2e-5)
        assert torch.allclose(results[0][WHOLE], torch.stack(grads).mean(dim=0)[WHOLE], rtol=0, atol=1e-6)
        assert lost[WHOLE].count_nonzero() == 0
        assert energy(lost) > 0.1 * energy(wanted)
        old = lost


@pytest.mark.parametrize("make", SYSTEMS)
def test_the_bytes_are_those_that_travel(make: Any) -> None:
    ranks, sent = make(2, 2), []
    for step, is_odd in enumerate((False, True)):
        sent.clear()
        means_of(ranks, [normal()] * 2, step, on_sent=lambda rank, message: sent.append(message) if rank == 0 else None)
        assert {type(message) for message in sent} == {AllReduceSum}
        num_bytes = sum(message.sent.numel() * 4 for message in sent)
        # Two matrices, (16, 12) and (8, 6), and eight elements that are sent whole.
        if make is power:
            assert num_bytes == ranks[0].num_bytes(SHAPES) == 4 * (2 * (16 + 12 + 8 + 6) + 8)
        else:
            wanted = 4 * (2 * (12 + 6 if is_odd else 16 + 8) + 8)
            assert num_bytes == wanted
            assert is_odd or ranks[0].num_bytes(SHAPES) == wanted


@pytest.mark.parametrize("make", SYSTEMS)
def test_a_gradient_of_zeros_leaves_nothing_stuck(make: Any) -> None:
    system, matrix = make(2)[0], normal(20).view(20, 1) @ normal(12, 2).view(1, 12)
    for step in range(3):
        assert not approximated(system, torch.zeros(20, 12), step).any()
    delivered = sum(approximated(system, matrix if step == 3 else matrix * 0, step) for step in range(3, 6))
    assert torch.allclose(delivered, matrix, atol=1e-4)


@pytest.mark.parametrize("make", SYSTEMS)
def test_a_gradient_that_is_not_finite_is_seen_in_its_matrix_and_leaves_the_residuals(make: Any) -> None:
    ranks = make(2, 2)
    means_of(ranks, [normal(NUMEL, 1), normal(NUMEL, 2)])
    before, broken = [residual(one) for one in ranks], normal(NUMEL, 3)
    broken[5] = torch.inf
    results = means_of(ranks, [broken, normal(NUMEL, 4)], 1)
    assert not results[1][:192].view(16, 12)[:, 5].isfinite().any()
    assert all(torch.equal(residual(one), old) for one, old in zip(ranks, before, strict=True))


@pytest.mark.parametrize("make", SYSTEMS)
def test_a_state_that_does_not_fit_is_refused(make: Any) -> None:
    system = make(2)[0]
    with pytest.raises(BinsgdmError, match="load what state_dict"):
        system.load_state_dict({})
    means_of([system], [normal(NUMEL)])
    with pytest.raises(BinsgdmError, match=r"parameter 'conv': a factor of shape .*: must have 3 columns"):
        make(3)[0].load_state_dict(system.state_dict())
    other = make(2)[0]
    state = system.state_dict()
    other.load_state_dict(state | {"factors": state["factors"] | {"conv": torch.zeros(5, 2)}})
    with pytest.raises(BinsgdmError, match=r"parameter 'conv': a factor of shape \(5, 2\) for a matrix"):
        means_of([other], [normal(NUMEL)], 1)
    with pytest.raises(BinsgdmError, match="rank 0 of 1: must be rank 0 of 2"):
        means_of(make(2, 2)[:1], [normal(NUMEL)])


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


@pytest.mark.slow
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

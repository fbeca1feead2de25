"""The paper's update, number by number."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.kernels import functional
from binsgdm.kernels.keys import Key, RandomStream
from binsgdm.kernels.random import thresholds

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


def test_the_momenta_are_averages_of_the_gradient_and_of_its_absolute_value() -> None:
    grad, m, b = torch.tensor([-2.0, 4.0]), torch.tensor([1.0, 0.5]), torch.tensor([1.0, 2.0])
    new_m, new_b, is_finite = functional.momenta(grad, m, b, beta=0.75)
    assert new_m.tolist() == [0.25, 1.375]
    assert new_b.tolist() == [1.25, 2.5]
    assert is_finite.all()
    assert m.tolist() == [1.0, 0.5]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_gradient_that_is_not_finite_leaves_the_momenta_of_its_element(bad: float) -> None:
    m, b = torch.tensor([0.5, 0.5]), torch.tensor([1.0, 1.0])
    new_m, new_b, is_finite = functional.momenta(torch.tensor([bad, 0.0]), m, b, beta=0.5)
    assert new_m.tolist() == [0.5, 0.25]
    assert new_b.tolist() == [1.0, 0.5]
    assert is_finite.tolist() == [False, True]


@given(st.lists(finite, min_size=1, max_size=30), st.floats(0, 1, exclude_max=True))
def test_m_never_exceeds_b_not_even_by_rounding(grads: list[float], beta: float) -> None:
    m, b = torch.zeros(1), torch.zeros(1)
    for grad in grads:
        m, b, _ = functional.momenta(torch.tensor([grad]), m, b, beta=beta)
        assert m.abs() <= b
        assert functional.ratio(m, b).abs() <= 1


def test_a_parameter_that_never_had_a_gradient_has_ratio_zero() -> None:
    assert functional.ratio(torch.tensor([0.0, -0.0]), torch.zeros(2)).tolist() == [0.0, 0.0]


def test_the_ends_are_certain_and_zero_is_half() -> None:
    every_threshold = torch.arange(2**23).float() * 2.0**-22 - 1
    for u, positive in ((1.0, 2**23), (-1.0, 0), (0.0, 2**22), (-0.0, 2**22), (0.5, 3 * 2**21)):
        assert functional.quantize(torch.tensor(u), every_threshold).sum() == positive


@given(finite.filter(lambda u: abs(u) <= 1))
def test_the_expected_sign_is_u_within_one_step_of_the_thresholds(u: float) -> None:
    below = math.ceil((Fraction(u) + 1) * 2**22)
    expected = Fraction(below, 2**22) - 1
    assert u <= expected < Fraction(u) + Fraction(1, 2**22)


def test_two_levels_of_quantization_are_unbiased() -> None:
    steps, ranks, numel = 1000, 3, 960
    u = torch.linspace(-1, 1, numel).repeat(ranks, 1) * torch.tensor([[1.0], [-0.5], [0.25]])
    total = torch.zeros(numel, dtype=torch.float64)
    for step in range(steps):
        rows = []
        for rank in range(ranks):
            key = Key(seed=4, step=step, rank=rank)
            rows.append(functional.quantize(u[rank], thresholds(key, start=0, numel=numel)) * 2.0 - 1.0)
        mean = functional.mean_of_signs(torch.stack(rows))
        merging = Key(seed=4, step=step, stream=RandomStream.MERGE)
        total += functional.quantize(mean, thresholds(merging, start=0, numel=numel)) * 2.0 - 1.0
    wanted = u.double().mean(dim=0)
    sigmas = (total / steps - wanted) / ((1 - wanted**2) / steps).sqrt()
    assert sigmas.abs().max() < 5
    assert abs(sigmas.square().sum().item() - numel) < 5 * (2 * numel) ** 0.5


def test_the_mean_of_signs_is_rounded_once() -> None:
    rows = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    assert functional.mean_of_signs(rows).tolist() == [torch.tensor(1 / 3).item(), torch.tensor(-1 / 3).item()]


def test_weight_decay_is_decoupled_and_the_sign_is_followed_downhill() -> None:
    x, signs = torch.tensor([2.0, 2.0]), torch.tensor([1.0, -1.0])
    assert functional.apply_signs(x, signs, lr=0.5, weight_decay=0.25).tolist() == [1.25, 2.25]
    assert functional.apply_signs(x, signs, lr=0.5, weight_decay=0.25, maximize=True).tolist() == [2.25, 1.25]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_parameter_of_16_bits_is_rounded_once(dtype: torch.dtype) -> None:
    x = torch.full((1,), 1.0, dtype=dtype)
    wanted = torch.tensor(1.0 * torch.tensor(1 - 0.3 * 0.2).item() - torch.tensor(0.3).item())
    assert functional.apply_signs(x, torch.ones(1), lr=0.3, weight_decay=0.2) == wanted.to(dtype)

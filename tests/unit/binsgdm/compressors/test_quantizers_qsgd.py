"""QSGD, QSGDInf and NUQSGD against their theory."""

import math

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.compressors.base import Payload, numel_of
from binsgdm.compressors.quantizers import NUQSGD, QSGD, LevelQuantizer, QSGDInf
from tests.helpers.gradient_buckets import KEY, normal, there_and_back

EACH = [
    QSGD(),
    QSGD(bits=2, block_size=7, coding="elias"),
    QSGD(coding="elias"),
    QSGD(bits=8, block_size=1),
    QSGDInf(),
    QSGDInf(bits=8, block_size=100, coding="elias"),
    NUQSGD(),
    NUQSGD(bits=7, block_size=64),
    NUQSGD(with_zero=False),
    NUQSGD(bits=2, coding="elias"),
]
SHAPES = [((1,),), ((7,),), ((8193,),), ((3, 5), (), (0, 4), (17,)), ((),)]


def exact_variance(quantizer: LevelQuantizer, values: torch.Tensor) -> torch.Tensor:
    """Return the variance of each value of one block, from the definition in float64."""
    wide = values.double()
    norm = wide.abs().max() if isinstance(quantizer, QSGDInf) else wide.square().sum().sqrt()
    half = 2 ** (quantizer.bits - 1)
    if isinstance(quantizer, NUQSGD):
        positive = [2.0**-j for j in range(half - quantizer.with_zero)]
        grid = sorted([-level for level in positive] + [0.0] * quantizer.with_zero + positive)
    else:
        grid = [j / (half - 1) for j in range(1 - half, half)]
    fine = torch.tensor(grid, dtype=torch.float64)
    ratio = wide / norm
    above = torch.bucketize(ratio, fine).clamp(1, len(grid) - 1)
    return (fine[above] - ratio) * (ratio - fine[above - 1]) * norm.square()


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("quantizer", EACH)
def test_a_payload_gives_levels_next_to_the_values(
    quantizer: LevelQuantizer, shapes: tuple[tuple[int, ...], ...]
) -> None:
    values = normal(numel_of(shapes))
    payload = quantizer.compress(values, shapes, KEY)
    restored = quantizer.decompress(payload, shapes, KEY)
    norms = payload.tensors[0].repeat_interleave(quantizer.block_size)[: values.numel()]
    grid = torch.tensor(quantizer.grid)
    assert (restored[:, None] == grid * norms[:, None]).any(dim=1).all()
    widest = (grid[1:] - grid[:-1]).max()
    assert ((restored - values).abs() <= norms * widest * 1.0001).all()


@pytest.mark.parametrize("quantizer", EACH)
def test_huge_and_tiny_values_stay_finite(quantizer: LevelQuantizer) -> None:
    for scale in (1e30, 3e38, 1e-40):
        restored = there_and_back(quantizer, torch.full((300,), scale))
        assert restored.isfinite().all()
        assert 0.3 < (restored.double().mean() / scale).item() < 3


@pytest.mark.parametrize("quantizer", [QSGD(block_size=4), QSGDInf(block_size=4, coding="elias"), NUQSGD(block_size=4)])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_makes_its_block_nan_and_no_other(quantizer: LevelQuantizer, bad: float) -> None:
    values = normal(12)
    values[5] = bad
    assert there_and_back(quantizer, values).isnan().view(3, 4).all(dim=1).tolist() == [False, True, False]
    assert there_and_back(quantizer, values).isnan().sum() == 4


@pytest.mark.parametrize(
    "quantizer",
    [
        QSGD(block_size=32),
        QSGD(bits=2, block_size=32),
        QSGDInf(block_size=32),
        NUQSGD(block_size=32),
        NUQSGD(bits=3, block_size=32, with_zero=False),
    ],
)
def test_the_mean_is_the_value_and_the_spread_that_of_the_theory(quantizer: LevelQuantizer) -> None:
    block, repeats = normal(32), 6000
    variance = exact_variance(quantizer, block)
    drawn = there_and_back(quantizer, block.repeat(repeats)).double().view(repeats, 32)
    is_spread = variance > 1e-6
    assert is_spread.sum() >= 31
    sigmas = ((drawn.mean(dim=0) - block) / (variance / repeats).sqrt())[is_spread]
    assert sigmas.abs().max() < 5
    assert abs(sigmas.square().sum().item() - len(sigmas)) < 5 * (2 * len(sigmas)) ** 0.5
    assert torch.allclose((drawn - block).square().mean(dim=0).sum(), variance.sum(), rtol=0.02)


def error_of(quantizer: LevelQuantizer, values: torch.Tensor) -> float:
    return ((there_and_back(quantizer, values) - values).norm() / values.norm()).item() ** 2


@pytest.mark.parametrize(("bits", "ratio"), [(3, 0.9), (4, 0.06), (5, 0.06)])
def test_nuqsgd_has_a_smaller_variance_than_qsgd_at_equal_bytes(bits: int, ratio: float) -> None:
    values = normal(3 * 8192, seed=9)
    shapes = ((values.numel(),),)
    uniform, nonuniform = QSGD(bits=bits), NUQSGD(bits=bits)
    assert nonuniform.num_bytes(shapes) == uniform.num_bytes(shapes)
    assert 0.005 * error_of(uniform, values) < error_of(nonuniform, values) < ratio * error_of(uniform, values)


def test_without_zero_the_variance_is_smaller_than_qsgds_from_four_bits_on_and_larger_below() -> None:
    values = normal(3 * 8192, seed=9)
    errors = {bits: error_of(NUQSGD(bits=bits, with_zero=False), values) for bits in (3, 4, 5)}
    assert errors[3] > 2 * error_of(QSGD(bits=3), values)
    assert errors[4] < 0.1 * error_of(QSGD(bits=4), values)
    assert errors[5] < 0.1 * error_of(QSGD(bits=5), values)


def test_elias_takes_fewer_bits_than_the_bound_of_the_paper_and_no_fewer_than_the_entropy() -> None:
    n, num_blocks, s = 8192, 16, 7
    quantizer, values = QSGD(bits=4, block_size=n, coding="elias"), normal(n * num_blocks)
    payload = quantizer.compress(values, ((values.numel(),),), KEY)
    bits_a_block = 8 * payload.num_bytes / num_blocks - 32
    kept = s * (s + n**0.5)
    assert bits_a_block < (3 + 1.5 * math.log2(2 * (s**2 + n) / kept)) * kept + 32
    restored = quantizer.decompress(payload, ((values.numel(),),), KEY).view(num_blocks, n)
    codes = (restored / payload.tensors[0][:, None] * s).round()
    shares = codes.unique(return_counts=True)[1].double() / values.numel()
    entropy = -(shares * shares.log2()).sum().item()
    assert entropy < bits_a_block / n < 1.7 * entropy
    assert bits_a_block / n < 4


def test_a_code_that_no_level_has_is_nan_and_not_a_value() -> None:
    broken = Payload(tensors=(torch.ones(1), torch.full((10,), 255, dtype=torch.uint8)))
    assert QSGD().decompress(broken, ((20,),), KEY).isnan().all()

"""What the QSGD family loses stays within theory, from above and from below, whatever the vector."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.compressors.levels import unpack_codes
from binsgdm.compressors.quantizers import NUQSGD, QSGD, ByteGrad, LevelQuantizer, QSGDInf
from binsgdm.kernels.random import Key
from evidence.benchmarks import bounds

NUMEL = 4096


def quantizers(bits: int, block: int) -> dict[str, LevelQuantizer]:
    """Return the QSGD family with this number of bits an element, by name."""
    options: dict[str, Any] = {"bits": bits, "block_size": block}
    family: dict[str, LevelQuantizer] = {"QSGD": QSGD(**options), "QSGDinf": QSGDInf(**options)}
    if bits <= NUQSGD.max_bits:
        family |= {"NUQSGD": NUQSGD(**options), "NUQSGD without 0": NUQSGD(**options, with_zero=False)}
    return family


def largest_bound(quantizer: LevelQuantizer, values: torch.Tensor) -> float:
    """Return the bound on the lost part of the squared norm: the mean over blocks, weighted by their squared norms."""
    total = bound = 0.0
    for block in values.double().split(quantizer.block_size):
        if energy := block.square().sum().item():
            peak = block.abs().max().item() / math.sqrt(energy)
            bound += energy * bounds.variance_bound(quantizer, block.numel(), peak)
            total += energy
    return bound / total


def measured_variance(quantizer: LevelQuantizer, values: torch.Tensor, draws: int) -> float:
    """Return the mean of ||Q(v) - v||^2 / ||v||^2 over some draws."""
    lost, shapes = 0.0, ((values.numel(),),)
    for step in range(draws):
        key = Key(seed=1, step=step)
        restored = quantizer.decompress(quantizer.compress(values, shapes, key), shapes, key)
        lost += (restored.double() - values.double()).square().sum().item()
    return lost / draws / values.double().square().sum().item()


class Untouched(QSGD):
    """A planted error: a quantizer that loses nothing."""

    def decompress(self, payload: Any, shapes: Any, key: Any) -> torch.Tensor:
        return self.untouched

    def compress(self, values: torch.Tensor, shapes: Any, key: Any) -> Any:
        object.__setattr__(self, "untouched", values)
        return super().compress(values, shapes, key)


def drawn(kind: str, seed: int, numel: int = NUMEL) -> torch.Tensor:
    """Return a vector of one of several kinds."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(numel, generator=generator)
    if kind == "heavy":
        return normal.pow(5)
    if kind == "sparse":
        return normal * (torch.rand(numel, generator=generator) < 0.01)
    return torch.ones(numel) if kind == "equal" else normal


def moments(quantizer: LevelQuantizer, values: torch.Tensor) -> tuple[float, float]:
    """Return mean and standard deviation of the lost part of the squared norm by definition, in fp64."""
    grid = torch.tensor(quantizer.grid, dtype=torch.float64)
    mean = variance = 0.0
    for block in values.double().split(quantizer.block_size):
        norm = block.abs().max() if isinstance(quantizer, QSGDInf) else block.norm()
        ratio = (block / norm).nan_to_num(0.0)
        above = torch.bucketize(ratio, grid, right=True).clamp(1, len(grid) - 1)
        up, down = (grid[above] - ratio) * norm, (ratio - grid[above - 1]) * norm
        mean += (up * down).sum().item()
        variance += (up * down * (up - down).square()).sum().item()
    energy = values.double().square().sum().item()
    return mean / energy, math.sqrt(variance) / energy


def exact_variance(quantizer: LevelQuantizer, values: torch.Tensor) -> float:
    """Return the mean of `moments`."""
    return moments(quantizer, values)[0]


def is_within_theory(quantizer: LevelQuantizer, values: torch.Tensor, draws: int = 4) -> bool:
    """Tell whether the measured variance is that of the definition, and that below the bound."""
    measured = measured_variance(quantizer, values, draws)
    wanted, deviation = moments(quantizer, values)
    close = abs(measured - wanted) <= 6 * deviation / math.sqrt(draws) + 1e-4 * wanted
    return close and wanted <= largest_bound(quantizer, values) * 1.0001


@settings(max_examples=25)
@given(
    bits=st.integers(2, 8),
    block=st.sampled_from([16, 512, 4096]),
    kind=st.sampled_from(["normal", "heavy", "sparse"]),
    seed=st.integers(0, 100),
)
def test_the_measured_variance_is_that_of_theory_and_below_the_bound(
    bits: int, block: int, kind: str, seed: int
) -> None:
    for name, quantizer in quantizers(bits, block).items():
        assert is_within_theory(quantizer, drawn(kind, seed)), name


@settings(max_examples=25)
@given(
    exponents=st.lists(st.floats(-30, 0), min_size=1, max_size=40),
    bits=st.integers(2, 7),
    with_zero=st.booleans(),
)
def test_no_vector_loses_more_than_the_bound(exponents: list[float], bits: int, with_zero: bool) -> None:
    values = torch.tensor([2.0**exponent for exponent in exponents], dtype=torch.float64)
    for quantizer in (NUQSGD(bits=bits, with_zero=with_zero), QSGD(bits=bits), QSGDInf(bits=bits)):
        peak = (values.max() / values.norm()).item()
        assert exact_variance(quantizer, values) <= bounds.variance_bound(quantizer, len(exponents), peak) * 1.0001


def nuqsgd_variance_of_the_paper(n: int, s: int) -> float:
    """Return the bound of the paper as this project has it, without the paper at hand.

    Its second line is below what some vectors lose for 2^(2s+1) <= n < 9/4 4^s, such as n = 8192 and s = 6 (4 bits).

    Source: NUQSGD, the theorem on its variance, p = 1/2.
    """
    if n < 2 ** (2 * s + 1):
        return 1 / 8 + n / 4 ** (s + 1)
    return math.sqrt(n) / 2**s - 7 / 8


def worst_for_nuqsgd(n: int, s: int) -> torch.Tensor:
    """Return a vector of which a part is equal values below 2^-s and the rest values in the middle of two levels."""
    x = math.sqrt(n) / 2**s
    count = round((1 - (4 * x / 9) ** 2) * 36)
    values = torch.full((n,), math.sqrt((1 - count / 36) / (n - count)), dtype=torch.float64)
    values[:count] = 1 / 6
    return values


def test_the_second_line_of_the_papers_bound_is_exceeded_at_the_default_settings_and_ours_is_met() -> None:
    n, quantizer = 8192, NUQSGD()
    lost = exact_variance(quantizer, worst_for_nuqsgd(n, 6))
    assert nuqsgd_variance_of_the_paper(n, 6) == pytest.approx(0.5392, abs=1e-4)
    assert 0.99 * bounds.nuqsgd_variance(n, 6) < lost <= bounds.nuqsgd_variance(n, 6)
    assert lost > 1.05 * nuqsgd_variance_of_the_paper(n, 6)


@pytest.mark.parametrize("kind", ["normal", "heavy", "sparse", "equal"])
@pytest.mark.parametrize("bits", range(2, 9))
def test_elias_codes_are_below_their_bound_and_independent_levels_not_below_their_entropy(bits: int, kind: str) -> None:
    values, shapes, key = drawn(kind, bits, 8192), ((8192,),), Key(seed=1)
    for name, quantizer in quantizers(bits, 8192).items():
        bound = bounds.coded_bits_bound(quantizer, 8192)
        if name in {"QSGD", "NUQSGD"} and bound is not None:  # whose levels have a zero, which Elias codes leave out
            codes = unpack_codes(quantizer.compress(values, shapes, key).tensors[1], bits, 8192)
            shares = codes.unique(return_counts=True)[1].double() / 8192
            elias = type(quantizer)(bits=bits, block_size=8192, coding="elias")
            coded_bits = 8 * elias.compress(values, shapes, key).num_bytes / 8192
            assert -(shares * shares.log2()).sum().item() < coded_bits < bound


@settings(max_examples=50)
@given(
    values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40),
    dtype=st.sampled_from(["int8", "fp8_e4m3", "fp8_e5m2"]),
    block_size=st.integers(1, 16),
)
def test_no_value_is_farther_from_its_byte_than_half_a_step(values: list[float], dtype: Any, block_size: int) -> None:
    compressor, tensor, shapes = ByteGrad(dtype=dtype, block_size=block_size), torch.tensor(values), ((len(values),),)
    whole = compressor.decompress(compressor.compress(tensor, shapes, Key(seed=1)), shapes, Key(seed=1))
    for block, restored in zip(tensor.double().split(block_size), whole.double().split(block_size), strict=True):
        largest = block.abs().max()
        part, least = {"int8": (0.0, 254), "fp8_e4m3": (1 / 16, 458752), "fp8_e5m2": (1 / 8, 7.5e9)}[dtype]
        bound = torch.maximum(block.abs() * part, largest / least)
        # A subnormal step is itself rounded.
        assert ((restored - block).abs() <= bound * 1.00001 + 1e-40).all()

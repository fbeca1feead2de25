"""Rounding to levels, and codes as packed bits."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from hypothesis import given
from hypothesis import strategies as st

from binsgdm.compressors import levels
from binsgdm.kernels.random import Key

GRIDS = [
    levels.uniform_levels(2),
    levels.uniform_levels(8),
    levels.exponential_levels(4, with_zero=True),
    levels.exponential_levels(4, with_zero=False),
]


def test_the_levels_of_four_bits_are_those_of_the_papers() -> None:
    assert levels.uniform_levels(4)[7:] == tuple(j / 7 for j in range(8))
    assert levels.exponential_levels(4, with_zero=True)[7:] == (0, 2**-6, 2**-5, 2**-4, 2**-3, 2**-2, 2**-1, 1)
    assert levels.exponential_levels(4, with_zero=False)[8:] == (2**-7, 2**-6, 2**-5, 2**-4, 2**-3, 2**-2, 2**-1, 1)


def rounded(ratios: torch.Tensor, grid: tuple[float, ...]) -> torch.Tensor:
    codes = levels.round_to_levels(ratios, torch.ones(1), grid, Key(seed=1), block_size=ratios.numel())
    return levels.levels_of(codes, grid, 256)


@pytest.mark.parametrize("kernels", ["numba", "reference"])
@pytest.mark.parametrize("grid", GRIDS)
def test_a_level_stays_and_any_other_value_goes_to_a_neighbour(
    grid: tuple[float, ...], kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernels == "reference":
        monkeypatch.setenv("BINSGDM_KERNELS", kernels)
    exact = torch.tensor(grid).repeat(50)
    assert torch.equal(rounded(exact, grid), exact)
    ratios = torch.linspace(-1, 1, 4001)
    for ratio, level in zip(ratios.tolist(), rounded(ratios, grid).tolist(), strict=True):
        between = [one for one in torch.tensor(grid).tolist() if min(ratio, level) < one < max(ratio, level)]
        assert not between


@given(st.integers(1, 8), st.lists(st.integers(0, 255), min_size=1, max_size=40))
def test_codes_of_any_width_survive_packing(bits: int, numbers: list[int]) -> None:
    codes = torch.tensor([number % 2**bits for number in numbers], dtype=torch.uint8)
    packed = levels.pack_codes(codes, bits)
    assert packed.numel() == -(-len(numbers) * bits // 8)
    assert torch.equal(levels.unpack_codes(packed, bits, len(numbers)), codes)
    text = "".join(f"{code:0{bits}b}" for code in codes.tolist()).ljust(8 * packed.numel(), "0")
    assert "".join(f"{byte:08b}" for byte in packed.tolist()) == text


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_trits_survive_packing_five_in_a_byte(numbers: list[int]) -> None:
    codes = torch.tensor(numbers, dtype=torch.uint8)
    packed = levels.pack_trits(codes)
    assert packed.numel() == -(-len(numbers) // 5)
    assert torch.equal(levels.unpack_trits(packed, len(numbers)), codes)


def test_the_scale_of_what_is_not_finite_is_nan() -> None:
    for bad in (torch.nan, torch.inf, -torch.inf):
        values = torch.tensor([bad, 1.0, 2.0])
        for norm in ("l2", "max"):
            assert levels.block_scales(values, block_size=2, norm=norm).isnan().tolist() == [True, False]

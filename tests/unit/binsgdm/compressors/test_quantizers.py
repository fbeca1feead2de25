"""QSGD, QSGDInf and NUQSGD against their theory; ByteGrad: what a byte holds, and what its ranks exchange."""

from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm import AllGather, AllToAll
from binsgdm.compressors.base import Payload, numel_of
from binsgdm.compressors.quantizers import NUQSGD, QSGD, ByteGrad, LevelQuantizer, QSGDInf
from binsgdm.compressors.registry import make
from tests.helpers.gradient_buckets import KEY, means_of, normal, there_and_back

DTYPES = ("int8", "fp8_e4m3", "fp8_e5m2")
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


@pytest.mark.parametrize(
    "quantizer",
    [
        QSGD(block_size=4), QSGDInf(block_size=4, coding="elias"), NUQSGD(block_size=4),
        *(ByteGrad(dtype=dtype, block_size=4) for dtype in DTYPES),
    ],
)  # fmt: skip
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_makes_its_block_nan_and_no_other(quantizer: Any, bad: float) -> None:
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


def test_a_code_that_no_level_has_is_nan_and_not_a_value() -> None:
    broken = Payload(tensors=(torch.ones(1), torch.full((10,), 255, dtype=torch.uint8)))
    assert QSGD().decompress(broken, ((20,),), KEY).isnan().all()


def test_an_integer_is_the_nearest_multiple_of_a_127th_of_the_largest_a_tie_the_even_one() -> None:
    values = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 0.49, 0.51, -126.7, 3.0])
    assert there_and_back(ByteGrad(), values).tolist() == [127, 0, 2, 2, 0, -2, 0, 1, -127, 3]


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("fp8_e4m3", [448, 416, -240, 18, 1.125, 2**-6, 2**-9, 0]),
        ("fp8_e5m2", [57344, 49152, -1280, 1.25, 2**-14, 2**-16, 0]),
    ],
)
def test_what_an_eight_bit_float_holds_is_kept(dtype: Any, values: list[float]) -> None:
    assert there_and_back(ByteGrad(dtype=dtype), torch.tensor(values)).tolist() == values


@pytest.mark.parametrize(("dtype", "kept", "lost"), [("fp8_e4m3", 2**-9, 2**-11), ("fp8_e5m2", 2**-16, 2**-18)])
def test_what_is_too_small_for_an_eight_bit_float_becomes_zero(dtype: Any, kept: float, lost: float) -> None:
    largest = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}[dtype]
    assert there_and_back(ByteGrad(dtype=dtype), torch.tensor([largest, kept, lost])).tolist() == [largest, kept, 0]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_by_default_all_ranks_scatter_reduce_and_agree_on_the_mean(dtype: str, world_size: int) -> None:
    given = [normal(8193, seed=rank) for rank in range(world_size)]
    messages = []
    ends = [make("byte_grad", rank=rank, world_size=world_size, dtype=dtype) for rank in range(world_size)]
    means = means_of(
        ends,
        given,
        shapes=((8193,),),
        on_sent=lambda rank, message: messages.append(type(message)) if rank == 0 else None,
    )
    assert messages == [AllToAll, AllGather]
    assert all(torch.equal(mean, means[0]) for mean in means)
    exact = torch.stack(given).double().mean(dim=0)
    lost = ((means[0] - exact).norm() / exact.norm()).item()
    # Two roundings, the second of a mean that is the smaller the more ranks there are.
    low, high = {"int8": (2e-3, 2e-2), "fp8_e4m3": (1.5e-2, 6e-2), "fp8_e5m2": (3e-2, 1.2e-1)}[dtype]
    assert low < lost < high

"""QSGD, QSGDInf and NUQSGD against their theory."""

import math

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from benchmarks.bounds import variance_bound
from binsgdm.comm import RankContext, run_in_lockstep
from binsgdm.compressors.base import GradientBucket, Payload
from binsgdm.compressors.error_feedback import WithoutFeedback
from binsgdm.compressors.qsgd import NUQSGD, QSGD, LevelQuantizer, QSGDInf
from binsgdm.errors import BinsgdmError
from binsgdm.kernels.random import Key

KEY = Key(seed=5, step=2, rank=1)
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


def gaussian(numel: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def sizes(shapes: tuple[tuple[int, ...], ...]) -> int:
    return sum(math.prod(shape) for shape in shapes)


def there_and_back(quantizer: LevelQuantizer, values: torch.Tensor, key: Key = KEY) -> torch.Tensor:
    shapes = ((values.numel(),),)
    return quantizer.decompress(quantizer.compress(values, shapes, key), shapes, key)


def exact_variances(quantizer: LevelQuantizer, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return second and fourth moments of the error of each value of one block, from the definition in float64."""
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
    up, down = (fine[above] - ratio) * norm, (ratio - fine[above - 1]) * norm
    return up * down, up * down * (up.pow(3) + down.pow(3)) / (up + down)


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("quantizer", EACH)
def test_a_payload_has_the_stated_bytes_and_gives_levels_next_to_the_values(
    quantizer: LevelQuantizer, shapes: tuple[tuple[int, ...], ...]
) -> None:
    values = gaussian(sizes(shapes))
    before = values.clone()
    payload = quantizer.compress(values, shapes, KEY)
    assert torch.equal(values, before)
    stated = quantizer.num_bytes(shapes)
    assert stated is None if quantizer.coding == "elias" else stated == payload.num_bytes
    restored = quantizer.decompress(payload, shapes, KEY)
    assert restored.shape == values.shape
    norms = payload.tensors[0].repeat_interleave(quantizer.block_size)[: values.numel()]
    grid = torch.tensor(quantizer.grid)
    assert (restored[:, None] == grid * norms[:, None]).any(dim=1).all()
    widest = (grid[1:] - grid[:-1]).max()
    assert ((restored - values).abs() <= norms * widest * 1.0001).all()


@pytest.mark.parametrize("quantizer", EACH)
@pytest.mark.parametrize("numel", [1, 7, 8193])
def test_zeros_stay_zeros(quantizer: LevelQuantizer, numel: int) -> None:
    assert not there_and_back(quantizer, torch.zeros(numel)).any()


@pytest.mark.parametrize("quantizer", EACH)
def test_huge_and_tiny_values_stay_finite(quantizer: LevelQuantizer) -> None:
    for scale in (1e30, 3e38, 1e-40):
        restored = there_and_back(quantizer, torch.full((300,), scale))
        assert restored.isfinite().all()
        assert 0.3 < (restored.double().mean() / scale).item() < 3


@pytest.mark.parametrize("quantizer", [QSGD(block_size=4), QSGDInf(block_size=4, coding="elias"), NUQSGD(block_size=4)])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_makes_its_block_nan_and_no_other(quantizer: LevelQuantizer, bad: float) -> None:
    values = gaussian(12)
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
    block, repeats = gaussian(32), 6000
    variance, _ = exact_variances(quantizer, block)
    drawn = there_and_back(quantizer, block.repeat(repeats)).double().view(repeats, 32)
    is_spread = variance > 1e-6
    assert is_spread.sum() >= 31
    sigmas = ((drawn.mean(dim=0) - block) / (variance / repeats).sqrt())[is_spread]
    assert sigmas.abs().max() < 5
    assert abs(sigmas.square().sum().item() - len(sigmas)) < 5 * (2 * len(sigmas)) ** 0.5
    assert torch.allclose((drawn - block).square().mean(dim=0).sum(), variance.sum(), rtol=0.02)


@pytest.mark.parametrize("numel", [64, 8192])
@pytest.mark.parametrize("bits", [3, 4, 6])
@pytest.mark.parametrize("make", [QSGD, QSGDInf, NUQSGD])
def test_the_variance_is_exactly_the_theory_and_below_the_bound_of_the_paper(
    make: type[LevelQuantizer], bits: int, numel: int
) -> None:
    quantizer, values = make(bits=bits, block_size=numel), gaussian(numel, seed=bits)
    second, fourth = exact_variances(quantizer, values)
    repeats, peak = 16384 // numel, (values.abs().max() / values.norm()).item()
    drawn = there_and_back(quantizer, values.repeat(repeats)).double().view(repeats, numel)
    error = (drawn - values).square().sum() / repeats
    sigma = ((fourth - second.square()).sum() / repeats).sqrt()
    assert abs(error - second.sum()) < 5 * sigma
    assert second.sum() / values.double().square().sum() <= variance_bound(quantizer, numel, peak) * 1.0001


def error_of(quantizer: LevelQuantizer, values: torch.Tensor) -> float:
    return ((there_and_back(quantizer, values) - values).norm() / values.norm()).item() ** 2


@pytest.mark.parametrize(("bits", "ratio"), [(3, 0.9), (4, 0.06), (5, 0.06)])
def test_nuqsgd_has_a_smaller_variance_than_qsgd_at_equal_bytes(bits: int, ratio: float) -> None:
    values = gaussian(3 * 8192, seed=9)
    shapes = ((values.numel(),),)
    uniform, nonuniform = QSGD(bits=bits), NUQSGD(bits=bits)
    assert nonuniform.num_bytes(shapes) == uniform.num_bytes(shapes)
    assert 0.005 * error_of(uniform, values) < error_of(nonuniform, values) < ratio * error_of(uniform, values)


def test_without_zero_the_variance_is_smaller_than_qsgds_from_four_bits_on_and_larger_below() -> None:
    values = gaussian(3 * 8192, seed=9)
    errors = {bits: error_of(NUQSGD(bits=bits, with_zero=False), values) for bits in (3, 4, 5)}
    assert errors[3] > 2 * error_of(QSGD(bits=3), values)
    assert errors[4] < 0.1 * error_of(QSGD(bits=4), values)
    assert errors[5] < 0.1 * error_of(QSGD(bits=5), values)


def test_elias_takes_fewer_bits_than_the_bound_of_the_paper_and_no_fewer_than_the_entropy() -> None:
    n, num_blocks, s = 8192, 16, 7
    quantizer, values = QSGD(bits=4, block_size=n, coding="elias"), gaussian(n * num_blocks)
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


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("quantizer", [QSGD(), QSGD(coding="elias"), QSGDInf(bits=3), NUQSGD()])
def test_all_ranks_agree_to_the_bit_on_the_mean_of_what_they_sent(quantizer: LevelQuantizer, world_size: int) -> None:
    shapes = ((3, 5), (), (0, 4), (8193,))
    values = [gaussian(sizes(shapes), seed=rank) * 10.0**rank for rank in range(world_size)]
    contexts = [
        RankContext(rank=rank, world_size=world_size, ranks_per_node=1, seed=3, step=7) for rank in range(world_size)
    ]
    parameters = tuple(range(len(shapes)))
    buckets = [GradientBucket(values=one, parameters=parameters, shapes=shapes) for one in values]
    means = run_in_lockstep(
        [WithoutFeedback(quantizer).mean(buckets[context.rank], context) for context in contexts], 1
    )
    assert all(torch.equal(mean, means[0]) for mean in means)
    keys = [Key(seed=3, step=7, rank=rank) for rank in range(world_size)]
    payloads = [quantizer.compress(one, shapes, key) for one, key in zip(values, keys, strict=True)]
    sent = [quantizer.decompress(payload, shapes, key) for payload, key in zip(payloads, keys, strict=True)]
    assert torch.allclose(means[0], torch.stack(sent).mean(dim=0), rtol=1e-6, atol=1e-6 * values[-1].norm().item())


@pytest.mark.parametrize(
    ("make", "settings", "sentence"),
    [
        (QSGD, {"bits": 1}, r"^qsgd: bits: 1: must be a whole number from 2 to 8; "),
        (QSGD, {"bits": 9}, r"^qsgd: bits: 9: "),
        (QSGD, {"bits": 4.0}, r"^qsgd: bits: 4\.0: "),
        (QSGDInf, {"bits": True}, r"^qsgd_inf: bits: True: "),
        (QSGDInf, {"block_size": 0}, r"^qsgd_inf: block_size: 0: must be a whole number from 1 to 1048576; "),
        (NUQSGD, {"block_size": 2**20 + 1}, r"^nuqsgd: block_size: 1048577: "),
        (NUQSGD, {"bits": 8}, r"^nuqsgd: bits: 8: must be a whole number from 2 to 7; "),
        (NUQSGD, {"coding": "huffman"}, r"^nuqsgd: coding: 'huffman': must be one of \['packed', 'elias'\]; "),
        (NUQSGD, {"with_zero": "no"}, r"^nuqsgd: with_zero: 'no': must be one of "),
        (NUQSGD, {"with_zero": False, "coding": "elias"}, r"^nuqsgd: coding: 'elias' without a level of zero: must "),
    ],
)
def test_a_setting_out_of_range_is_one_sentence(
    make: type[LevelQuantizer], settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(BinsgdmError, match=sentence):
        make(**settings)


@pytest.mark.parametrize("quantizer", [QSGD(), QSGD(coding="elias")])
def test_wrong_values_and_payloads_are_one_sentence(quantizer: LevelQuantizer) -> None:
    shapes = ((20,),)
    for empty in ((), ((0,),), ((0, 3), (2, 0))):
        with pytest.raises(BinsgdmError, match=r"^qsgd: tensors of shapes .* must have at least one element; "):
            quantizer.compress(torch.zeros(0), empty, KEY)
    for wrong in (torch.zeros(19), torch.zeros(20, dtype=torch.float64), torch.zeros(4, 5)):
        with pytest.raises(BinsgdmError, match=r"^qsgd: .* must be flat float32"):
            quantizer.compress(wrong, shapes, KEY)
    payload = quantizer.compress(torch.ones(20), shapes, KEY)
    others = [
        Payload(tensors=payload.tensors[:1]),
        Payload(tensors=payload.tensors[::-1]),
        QSGD(block_size=10, coding=quantizer.coding).compress(torch.ones(20), shapes, KEY),
    ]
    for other in others:
        with pytest.raises(BinsgdmError, match=r"^qsgd: a payload of "):
            quantizer.decompress(other, shapes, KEY)


def test_a_code_that_no_level_has_is_nan_and_not_a_value() -> None:
    broken = Payload(tensors=(torch.ones(1), torch.full((10,), 255, dtype=torch.uint8)))
    assert QSGD().decompress(broken, ((20,),), KEY).isnan().all()

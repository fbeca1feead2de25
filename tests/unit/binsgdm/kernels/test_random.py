"""Philox against its published vectors; the draws against what uniform and independent numbers would do.

Every statistical check allows 5 standard deviations, or an equally rare tail: a sound generator fails one check in 1.7
million, and with the fixed seeds below the same draws pass for ever. Each kind of check is shown to fail on a planted
defect."""

from collections.abc import Callable

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from torch import Tensor

from binsgdm.errors import BinsgdmError
from binsgdm.kernels import random
from binsgdm.kernels.bits import pack_signs, unpack_signs
from binsgdm.kernels.functional import packed_numel
from binsgdm.kernels.random import GROUP_NUMEL, Key, draws, philox, thresholds

SIGMAS = 5.0
NUMEL = 1 << 20
SEEDS = (0, 1, 0x0123456789ABCDEF)


# Statistics that are normal with mean 0 and deviation 1 if the draws are uniform and independent.


def chi_square(counts: Tensor) -> float:
    """Return how far counts are from equal, by Wilson and Hilferty's cube root."""
    expected = counts.sum().item() / counts.numel()
    degrees = counts.numel() - 1
    statistic = ((counts - expected) ** 2 / expected).sum().item() / degrees
    spread = 2 / (9 * degrees)
    return float((statistic ** (1 / 3) - (1 - spread)) / spread**0.5)


def correlation(a: Tensor, b: Tensor) -> float:
    """Return the correlation of two uniform samples."""
    a, b = (sample.double() / 2**32 - 0.5 for sample in (a, b))
    return float((a * b).mean() * 12 * a.numel() ** 0.5)


def differing_bits(a: Tensor, b: Tensor) -> float:
    """Return how far the number of differing bits is from half of them."""
    bits = sum(((a ^ b) >> shift & 1).sum().item() for shift in range(32))
    total = 32 * a.numel()
    return float((bits - total / 2) / (total / 4) ** 0.5)


def bins(sample: Tensor, shift: int, num_bits: int) -> Tensor:
    """Return how often each value of some bits occurs."""
    return torch.bincount(sample >> shift & (1 << num_bits) - 1, minlength=1 << num_bits).double()


def check_uniform(sample: Tensor) -> None:
    for shift in range(32):
        assert abs(chi_square(bins(sample, shift, 1))) < SIGMAS, f"bit {shift}"
    for shift in (0, 9, 16, 24):
        assert abs(chi_square(bins(sample, shift, 8))) < SIGMAS, f"bits from {shift}"
    assert abs(chi_square(bins(sample, 16, 16))) < SIGMAS, "upper half"


def check_order(sample: Tensor) -> None:
    """Kolmogorov-Smirnov: the largest distance to the uniform distribution, and that it is not too small."""
    ordered = sample.sort().values.double() / 2**32
    grid = torch.arange(sample.numel(), dtype=torch.float64) / sample.numel()
    distance = (ordered - grid).abs().max().item() * sample.numel() ** 0.5
    assert 0.25 < distance < 2.7  # tails of 1e-7 and 1e-6 of Kolmogorov's distribution


def check_serial(sample: Tensor) -> None:
    for lag in (*range(1, 41), 64, 128, 1024, 4096):
        assert abs(correlation(sample[:-lag], sample[lag:])) < SIGMAS, f"lag {lag}"
    for lag in (1, 8, 32):
        pairs = (sample[:-lag] >> 26) * 64 + (sample[lag:] >> 26)
        assert abs(chi_square(torch.bincount(pairs, minlength=4096).double())) < SIGMAS, f"pairs, lag {lag}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("check", [check_uniform, check_order, check_serial])
def test_draws_of_consecutive_elements_are_uniform_and_independent(seed: int, check: Callable[[Tensor], None]) -> None:
    check(draws(Key(seed=seed, step=7, rank=3, stream=1), start=0, numel=NUMEL))


@pytest.mark.slow
@pytest.mark.parametrize("check", [check_uniform, check_order, check_serial])
def test_draws_of_one_element_over_steps_are_uniform_and_independent(check: Callable[[Tensor], None]) -> None:
    steps = torch.arange(NUMEL)
    check(philox((torch.zeros_like(steps), steps, 3, 1), 5)[0])


@pytest.mark.slow
@pytest.mark.parametrize("word", [1, 2, 3])
def test_draws_of_neighbouring_steps_ranks_and_streams_are_independent(word: int) -> None:
    names = ("step", "rank", "stream")
    for value, other in ((0, 1), (1, 2), (7, 8), (0, 2**31), (100, 101)):
        a, b = (draws(Key(**{"seed": 9, names[word - 1]: v}), start=0, numel=NUMEL) for v in (value, other))
        assert abs(correlation(a, b)) < SIGMAS
        assert abs(differing_bits(a, b)) < SIGMAS
        for lag in (1, 8, 32):
            assert abs(correlation(a[:-lag], b[lag:])) < SIGMAS


def test_draws_of_neighbouring_seeds_are_independent() -> None:
    for seed in (0, 1, 2**32 - 1, 2**32, 2**64 - 2):
        a, b = (draws(Key(seed=s), start=0, numel=NUMEL) for s in (seed, seed + 1))
        assert abs(correlation(a, b)) < SIGMAS
        assert abs(differing_bits(a, b)) < SIGMAS


@pytest.mark.slow
def test_flipping_one_input_bit_flips_half_of_the_output() -> None:
    elements = torch.arange(20_000)
    plain = philox((elements, 5, 6, 7), 8)
    for bit in range(32):
        for word in range(4):
            counter = [elements, 5, 6, 7]
            counter[word] = counter[word] ^ (1 << bit)
            for before, after in zip(plain, philox(tuple(counter), 8), strict=True):
                assert abs(differing_bits(before, after)) < SIGMAS, f"counter word {word}, bit {bit}"
    for bit in range(64):
        for before, after in zip(plain, philox((elements, 5, 6, 7), 8 ^ 1 << bit), strict=True):
            assert abs(differing_bits(before, after)) < SIGMAS, f"seed bit {bit}"


def test_every_element_is_rounded_without_bias_over_many_steps() -> None:
    steps = 4000
    u = torch.linspace(-1, 1, 1025)
    positive = sum((thresholds(Key(seed=3, step=s), start=64, numel=1025) < u).double() for s in range(steps))
    assert positive[0] == 0
    assert positive[-1] == steps
    p = (1 + u[1:-1].double()) / 2
    sigmas = (positive[1:-1] - steps * p) / (steps * p * (1 - p)).sqrt()
    assert sigmas.abs().max() < SIGMAS
    # Not too good either: the squares add up to a chi-square of 1023 degrees.
    assert abs(sigmas.square().sum().item() - 1023) < SIGMAS * (2 * 1023) ** 0.5


# Planted defects: what each check is there to see.


def test_a_stuck_bit_a_bias_and_an_echo_are_found() -> None:
    sample = draws(Key(seed=1), start=0, numel=NUMEL)
    rare = draws(Key(seed=2), start=0, numel=NUMEL) % 100 == 0
    with pytest.raises(AssertionError):
        check_uniform(torch.where(rare, sample | 1 << 9, sample))
    with pytest.raises(AssertionError):
        check_order(torch.where(rare, sample // 2, sample))
    with pytest.raises(AssertionError):
        check_serial(torch.where(rare, sample.roll(8), sample))


# What the generator is.


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_vectors_of_random123(counter: tuple[int, ...], key: int, words: tuple[int, ...]) -> None:
    given = (torch.tensor([counter[0]]), *counter[1:])
    assert tuple(word.item() for word in philox(given, key)) == words


def test_word_w_of_lane_l_belongs_to_element_8w_plus_l_of_its_group() -> None:
    key = Key(seed=2**40 + 1, step=2, rank=3, stream=4)
    given = draws(key, start=0, numel=3 * GROUP_NUMEL)
    for element in (0, 7, 8, 31, 32, 77):
        group, word, lane = element // 32, element % 32 // 8, element % 8
        words = philox((torch.tensor([8 * group + lane]), 2, 3, 4), key.seed)
        assert given[element] == words[word].item()


@pytest.mark.parametrize("start", [0, 1, 8, 31, 32, 1000, 2**34 - 100])
def test_draws_do_not_depend_on_where_a_segment_starts(start: int) -> None:
    key = Key(seed=5)
    whole = draws(key, start=start // 32 * 32, numel=start % 32 + 100)
    assert torch.equal(draws(key, start=start, numel=100), whole[start % 32 :])


def test_thresholds_are_multiples_of_two_to_minus_22_from_minus_one_to_below_one() -> None:
    t = thresholds(Key(seed=1), start=0, numel=NUMEL)
    assert t.min() >= -1
    assert t.max() < 1
    steps = t.double() * 2**22
    assert torch.equal(steps, steps.round())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": -1}, "Key: seed: -1: must be at least 0 and below 2**64"),
        ({"seed": 2**64}, "Key: seed: 18446744073709551616: must be at least 0 and below 2**64"),
        ({"seed": 0, "step": 2**32}, "Key: step: 4294967296: must be at least 0 and below 2**32"),
        ({"seed": 0, "rank": -1}, "Key: rank: -1: must be at least 0 and below 2**32"),
        ({"seed": 0, "stream": 2**32}, "Key: stream: 4294967296: must be at least 0 and below 2**32"),
    ],
)
def test_a_key_out_of_range_is_refused(given: dict[str, int], message: str) -> None:
    with pytest.raises(BinsgdmError) as caught:
        Key(**given)
    assert str(caught.value) == message


@pytest.mark.parametrize(("start", "numel"), [(-8, 4), (2**34 - 8, 9)])
def test_elements_without_a_counter_are_refused(start: int, numel: int) -> None:
    with pytest.raises(BinsgdmError, match=r"draws: elements .*must be in \[0, 2\*\*34\]"):
        draws(Key(seed=0), start=start, numel=numel)


# What shaped rounding starts from.


@pytest.mark.parametrize("limit", [1, 2, 8, 32767])
def test_dither_takes_every_residual_but_one_alike(limit: int) -> None:
    residuals = random.dither(Key(seed=6, rank=3), start=7, numel=1 << 17, limit=limit)
    drawn = draws(Key(seed=6, rank=3), start=7, numel=1 << 17)
    assert residuals.dtype == torch.int16
    assert torch.equal(residuals.to(torch.int64), ((drawn >> 9) * (2 * limit) >> 23) - limit)
    parts = min(2 * limit, 64)
    counts = torch.bincount((residuals.to(torch.int64) + limit) * parts // (2 * limit), minlength=parts)
    assert counts.numel() == parts  # limit itself would be one more
    assert abs(chi_square(counts.double())) < SIGMAS


def test_dither_is_made_in_pieces_of_any_size_that_join(monkeypatch: pytest.MonkeyPatch) -> None:
    key, numel = Key(seed=7, rank=1), 2**14 + 1000
    whole = random.dither(key, start=40, numel=numel, limit=9)
    for size in (96, 2**8, 2**14):
        monkeypatch.setitem(random._DITHER_NUMEL, "cpu", size)
        assert torch.equal(random.dither(key, start=40, numel=numel, limit=9), whole)
        assert torch.equal(random.dither(key, start=140, numel=numel - 100, limit=9), whole[100:])
    assert random.dither(key, start=0, numel=0, limit=9).numel() == 0
    with pytest.raises(BinsgdmError, match="draws: elements -1 to 4"):
        random.dither(key, start=-1, numel=5, limit=9)


def test_a_gpu_draws_a_dither_in_pieces_of_its_own_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert random._DITHER_NUMEL["cuda"] == 64 * random._DITHER_NUMEL["cpu"]
    pieces: list[int] = []
    drawn, empty = random.draws, torch.empty

    def noted(key: Key, *, start: int, numel: int, device: str) -> Tensor:
        assert device == "cuda:0"
        pieces.append(numel)
        return drawn(key, start=start, numel=numel)

    monkeypatch.setenv("BINSGDM_KERNELS", "reference")
    monkeypatch.setattr(random, "draws", noted)
    monkeypatch.setattr(torch, "empty", lambda numel, *, dtype, device: empty(numel, dtype=dtype))
    monkeypatch.setitem(random._DITHER_NUMEL, "cuda", 1000)
    residuals = random.dither(Key(seed=7), start=0, numel=2500, limit=9, device="cuda:0")
    monkeypatch.undo()
    assert pieces == [1000, 1000, 500]
    assert torch.equal(residuals, random.dither(Key(seed=7), start=0, numel=2500, limit=9))


@pytest.mark.parametrize(("numel", "num_bytes"), [(0, 0), (1, 1), (8, 1), (9, 2), (800, 100)])
def test_eight_signs_take_a_byte(numel: int, num_bytes: int) -> None:
    assert packed_numel(numel) == num_bytes
    assert pack_signs(torch.ones(numel, dtype=torch.bool)).numel() == num_bytes


def test_the_first_sign_is_the_most_significant_bit() -> None:
    positive = torch.zeros(16, dtype=torch.bool)
    positive[0] = positive[9] = True
    assert pack_signs(positive).tolist() == [0b1000_0000, 0b0100_0000]


def test_bits_after_the_last_sign_are_zero() -> None:
    assert pack_signs(torch.ones(11, dtype=torch.bool)).tolist() == [0xFF, 0b1110_0000]


def test_a_set_bit_is_plus_one() -> None:
    assert unpack_signs(torch.tensor([0b1010_0000], dtype=torch.uint8), 4).tolist() == [1, -1, 1, -1]

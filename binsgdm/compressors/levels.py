"""Rounding to a few levels: the levels of a quantizer, unbiased rounding to them, and the codes as packed bits.

Levels are fractions of a scale (a norm of the block or tensor) and lie in [-1, 1], ascending, zero in the middle if
there is one. The code of a value is the number of its level.

What is not finite cannot be quantized and is not hidden: its scale becomes NaN, and so does every value of its block
or tensor after decompression.

Shape letters: N elements, B blocks, L levels, P bytes.
"""

import math
from collections.abc import Iterator
from functools import cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from binsgdm.kernels import host_loops
from binsgdm.kernels.bits import pack_signs, packed_numel
from binsgdm.kernels.host_tensors import constant
from binsgdm.kernels.random import Key, uniforms

MAX_BLOCK_SIZE = 2**20
Norm = Literal["l2", "max"]

_FP32_MAX = torch.finfo(torch.float32).max
_CACHED_NUMEL = 1 << 15
_TRITS_PER_BYTE = 5
_TRIT_WEIGHTS = (81, 27, 9, 3, 1)


def uniform_levels(bits: int) -> tuple[float, ...]:
    """Return the levels j / s, j from -s to s, with s = 2^(bits-1) - 1: one fewer than there are codes.

    Source: QSGD, Alistarh et al., NeurIPS 2017.

    Example:
        >>> uniform_levels(2)
        (-1.0, 0.0, 1.0)
    """
    count = 2 ** (bits - 1) - 1
    return tuple(j / count for j in range(-count, count + 1))


def exponential_levels(bits: int, *, with_zero: bool) -> tuple[float, ...]:
    """Return the levels +-1, +-1/2, +-1/4 and so on, as many as there are codes; with zero, one fewer.

    Source: NUQSGD, Ramezani-Kebrya et al., JMLR 2021, with p = 1/2: 0, 2^-s, ..., 1/2, 1, so that
    s = 2^(bits-1) - 2. Without zero, as the levels of AMQ, Faghri et al., NeurIPS 2020.

    Example:
        >>> exponential_levels(3, with_zero=True)
        (-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0)
        >>> exponential_levels(2, with_zero=False)
        (-1.0, -0.5, 0.5, 1.0)
    """
    count = 2 ** (bits - 1) - with_zero
    above = tuple(2.0**-j for j in reversed(range(count)))
    return tuple(-level for level in reversed(above)) + (0.0,) * with_zero + above


def block_scales(values: Tensor, *, block_size: int, norm: Norm) -> Tensor:
    """Return the norm of every block of `block_size` values; the last block may be shorter.

    Shape:
        values: (N,); returned: (B,) fp32, B = ceil(N / block_size).
    """
    if norm == "max":
        if host_loops.is_used_on(values.device):
            return host_loops.largest(values, block_size)
        return as_scales(in_blocks(values, block_size).abs().amax(dim=1))
    # fp64: the square of an fp32 value above 1.8e19 is infinite in fp32.
    squares = [part.to(torch.float64).square_().sum(dim=1) for part in _parts(values, block_size)]
    return as_scales(torch.cat(squares).sqrt_())


def _parts(values: Tensor, block_size: int) -> Iterator[Tensor]:
    """Yield the blocks some at a time, on a CPU so many that what is made of them stays in the caches."""
    count = max(2, _CACHED_NUMEL // block_size) if values.device.type == "cpu" else values.numel()
    last = values.numel() // block_size // count * count * block_size
    # Two blocks at least: torch adds up a single one in another order, on several threads.
    last -= count * block_size if last and values.numel() - last <= block_size else 0
    yield from torch.split(values[:last].view(-1, block_size), count)
    yield in_blocks(values[last:], block_size)


def in_blocks(values: Tensor, block_size: int) -> Tensor:
    """Return (N,) as (B, block_size), the end filled with zeros."""
    return torch.nn.functional.pad(values, (0, -values.numel() % block_size)).view(-1, block_size)


def as_scales(scales: Tensor) -> Tensor:
    """Return scales as fp32: NaN where not finite, and at most the largest number of fp32."""
    # An infinite norm would decode to 0 x inf or to infinities of either sign; NaN says "not finite" for the whole
    # block, and a GradScaler then skips the step on all ranks.
    return scales.clamp(max=_FP32_MAX).to(torch.float32).masked_fill(~scales.isfinite(), torch.nan)


def per_element(scales: Tensor, *, block_size: int, numel: int) -> Tensor:
    """Return the scale of every element from those of the blocks.

    Shape:
        scales: (B,); returned: (N,).
    """
    return scales[:, None].expand(-1, block_size).reshape(-1)[:numel]


def fractions(values: Tensor, scales: Tensor) -> Tensor:
    """Return values / scales in [-1, 1]; 0 where the scale is zero or NaN.

    Shape:
        values, scales, returned: (N,).
    """
    # The clamp takes off rounding: a value that is its block's norm may divide to just above 1.
    return (values / scales).nan_to_num(nan=0.0).clamp(-1.0, 1.0)


def round_to_levels(ratios: Tensor, levels: tuple[float, ...], key: Key) -> Tensor:
    """Round each ratio to the level below or above, at random, so that the mean is the ratio.

    The mean of the level is the ratio to within 2^-22; a ratio that is a level stays that level.

    Args:
        ratios: in [-1, 1].
        levels: ascending, from -1 to 1.
        key: what the draws come from; element i takes draw i.

    Returns:
        The number of the level.

    Shape:
        ratios: (N,) fp32; returned: (N,) uint8.

    Source: QSGD, Alistarh et al., NeurIPS 2017, and for any levels NUQSGD, Ramezani-Kebrya et al., JMLR 2021.
    """
    grid = constant(levels, torch.float32, ratios.device)
    # The first level above each ratio; 1 itself has none and takes the last pair.
    above = torch.searchsorted(grid, ratios, right=True).clamp_(1, len(levels) - 1)
    low = grid[above - 1]
    chance = (ratios - low) / (grid[above] - low)
    # Up with the chance (ratio - low) / (high - low): the expected level is the ratio. Middles of parts of [0, 1), so
    # that rounding errors of the chance go both ways.
    drawn = uniforms(key, start=0, numel=ratios.numel(), device=ratios.device)
    return (above - 1 + (drawn < chance)).to(torch.uint8)


def rounded(values: Tensor, scales: Tensor, levels: tuple[float, ...], key: Key, *, block_size: int = 1) -> Tensor:
    """Do `round_to_levels` of the fractions that values are of their blocks' scales.

    Shape:
        values: (N,); scales: (B,), B = ceil(N / block_size); returned: (N,) uint8.
    """
    if host_loops.is_used_on(values.device):
        return host_loops.round_to_levels(values, scales, block_size, levels, key.unsigned_words())
    whole = per_element(scales, block_size=block_size, numel=values.numel())
    return round_to_levels(fractions(values, whole), levels, key)


def scaled(codes: Tensor, levels: tuple[float, ...], num_codes: int, scales: Tensor, *, block_size: int = 1) -> Tensor:
    """Return `levels_of` codes times their blocks' scales.

    Shape:
        codes: (N,) uint8; scales: (B,), B = ceil(N / block_size); returned: (N,) fp32.
    """
    if host_loops.is_used_on(codes.device):
        return host_loops.levels_times_scales(codes, _table(levels, num_codes, codes.device), scales, block_size)
    whole = per_element(scales, block_size=block_size, numel=codes.numel())
    return levels_of(codes, levels, num_codes) * whole


def levels_of(codes: Tensor, levels: tuple[float, ...], num_codes: int) -> Tensor:
    """Return the levels of codes below `num_codes`; NaN for a code that no level has.

    Shape:
        codes: (N,) uint8; returned: (N,) fp32.
    """
    table = _table(levels, num_codes, codes.device)
    if host_loops.is_used_on(codes.device):
        return host_loops.levels_times_scales(codes, table, torch.ones(1, device="cpu"), codes.numel())
    return table[codes.to(torch.int64)]


def _table(levels: tuple[float, ...], num_codes: int, device: torch.device) -> Tensor:
    return constant(levels + (math.nan,) * (num_codes - len(levels)), torch.float32, device)


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Pack codes below 2^bits one after the other, each with its most significant bit first.

    Shape:
        codes: (N,) uint8; returned: (P,) uint8, P = ceil(N bits / 8).

    Example:
        >>> pack_codes(torch.tensor([1, 2, 3], dtype=torch.uint8), 4)
        tensor([18, 48], dtype=torch.uint8)
    """
    if host_loops.is_used_on(codes.device):
        return host_loops.pack_codes(codes, bits)
    return pack_signs((codes[:, None] >> _bit_shifts(bits, codes) & 1).view(-1))


def unpack_codes(packed: Tensor, bits: int, numel: int) -> Tensor:
    """Undo `pack_codes`.

    Shape:
        packed: (P,) uint8; returned: (N,) uint8.
    """
    if host_loops.is_used_on(packed.device):
        return host_loops.unpack_codes(packed, bits, numel)
    stream = (packed[:, None] >> _bit_shifts(8, packed) & 1).view(-1)[: numel * bits].view(numel, bits)
    return (stream << _bit_shifts(bits, packed)).sum(dim=1, dtype=torch.uint8)


def _bit_shifts(bits: int, like: Tensor) -> Tensor:
    return torch.arange(bits - 1, -1, -1, dtype=torch.uint8, device=like.device)


def packed_codes_numel(numel: int, bits: int) -> int:
    """Return how many bytes `numel` codes of `bits` bits take."""
    return packed_numel(numel * bits)


def pack_trits(codes: Tensor) -> Tensor:
    """Pack codes 0, 1 and 2, five in a byte, as the digits of a number in base 3, the first the most significant.

    Shape:
        codes: (N,) uint8; returned: (P,) uint8, P = ceil(N / 5).

    Example:
        >>> pack_trits(torch.tensor([0, 0, 0, 1, 2, 2], dtype=torch.uint8))
        tensor([  5, 162], dtype=torch.uint8)
    """
    if host_loops.is_used_on(codes.device):
        return host_loops.pack_trits(codes)
    # 3^5 = 243 of 256 values of a byte: 1.6 bits a trit, against log2(3) = 1.585.
    digits = in_blocks(codes, _TRITS_PER_BYTE)
    return (digits * _trit_weights(codes)).sum(dim=1, dtype=torch.uint8)


def unpack_trits(packed: Tensor, numel: int) -> Tensor:
    """Undo `pack_trits`; a byte above 242, which it never writes, gives a code 3.

    Shape:
        packed: (P,) uint8; returned: (N,) uint8.
    """
    if host_loops.is_used_on(packed.device):
        return torch.from_numpy(np.take(_trits_of_bytes(), packed.numpy(), axis=0).reshape(-1)[:numel])
    return _digits(packed)[:numel]


@cache
def _trits_of_bytes() -> NDArray[np.uint8]:
    """Return the five trits of every byte."""
    return _digits(torch.arange(256, dtype=torch.uint8, device="cpu")).view(-1, _TRITS_PER_BYTE).numpy()


def _digits(packed: Tensor) -> Tensor:
    # Every quotient but the first needs the remainder by 3; the first is not reduced, so that an invalid byte shows as
    # 3.
    digits = packed[:, None] // _trit_weights(packed)
    return torch.cat([digits[:, :1], digits[:, 1:] % 3], dim=1).view(-1)


def packed_trits_numel(numel: int) -> int:
    """Return how many bytes `numel` trits take."""
    return -(-numel // _TRITS_PER_BYTE)


def _trit_weights(like: Tensor) -> Tensor:
    return constant(_TRIT_WEIGHTS, torch.uint8, like.device)

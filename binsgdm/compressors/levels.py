"""Rounding to a few levels: the levels of a quantizer, unbiased rounding to them, and the codes as packed bits.

Levels are fractions of a scale (a norm of the block or tensor) and lie in [-1, 1], ascending, zero in the middle if
there is one. The code of a value is the number of its level.

What is not finite cannot be quantized and is not hidden: its scale becomes NaN, and so does every value of its block
or tensor after decompression.

Shape letters: N elements, B blocks.
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
from binsgdm.kernels.bits import pack_signs
from binsgdm.kernels.host_tensors import constant
from binsgdm.kernels.keys import Key
from binsgdm.kernels.random import uniforms

MAX_BLOCK_SIZE = 2**20
Norm = Literal["l2", "max"]

_FP32_MAX = torch.finfo(torch.float32).max
_CACHED_NUMEL = 1 << 15
TRITS_PER_BYTE = 5
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
    """Return the norm of every block of `block_size` values, (B,) fp32; the last block may be shorter."""
    if norm == "max":
        if host_loops.is_used_on(values.device):
            return host_loops.filled("largest", -(-values.numel() // block_size), values, block_size, per=block_size)
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
    """Return the scale of every element, (N,), from those of the blocks, (B,)."""
    return scales[:, None].expand(-1, block_size).reshape(-1)[:numel]


def round_to_levels(
    values: Tensor, scales: Tensor, levels: tuple[float, ...], key: Key, *, block_size: int = 1
) -> Tensor:
    """Return the number of the level below or above each fraction of a scale, (N,) uint8, whose mean is the fraction.

    Of a fraction that is a level it is always that one, of others drawn: element i takes draw i, and the mean is right
    to within 2^-22.

    Source: QSGD, Alistarh et al., NeurIPS 2017, and for any levels NUQSGD, Ramezani-Kebrya et al., JMLR 2021.
    """
    if host_loops.is_used_on(values.device):
        return host_loops.filled(
            "round_to_levels", values.numel(), values, scales, block_size, *host_loops.tables(levels),
            key.unsigned_words(), dtype=torch.uint8,
        )  # fmt: skip
    # 0 where the scale is zero or NaN. The clamp takes off rounding: a value that is its block's norm may divide to
    # just above 1.
    ratios = (values / per_element(scales, block_size=block_size, numel=values.numel())).nan_to_num(nan=0.0)
    ratios = ratios.clamp(-1.0, 1.0)
    grid = constant(levels, torch.float32, ratios.device)
    # The first level above each ratio; 1 itself has none and takes the last pair.
    above = torch.searchsorted(grid, ratios, right=True).clamp_(1, len(levels) - 1)
    low = grid[above - 1]
    chance = (ratios - low) / (grid[above] - low)
    # Up with the chance (ratio - low) / (high - low): the expected level is the ratio. Middles of parts of [0, 1), so
    # that rounding errors of the chance go both ways.
    drawn = uniforms(key, start=0, numel=ratios.numel(), device=ratios.device)
    return (above - 1 + (drawn < chance)).to(torch.uint8)


def levels_of(
    codes: Tensor, levels: tuple[float, ...], num_codes: int, scales: Tensor | None = None, *, block_size: int = 1
) -> Tensor:
    """Return the levels, (N,) fp32, of codes below `num_codes`, times their blocks' scales; NaN where there is none."""
    table = constant(levels + (math.nan,) * (num_codes - len(levels)), torch.float32, codes.device)
    if host_loops.is_used_on(codes.device):
        if scales is None:
            scales, block_size = torch.ones(1, device="cpu"), codes.numel()
        return host_loops.filled("levels_times_scales", codes.numel(), codes, table, scales, block_size)
    values = table[codes.to(torch.int64)]
    return values if scales is None else values * per_element(scales, block_size=block_size, numel=codes.numel())


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Pack codes below 2^bits, uint8, one after the other, each with its most significant bit first.

    Example:
        >>> pack_codes(torch.tensor([1, 2, 3], dtype=torch.uint8), 4)
        tensor([18, 48], dtype=torch.uint8)
    """
    if host_loops.is_used_on(codes.device):
        return host_loops.filled(
            "pack_codes", -(-codes.numel() * bits // 8), codes, bits, dtype=torch.uint8, numel=codes.numel()
        )
    return pack_signs((codes[:, None] >> _bit_shifts(bits, codes) & 1).view(-1))


def unpack_codes(packed: Tensor, bits: int, numel: int) -> Tensor:
    """Undo `pack_codes`."""
    if host_loops.is_used_on(packed.device):
        return host_loops.filled("unpack_codes", numel, packed, bits, dtype=torch.uint8)
    stream = (packed[:, None] >> _bit_shifts(8, packed) & 1).view(-1)[: numel * bits].view(numel, bits)
    return (stream << _bit_shifts(bits, packed)).sum(dim=1, dtype=torch.uint8)


def _bit_shifts(bits: int, like: Tensor) -> Tensor:
    return torch.arange(bits - 1, -1, -1, dtype=torch.uint8, device=like.device)


def pack_trits(codes: Tensor) -> Tensor:
    """Pack codes 0, 1 and 2, five in a byte, as the digits of a number in base 3, the first the most significant.

    Example:
        >>> pack_trits(torch.tensor([0, 0, 0, 1, 2, 2], dtype=torch.uint8))
        tensor([  5, 162], dtype=torch.uint8)
    """
    if host_loops.is_used_on(codes.device):
        return host_loops.filled(
            "pack_trits", -(-codes.numel() // TRITS_PER_BYTE), codes, dtype=torch.uint8, numel=codes.numel()
        )
    # 3^5 = 243 of 256 values of a byte: 1.6 bits a trit, against log2(3) = 1.585.
    digits = in_blocks(codes, TRITS_PER_BYTE)
    return (digits * _trit_weights(codes)).sum(dim=1, dtype=torch.uint8)


def unpack_trits(packed: Tensor, numel: int) -> Tensor:
    """Undo `pack_trits`; a byte above 242, which it never writes, gives a code 3."""
    if host_loops.is_used_on(packed.device):
        return torch.from_numpy(np.take(_trits_of_bytes(), packed.numpy(), axis=0).reshape(-1)[:numel])
    return _digits(packed).view(-1)[:numel]


@cache
def _trits_of_bytes() -> NDArray[np.uint8]:
    return _digits(torch.arange(256, dtype=torch.uint8, device="cpu")).numpy()


def _digits(packed: Tensor) -> Tensor:
    """Return the five trits of every byte."""
    # Every quotient but the first needs the remainder by 3; the first is not reduced, so that an invalid byte shows as
    # 3.
    digits = packed[:, None] // _trit_weights(packed)
    return torch.cat([digits[:, :1], digits[:, 1:] % 3], dim=1)


def _trit_weights(like: Tensor) -> Tensor:
    return constant(_TRIT_WEIGHTS, torch.uint8, like.device)

"""Draws and packed signs on a GPU, in one pass over memory, where plain torch makes tens of them."""

# mypy: disable-error-code="no-untyped-def, import-not-found, import-untyped, untyped-decorator"
# ruff: noqa: PLR0913, PLR0917 - a program takes its pointers and numbers one by one

import torch
import triton
import triton.language as tl
from torch import Tensor

from binsgdm.kernels import triton_support
from binsgdm.kernels.triton_tiles import (
    TILE,
    draws_of_tile,
    inside_of,
    is_whole,
    load,
    load_signs,
    num_tiles,
    store,
    store_signs,
    thresholds_of,
)

_TILES = tl.constexpr(4)  # of a program
_CHUNK = _TILES.value * TILE.value


def write_draws(out: Tensor, words: triton_support.Words, *, start: int) -> None:
    """Write draws to int64 (N), or thresholds to fp32 (N)."""
    num_programs = triton.cdiv(start % 32 + out.numel(), _CHUNK)
    triton_support.launch(
        _write_draws, num_programs, out, start, out.numel(), *words, are_thresholds=out.dtype == torch.float32
    )


def pack(positive: Tensor, out: Tensor) -> None:
    """Pack booleans, or whole numbers that are 0 or 1, (N) into uint8 (P)."""
    numel = positive.numel()
    # A boolean is a byte: a view, where any other dtype is copied.
    values = positive.view(torch.uint8) if positive.dtype == torch.bool else positive.to(torch.uint8)
    triton_support.launch(_pack, triton.cdiv(numel, _CHUNK), values, out, numel)


def unpack(packed: Tensor, out: Tensor) -> None:
    """Unpack uint8 (P) into fp32 signs (N)."""
    triton_support.launch(_unpack, triton.cdiv(out.numel(), _CHUNK), packed, out, out.numel())


@triton.jit(do_not_specialize=["start", "numel", "step", "rank", "stream", "seed_low", "seed_high"])
def _write_draws(out, start, numel, seed_low, seed_high, step, rank, stream, are_thresholds: tl.constexpr):
    start, numel = tl.cast(start, tl.int64), tl.cast(numel, tl.int64)
    # Draws may start at any element, so that a tile's first one lies at any element of `out`.
    first = tl.program_id(0).to(tl.int64) * (_TILES * TILE) - (start & 31)
    draws = seed_low, seed_high, step, rank, stream, (start + first) >> 5
    if is_whole(first, numel, _TILES):
        _write_chunk(out, first, numel, draws, are_thresholds, False)
    else:
        _write_chunk(out, first, numel, draws, are_thresholds, True)


@triton.jit
def _write_chunk(out, first, numel, draws, are_thresholds: tl.constexpr, masked: tl.constexpr):
    for tile in range(num_tiles(first, numel, _TILES) if masked else _TILES):
        offset = first + tile * TILE
        draw = draws_of_tile(draws, tile * (TILE // 32), TILE)
        values = thresholds_of(draw) if are_thresholds else draw.to(tl.int64)
        store(out + offset, values, inside_of(offset, numel), masked)


@triton.jit(do_not_specialize=["out", "numel"])
def _pack(positive, out, numel):
    numel = tl.cast(numel, tl.int64)
    first = tl.program_id(0).to(tl.int64) * (_TILES * TILE)
    if is_whole(first, numel, _TILES):
        _pack_chunk(positive, out, first, numel, False)
    else:
        _pack_chunk(positive, out, first, numel, True)


@triton.jit
def _pack_chunk(positive, out, first, numel, masked: tl.constexpr):
    for tile in range(num_tiles(first, numel, _TILES) if masked else _TILES):
        offset = first + tile * TILE
        inside = inside_of(offset, numel)
        store_signs(out, load(positive + offset, inside, masked) != 0, offset, numel, inside, masked)


@triton.jit(do_not_specialize=["packed", "numel"])
def _unpack(packed, out, numel):
    numel = tl.cast(numel, tl.int64)
    first = tl.program_id(0).to(tl.int64) * (_TILES * TILE)
    if is_whole(first, numel, _TILES):
        _unpack_chunk(packed, out, first, numel, False)
    else:
        _unpack_chunk(packed, out, first, numel, True)


@triton.jit
def _unpack_chunk(packed, out, first, numel, masked: tl.constexpr):
    for tile in range(num_tiles(first, numel, _TILES) if masked else _TILES):
        offset = first + tile * TILE
        positive = load_signs(packed, offset, numel, 4, masked)
        store(out + offset, tl.where(positive, 1.0, -1.0), inside_of(offset, numel), masked)

"""What runs on the GPU to make one vector of many, in Triton; see `triton_programs`.

Shape letters: N elements, K vectors, P bytes.
"""

# mypy: disable-error-code="no-untyped-def, import-not-found, import-untyped, untyped-decorator, assignment"
# ruff: noqa: PLR0913, PLR0917 - a program takes its pointers and numbers one by one

import triton
import triton.language as tl

from binsgdm.kernels.triton_rounding import split
from binsgdm.kernels.triton_tiles import TILE, inside_of, load, load_signs, philox, store, store_signs

MERGE_GROUPS = tl.constexpr(128)  # one a thread


@triton.jit(do_not_specialize=["num_vectors", "numel", "aligned"])
def mean(parts, out, num_vectors, numel, aligned):
    """Write the mean of K vectors."""
    numel = tl.cast(numel, tl.int64)
    first = tl.program_id(0).to(tl.int64) * TILE
    if (aligned != 0) & (first + TILE <= numel):
        # A row begins at a multiple of 4 elements: written so, the compiler sees it.
        _mean_tile(parts, out, num_vectors, first, numel, numel // 4 * 4, False)
    else:
        _mean_tile(parts, out, num_vectors, first, numel, numel, True)


@triton.jit
def _mean_tile(parts, out, num_vectors, first, numel, row_numel, masked: tl.constexpr):
    inside = inside_of(first, numel)
    total = load(parts + first, inside, masked)
    # In the order of ranks, as in the reference: fp32 sums depend on their order.
    for vector in range(1, num_vectors):
        total += load(parts + vector * row_numel + first, inside, masked)
    store(out + first, tl.div_rn(total, tl.zeros([TILE], tl.float32) + num_vectors), inside, masked)


@triton.jit(
    do_not_specialize=[
        "packed", "out", "num_vectors", "num_bytes", "start", "numel", "aligned",
        "step", "rank", "stream", "seed_low", "seed_high",
    ]
)  # fmt: skip
def merge(
    packed, out, limits, num_vectors, num_bytes, start, numel, aligned, seed_low, seed_high, step, rank, stream,
    width: tl.constexpr,
):  # fmt: skip
    """Write the packed signs of Q of the mean of K sign vectors."""
    start, numel, num_bytes = tl.cast(start, tl.int64), tl.cast(numel, tl.int64), tl.cast(num_bytes, tl.int64)
    first = tl.program_id(0).to(tl.int64) * (32 * MERGE_GROUPS) - (start >> 3 & 3) * 8
    draws = seed_low, seed_high, step, rank, stream, (start + first) >> 5
    # One group of 32 elements a thread: a word of each vector, and all draws of eight counters.
    byte = (first >> 3) + tl.arange(0, MERGE_GROUPS).to(tl.int64) * 4
    whole = (aligned != 0) & (first >= 0) & (first + 32 * MERGE_GROUPS <= numel)
    if whole:
        counts = _count_bits(packed, byte, num_vectors, num_bytes, width, False)
    else:
        counts = _count_bits(packed, byte, num_vectors, num_bytes, width, True)
    word = tl.zeros([MERGE_GROUPS], tl.uint32)
    for lane in tl.static_range(8):
        draw = philox(draws, tl.arange(0, MERGE_GROUPS) * 8 + lane)
        for run in tl.static_range(4):
            # Lane 0 is the most significant bit of its byte, as in `binsgdm.kernels.bits`.
            count = _count_at(counts, 8 * run + 7 - lane, width)
            word |= ((draw[run] >> 9) < tl.load(limits + count)).to(tl.uint32) << (8 * run + 7 - lane)
    if whole:
        tl.store((out + byte).to(tl.pointer_type(tl.uint32)), word)
    else:
        for run in tl.static_range(4):
            place = byte + run
            # Bits of elements that are not there are 0.
            num_bits = tl.minimum(tl.maximum(numel - place * 8, 0), 8).to(tl.uint32)
            bits = (word >> (8 * run)) & (0xFF00 >> num_bits)
            tl.store(out + place, bits.to(tl.uint8), mask=(place >= 0) & (place < num_bytes))


@triton.jit(do_not_specialize=["out", "packed", "num_vectors", "num_bytes", "numel", "aligned"])
def merge_shaped(residual, packed, out, num_vectors, num_bytes, numel, aligned):
    """Write the packed signs of the mean of K sign vectors, shaped."""
    numel, num_bytes = tl.cast(numel, tl.int64), tl.cast(num_bytes, tl.int64)
    first = tl.program_id(0).to(tl.int64) * TILE
    if (aligned != 0) & (first + TILE <= numel):
        _merge_shaped_tile(residual, packed, out, num_vectors, num_bytes, first, numel, False)
    else:
        _merge_shaped_tile(residual, packed, out, num_vectors, num_bytes, first, numel, True)


@triton.jit
def _merge_shaped_tile(residual, packed, out, num_vectors, num_bytes, first, numel, masked: tl.constexpr):
    inside = inside_of(first, numel)
    total = tl.zeros([TILE], tl.int32) - num_vectors
    for vector in range(num_vectors):
        # A sign more is two more than without it.
        total += load_signs(packed + vector * num_bytes, first, numel, 4, masked).to(tl.int32) * 2
    positive = split(total, residual + first, num_vectors, inside, masked)
    store_signs(out, positive, first, numel, inside, masked)


@triton.jit
def _count_bits(packed, byte, num_vectors, num_bytes, width: tl.constexpr, masked: tl.constexpr):
    counts = _no_counts(width)
    for vector in range(num_vectors):
        counts = _count(counts, _load_word(packed + vector * num_bytes, byte, num_bytes, masked), width)
    return counts


@triton.jit
def _no_counts(width: tl.constexpr):
    zero = tl.zeros([MERGE_GROUPS], tl.uint32)
    if width == 8:
        counts = zero, zero, zero, zero, zero, zero, zero, zero
    else:
        counts = zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero
    return counts


@triton.jit
def _count(c, word, width: tl.constexpr):
    """Add the bits of a word to fields of `width` bits: bit p to field p // width of count p % width."""
    if width == 8:
        counts = (
            _add(c[0], word, 0, 8), _add(c[1], word, 1, 8), _add(c[2], word, 2, 8), _add(c[3], word, 3, 8),
            _add(c[4], word, 4, 8), _add(c[5], word, 5, 8), _add(c[6], word, 6, 8), _add(c[7], word, 7, 8),
        )  # fmt: skip
    else:
        counts = (
            _add(c[0], word, 0, 16), _add(c[1], word, 1, 16), _add(c[2], word, 2, 16), _add(c[3], word, 3, 16),
            _add(c[4], word, 4, 16), _add(c[5], word, 5, 16), _add(c[6], word, 6, 16), _add(c[7], word, 7, 16),
            _add(c[8], word, 8, 16), _add(c[9], word, 9, 16), _add(c[10], word, 10, 16), _add(c[11], word, 11, 16),
            _add(c[12], word, 12, 16), _add(c[13], word, 13, 16), _add(c[14], word, 14, 16), _add(c[15], word, 15, 16),
        )  # fmt: skip
    return counts


@triton.jit
def _add(count, word, place: tl.constexpr, width: tl.constexpr):
    return count + ((word >> place) & (0x01010101 if width == 8 else 0x00010001))


@triton.jit
def _count_at(counts, place: tl.constexpr, width: tl.constexpr):
    return ((counts[place % width] >> (place // width * width)) & ((1 << width) - 1)).to(tl.int32)


@triton.jit
def _load_word(packed, byte, num_bytes, masked: tl.constexpr):
    if masked:
        word = tl.zeros([MERGE_GROUPS], tl.uint32)
        for run in tl.static_range(4):
            place = byte + run
            found = tl.load(packed + place, mask=(place >= 0) & (place < num_bytes), other=0)
            word |= found.to(tl.uint32) << (8 * run)
    else:
        word = tl.load((packed + byte).to(tl.pointer_type(tl.uint32)))
    return word

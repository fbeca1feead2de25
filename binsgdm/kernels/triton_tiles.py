"""What Triton programs are made of: tiles of a tensor, signs as bits, and the draws of `binsgdm.kernels.random`.

A program does a chunk of some tiles, one after another. A chunk that is whole, at addresses that are multiples of 16
bytes, is read and written without masks, 16 bytes a thread; any other takes masks, element by element. Chunks begin
where a group of 32 draws does: before the tensor, where the tensor begins inside a group.

The words of a key come as the tuple (seed's low word, seed's high word, step, rank, stream, group): all draws are those
of groups of 32 elements from `group` on.
"""

# mypy: disable-error-code="no-untyped-def, import-not-found, import-untyped, untyped-decorator"
# ruff: noqa: PLR0913, PLR0917 - as a program

import triton
import triton.language as tl

from binsgdm.kernels.functional import SCALE

TILE = tl.constexpr(1024)


@triton.jit
def inside_of(offset, numel):
    """Return which elements of a tile lie in the tensor."""
    low = tl.minimum(tl.maximum(-offset, 0), TILE).to(tl.int32)
    high = tl.minimum(tl.maximum(numel - offset, 0), TILE).to(tl.int32)
    return (tl.arange(0, TILE) >= low) & (tl.arange(0, TILE) < high)


@triton.jit
def load(pointer, inside, masked: tl.constexpr):
    """Load a tile from where it begins."""
    return load_each(pointer + tl.arange(0, TILE), inside, masked)


@triton.jit
def load_each(pointers, inside, masked: tl.constexpr):
    """Load a tile from where its elements are."""
    if masked:
        return tl.load(pointers, mask=inside, other=0.0)
    return tl.load(pointers)


@triton.jit
def store(pointer, values, inside, masked: tl.constexpr):
    """Store a tile to where it begins."""
    if masked:
        tl.store(pointer + tl.arange(0, TILE), values, mask=inside)
    else:
        tl.store(pointer + tl.arange(0, TILE), values)


@triton.jit
def store_signs(out, positive, offset, numel, inside, masked: tl.constexpr):
    """Pack a tile of signs, eight a byte."""
    if masked:
        # Bits of elements that are not there are 0.
        positive = positive & inside
    # Lane 0 is the most significant bit, as in `binsgdm.kernels.bits`. Four signs are a thread's, a byte two threads'.
    halves = tl.sum(tl.reshape(positive, [TILE // 4, 4]).to(tl.int32) * (8 >> tl.arange(0, 4)[None, :]), axis=1)
    halves = tl.reshape(halves, [TILE // 8, 2]) << (4 - 4 * tl.arange(0, 2)[None, :])
    packed = tl.sum(halves, axis=1).to(tl.uint8)
    byte = (offset >> 3) + tl.arange(0, TILE // 8)
    if masked:
        tl.store(out + byte, packed, mask=(byte >= 0) & (byte < (numel + 7) >> 3))
    else:
        tl.store(out + byte, packed)


@triton.jit
def load_signs(packed, offset, numel, per_thread: tl.constexpr, masked: tl.constexpr):
    """Return which elements of a tile have the sign +1."""
    # One byte for `per_thread` neighbours, so that each thread loads the byte of its own elements.
    byte = (offset >> 3) + (tl.arange(0, TILE // per_thread) * per_thread >> 3)
    if masked:
        bits = tl.load(packed + byte, mask=(byte >= 0) & (byte < (numel + 7) >> 3), other=0)
    else:
        bits = tl.load(packed + byte)
    bits = tl.reshape(tl.broadcast_to(bits[:, None], [TILE // per_thread, per_thread]), [TILE])
    return ((bits.to(tl.int32) >> (7 - tl.arange(0, TILE) % 8)) & 1) != 0


@triton.jit
def num_tiles(first, numel, tiles):
    """Return how many tiles of a chunk have an element of the tensor, or an element before it."""
    return tl.minimum(tl.cdiv(numel - first, TILE), tiles).to(tl.int32)


@triton.jit
def is_whole(first, numel, tiles):
    """Tell whether all of a chunk lies in the tensor."""
    return (first >= 0) & (first + tiles * TILE <= numel)


@triton.jit
def thresholds_of(draw):
    """Return the thresholds of draws: k * 2**-22 - 1 of their upper 23 bits."""
    # As the mantissa of a number in [2, 4), 23 bits are 2 + k * 2**-22: the difference is exact.
    return (draw >> 9 | 0x40000000).to(tl.float32, bitcast=True) - 3.0


@triton.jit
def draws_of_tile(draws, first_group, numel: tl.constexpr):
    """Return the draws of a tile, in the order of its elements."""
    words = philox(draws, tl.arange(0, numel // 4) + first_group * 8)
    # Word w of counter 8 r + l is the draw of element 8 w + l of group r.
    words = tl.join(tl.join(words[0], words[2]), tl.join(words[1], words[3]))
    words = tl.permute(tl.reshape(words, [numel // 32, 8, 4]), [0, 2, 1])
    return tl.reshape(words, [numel])


@triton.jit
def philox(draws, counter):
    """Return the four words of Philox4x32-10 for counters after the first of a chunk; see `binsgdm.kernels.random`."""
    seed_low, seed_high, step, rank, stream, group = draws
    c0 = (group * 8).to(tl.uint32) + counter.to(tl.uint32)
    c1, c2, c3 = tl.cast(step, tl.uint32), tl.cast(rank, tl.uint32), tl.cast(stream, tl.uint32)
    k0, k1 = tl.cast(seed_low, tl.uint32), tl.cast(seed_high, tl.uint32)
    for _ in tl.static_range(10):
        # One 64-bit product has both halves, where `tl.philox` multiplies twice.
        p0, p1 = c0.to(tl.uint64) * 0xD2511F53, c2.to(tl.uint64) * 0xCD9E8D57
        c0, c1 = (p1 >> 32).to(tl.uint32) ^ c1 ^ k0, p1.to(tl.uint32)
        c2, c3 = (p0 >> 32).to(tl.uint32) ^ c3 ^ k1, p0.to(tl.uint32)
        k0 += 0x9E3779B9
        k1 += 0xBB67AE85
    return c0, c1, c2, c3


_SCALE = tl.constexpr(SCALE)
_MAGIC = tl.constexpr(1.5 * 2**23)  # where the step of fp32 is 1: a sum rounds to a whole number, half to even
_MAGIC_BITS = tl.constexpr(0x4B400000)


@triton.jit
def shape(u, gain, residual, inside, masked: tl.constexpr):
    """Round a tile of u, add its residuals and store what is left; return where the sums are not negative."""
    amplified = u * gain
    # In this order: NaN compares false and becomes -1.
    raised = tl.where(amplified > -1.0, amplified, -1.0)
    clipped = tl.where(raised < 1.0, raised, 1.0)
    rounded = clipped * (_SCALE * 1.0) + _MAGIC
    return split(rounded.to(tl.int32, bitcast=True) - _MAGIC_BITS, residual, _SCALE, inside, masked)


@triton.jit
def split(values, residual, unit, inside, masked: tl.constexpr):
    """Add a tile of residuals, take a unit of the same sign away and store what is left; return the signs."""
    # Four a thread, as of what is rounded.
    quads = tl.max_contiguous(tl.arange(0, TILE), 4)
    total = values + load_each(residual + quads, inside, masked).to(tl.int32)
    positive = total >= 0
    store(residual, (total - tl.where(positive, unit, -unit)).to(tl.int16), inside, masked)
    return positive

"""The draws of `binsgdm.random` on a GPU, in Triton.

A key's words come as the tuple (seed's low word, seed's high word, step, rank, stream, group): all draws are those of
groups of 32 elements from `group` on.
"""

# mypy: disable-error-code="no-untyped-def, import-not-found, import-untyped, untyped-decorator"

import triton
import triton.language as tl


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
    """Return the four words of Philox4x32-10 for counters after the first of a chunk; see `binsgdm.random`."""
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

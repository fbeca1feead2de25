"""Loops of quantizers and sparsifiers on a CPU, compiled by numba: plain Python that LLVM turns into vectors.

What plain torch computes in dozens of passes with temporaries of the whole bucket is done here block by block, in
arrays that stay in the caches, with the bits of the plain form. Each works on the elements [lo, hi) of its arrays, lo a
multiple of `BLOCK_NUMEL`, so that threads may share them.

The key is (low and high word of the seed, step, rank, stream).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, no-any-return"
# ruff: noqa: PLR0913, PLR0917 - a loop takes its arrays and numbers one by one

import numpy as np

from binsgdm.kernels.keys import GROUP_NUMEL, MULTIPLIERS, ROUNDS, WEYL
from binsgdm.kernels.numba_kernels import compiled

BLOCK_NUMEL = 4096
_FEW = 512  # values of which several numbers each stay in the L1 cache
_COUNTED_LEVELS = 32  # up to so many are counted in a third of the time that a bisection takes
_COUNTERS = GROUP_NUMEL // 4
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_FACTOR0, _FACTOR1 = map(np.uint64, MULTIPLIERS)
_WEYL0, _WEYL1 = map(np.uint64, WEYL)
_NOT_FINITE = np.int32(0x7F800000)  # bits of infinity, and without their sign those of NaN are above


# Draws


@compiled
def _draw(words, group, key):
    """Fill uint32 with the draws of whole groups, from the number of the first one on: Philox4x32-10."""
    for number in range(words.size // GROUP_NUMEL):
        first = (group + number) * _COUNTERS
        for lane in range(_COUNTERS):
            c0, c1 = np.uint64(first + lane), np.uint64(key[2])
            c2, c3 = np.uint64(key[3]), np.uint64(key[4])
            k0, k1 = np.uint64(key[0]), np.uint64(key[1])
            for _ in range(ROUNDS):
                p0, p1 = (c0 & _LOW) * _FACTOR0, (c2 & _LOW) * _FACTOR1
                c0, c1 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _LOW
                c2, c3 = (p0 >> _HALF) ^ c3 ^ k1, p0 & _LOW
                k0, k1 = (k0 + _WEYL0) & _LOW, (k1 + _WEYL1) & _LOW
            place = number * GROUP_NUMEL + lane
            words[place] = np.uint32(c0)
            words[place + _COUNTERS] = np.uint32(c1)
            words[place + 2 * _COUNTERS] = np.uint32(c2)
            words[place + 3 * _COUNTERS] = np.uint32(c3)


@compiled
def write_draws(start, key, out, lo, hi):
    """Write int64 draws of the elements from `start` on."""
    words = np.empty(BLOCK_NUMEL + GROUP_NUMEL, np.uint32)
    for base in range(lo, hi, BLOCK_NUMEL):
        block = out[base : min(hi, base + BLOCK_NUMEL)]
        skip = (start + base) % GROUP_NUMEL
        _draw(words, (start + base) // GROUP_NUMEL, key)
        for index in range(block.size):
            block[index] = np.int64(words[skip + index])


@compiled
def write_thresholds(start, key, out, lo, hi):
    """Write fp32 thresholds of the elements from `start` on."""
    words = np.empty(BLOCK_NUMEL + GROUP_NUMEL, np.uint32)
    for base in range(lo, hi, BLOCK_NUMEL):
        block = out[base : min(hi, base + BLOCK_NUMEL)]
        skip = (start + base) % GROUP_NUMEL
        _draw(words, (start + base) // GROUP_NUMEL, key)
        for index in range(block.size):
            parts = np.float32(np.int32(words[skip + index] >> np.uint32(9)))
            block[index] = parts * np.float32(2.0**-22) - np.float32(1)


@compiled
def smallest_draws(numel, limit, key, tickets):
    """Write (draw, element) as int64 of draws below a limit, in order; return how many there are, or -1 if too many."""
    words, count = np.empty(BLOCK_NUMEL, np.uint32), 0
    for base in range(0, numel, BLOCK_NUMEL):
        _draw(words, base // GROUP_NUMEL, key)
        for index in range(min(numel - base, BLOCK_NUMEL)):
            if words[index] < limit:
                if count == tickets.size:
                    return -1
                tickets[count] = np.int64(words[index]) << 31 | (base + index)
                count += 1
    return count


# Scales, and levels of them


@compiled
def largest(values, block_size, out, lo, hi):
    """Write the largest magnitude of blocks [lo, hi); NaN where one is not finite."""
    for block in range(lo, hi):
        bits = values[block * block_size : (block + 1) * block_size].view(np.int32)
        greatest = np.int32(0)
        for index in range(bits.size):
            greatest = max(greatest, bits[index] & np.int32(0x7FFFFFFF))
        pattern = np.full(1, greatest, np.int32)
        out[block] = np.float32(np.nan) if greatest >= _NOT_FINITE else pattern.view(np.float32)[0]


@compiled
def _divide(values, scales, block_size, lo, out):
    """Write values / scales, the first of them being element `lo` of those with these scales."""
    if block_size == 1:
        for index in range(values.size):
            out[index] = values[index] / scales[lo + index]
        return
    done = 0
    while done < values.size:
        block = (lo + done) // block_size
        end = min(values.size, (block + 1) * block_size - lo)
        scale, some, into = scales[block], values[done:end], out[done:end]
        for index in range(some.size):
            into[index] = some[index] / scale
        done = end


@compiled
def _neighbours(ratios, levels, padded, codes, lows, highs):
    """Write the number of the level at or below each ratio, that level and the next; the last but one for the last."""
    last = levels.size - 1
    if levels.size <= _COUNTED_LEVELS:  # counted level by level, in vectors
        for index in range(ratios.size):
            codes[index], lows[index], highs[index] = 0, levels[0], levels[1]
        for number in range(1, last):
            level, following = levels[number], levels[number + 1]
            for index in range(ratios.size):
                is_above = level <= ratios[index]
                lows[index] = level if is_above else lows[index]
                highs[index] = following if is_above else highs[index]
                codes[index] += np.int32(1) if is_above else np.int32(0)
        return
    for index in range(ratios.size):
        codes[index] = 0
    # How many levels are at most the ratio: bisected for all values at once, so that no branch waits for a value.
    step = np.int32((padded.size + 1) // 2)
    while step:
        for index in range(ratios.size):
            place = codes[index]
            codes[index] = place + (step if padded[place + step - 1] <= ratios[index] else np.int32(0))
        step >>= 1
    for index in range(ratios.size):
        place = min(max(codes[index], np.int32(1)), np.int32(last))
        codes[index], lows[index], highs[index] = place - 1, levels[place - 1], levels[place]


@compiled
def round_to_levels(values, scales, block_size, levels, padded, key, out, lo, hi):
    """Write the number of the level below or above value / scale, at random; `padded` are levels and then infinities.

    There are a power of 2, less one, of padded levels.
    """
    words = np.empty(BLOCK_NUMEL, np.uint32)
    ratios, numbers = np.empty(BLOCK_NUMEL, np.float32), np.empty(_FEW, np.int32)
    lows, highs = np.empty(_FEW, np.float32), np.empty(_FEW, np.float32)
    for base in range(lo, hi, BLOCK_NUMEL):
        numel = min(hi - base, BLOCK_NUMEL)
        _draw(words, base // GROUP_NUMEL, key)
        _divide(values[base : base + numel], scales, block_size, base, ratios)
        for index in range(numel):
            ratio = np.float32(0) if np.isnan(ratios[index]) else ratios[index]
            ratio = ratio if ratio > np.float32(-1) else np.float32(-1)
            ratios[index] = ratio if ratio < np.float32(1) else np.float32(1)
        for first in range(0, numel, _FEW):
            few, drawn = ratios[first : min(numel, first + _FEW)], words[first:]
            codes = out[base + first : base + first + few.size]
            _neighbours(few, levels, padded, numbers, lows, highs)
            for index in range(few.size):
                chance = (few[index] - lows[index]) / (highs[index] - lows[index])
                part = np.float32(np.int32(drawn[index] >> np.uint32(9)))
                is_up = part * np.float32(2.0**-23) + np.float32(2.0**-24) < chance
                codes[index] = np.uint8(numbers[index] + (1 if is_up else 0))


@compiled
def levels_times_scales(codes, table, scales, block_size, out, lo, hi):
    """Write the level of each code times its scale."""
    if block_size == 1:
        some, by, into = codes[lo:hi], scales[lo:hi], out[lo:hi]
        for index in range(some.size):
            into[index] = table[some[index]] * by[index]
        return
    while lo < hi:
        block = lo // block_size
        end, scale = min(hi, (block + 1) * block_size), scales[block]
        some, into = codes[lo:end], out[lo:end]
        for index in range(some.size):
            into[index] = table[some[index]] * scale
        lo = end


@compiled
def pack_codes(codes, bits, out, lo, hi):
    """Write codes of so many bits one after the other, each with its most significant bit first."""
    if bits == 4:
        into, some = out[lo // 2 : hi // 2], codes[lo:hi]
        for pair in range(into.size):
            into[pair] = some[2 * pair] << np.uint8(4) | some[2 * pair + 1]
        lo = hi // 2 * 2
    else:
        for group in range(lo // 8, hi // 8):
            word = np.uint64(0)
            for index in range(8):
                word = word << np.uint64(bits) | np.uint64(codes[8 * group + index])
            for byte in range(bits):
                out[group * bits + byte] = np.uint8(word >> np.uint64(8 * (bits - 1 - byte)) & np.uint64(255))
        lo = hi // 8 * 8
    if lo < hi:  # the last bytes, whose padding is 0
        first = lo * bits // 8
        out[first:] = 0
        for index in range(lo, hi):
            for bit in range(bits):
                place = index * bits + bit
                if codes[index] >> np.uint8(bits - 1 - bit) & np.uint8(1):
                    out[place // 8] |= np.uint8(128 >> place % 8)


@compiled
def unpack_codes(packed, bits, out, lo, hi):
    """Undo `pack_codes`."""
    if bits == 4:
        into, some = out[lo:hi], packed[lo // 2 : hi // 2]
        for pair in range(some.size):
            into[2 * pair] = some[pair] >> np.uint8(4)
            into[2 * pair + 1] = some[pair] & np.uint8(15)
        lo = hi // 2 * 2
    else:
        mask = np.uint64((1 << bits) - 1)
        for group in range(lo // 8, hi // 8):
            word = np.uint64(0)
            for byte in range(bits):
                word = word << np.uint64(8) | np.uint64(packed[group * bits + byte])
            for index in range(8):
                out[8 * group + index] = np.uint8(word >> np.uint64(bits * (7 - index)) & mask)
        lo = hi // 8 * 8
    for index in range(lo, hi):
        code = 0
        for bit in range(bits):
            place = index * bits + bit
            code = code << 1 | (packed[place // 8] >> np.uint8(7 - place % 8) & np.uint8(1))
        out[index] = np.uint8(code)


@compiled
def pack_trits(codes, out, lo, hi):
    """Write codes 0, 1 and 2 as digits in base 3, five in a byte."""
    for byte in range(lo // 5, hi // 5):
        digits = codes[5 * byte : 5 * byte + 5]
        out[byte] = np.uint8(digits[0] * 81 + digits[1] * 27 + digits[2] * 9 + digits[3] * 3 + digits[4])
    if hi % 5:
        total = 0
        for index in range(hi // 5 * 5, hi // 5 * 5 + 5):
            total = total * 3 + (codes[index] if index < hi else 0)
        out[hi // 5] = np.uint8(total)


@compiled
def bytes_of_scales(values, scales, block_size, largest_byte, out, lo, hi):
    """Write values over their scale times the largest byte, rounded half to even; 0 where that is NaN."""
    ratios, factor = np.empty(BLOCK_NUMEL, np.float32), np.float32(largest_byte)
    for base in range(lo, hi, BLOCK_NUMEL):
        numel = min(hi - base, BLOCK_NUMEL)
        _divide(values[base : base + numel], scales, block_size, base, ratios)
        into = out[base : base + numel]
        for index in range(numel):
            ratio = np.float32(0) if np.isnan(ratios[index]) else ratios[index]
            into[index] = np.int8(np.int32(np.rint(ratio * factor)))


@compiled
def bytes_times_steps(codes, steps, block_size, out, lo, hi):
    """Write each int8 times its step."""
    while lo < hi:
        block = lo // block_size
        end, step = min(hi, (block + 1) * block_size), steps[block]
        some, into = codes[lo:end], out[lo:end]
        for index in range(some.size):
            into[index] = np.float32(some[index]) * step
        lo = end


# Selections by magnitude, whose bits without the sign are ordered as the magnitudes


@compiled
def count_above(values, threshold, lo, hi):
    """Return how many bit patterns of magnitudes are above a threshold."""
    bits, count = values[lo:hi].view(np.int32), 0
    for base in range(0, bits.size, BLOCK_NUMEL):
        some = np.int32(0)
        for index in range(base, min(bits.size, base + BLOCK_NUMEL)):
            some += np.int32(1) if bits[index] & np.int32(0x7FFFFFFF) > threshold else np.int32(0)
        count += int(some)
    return count


@compiled
def indices_above(values, threshold, out):
    """Write the indices of magnitudes whose bits are above a threshold; return how many, or -1 if too many."""
    bits, count = values.view(np.int32), 0
    for index in range(bits.size):
        if bits[index] & np.int32(0x7FFFFFFF) > threshold:
            if count == out.size:
                return -1
            out[count] = index
            count += 1
    return count

"""What runs on the GPU, in Triton: one pass over memory for each kernel, where plain torch makes tens of them.

A program does a chunk of some tiles, one after another. A chunk that is whole, at addresses that are multiples of 16
bytes, is read and written without masks, 16 bytes a thread; any other takes masks, element by element. Chunks begin
where a group of 32 draws does: before the tensor, where the tensor begins inside a group.

Division is `div_rn`, and `enable_fp_fusion` is off at each launch, since Triton's defaults (an approximate quotient, a
fused multiply-add) would not give the reference's bits. Python floats reach a program as fp32, rounded once. The words
of a key come as the tuple (seed's low word, seed's high word, step, rank, stream, group): all draws are those of groups
of 32 elements from `group` on.

Shape letters: N elements, K vectors, P bytes.
"""

# mypy: disable-error-code="no-untyped-def, import-not-found, import-untyped, untyped-decorator, assignment"
# ruff: noqa: PLR0913, PLR0917 - a program takes its pointers and numbers one by one

import triton
import triton.language as tl

from binsgdm.kernels.keys import SCALE

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


# Updates

ROW = tl.constexpr(9)  # words of a row of the table: first chunk, numel, start, whether aligned, five addresses


@triton.jit(do_not_specialize=["tiles", "step", "rank", "stream", "seed_low", "seed_high"])
def update(
    table, owners, tiles, finite, beta, rest, beta_b, rest_b, of_m, of_g, gain, seed_low, seed_high, step, rank, stream,
    dtype: tl.constexpr, rounding: tl.constexpr,
):  # fmt: skip
    """Update m and b of many tensors and write u = m / b, or the packed signs of Q(u), or those of u, shaped."""
    row, first, numel, whole = _chunk(table, owners, tiles)
    draws = seed_low, seed_high, step, rank, stream, (tl.load(row + 2) + first) >> 5
    decay = beta, rest, beta_b, rest_b, of_m, of_g
    if whole:
        _update_chunk(row, first, numel, tiles, finite, decay, gain, draws, dtype, rounding, False)
    else:
        _update_chunk(row, first, numel, tiles, finite, decay, gain, draws, dtype, rounding, True)


@triton.jit
def _update_chunk(
    row, first, numel, tiles, finite, decay, gain, draws, dtype: tl.constexpr, rounding: tl.constexpr,
    masked: tl.constexpr,
):  # fmt: skip
    grad, m, b = (
        _address(row, 4, dtype, masked),
        _address(row, 5, tl.float32, masked),
        _address(row, 6, tl.float32, masked),
    )
    if rounding == "none":
        out = _address(row, 7, tl.float32, masked)
    elif rounding == "random":
        out = _address(row, 7, tl.uint8, True)
    else:
        residual, out = _address(row, 7, tl.int16, masked), _address(row, 8, tl.uint8, True)
    failed = tl.zeros([TILE], tl.int1)
    for tile in range(num_tiles(first, numel, tiles) if masked else tiles):
        offset = first + tile * TILE
        inside = inside_of(offset, numel)
        u, bad = _update(grad + offset, m + offset, b + offset, decay, inside, masked)
        failed = failed | bad
        if rounding == "none":
            store(out + offset, u, inside, masked)
        elif rounding == "random":
            threshold = thresholds_of(draws_of_tile(draws, tile * (TILE // 32), TILE))
            # No clip: a threshold lies in [-1, 1), so that whatever is beyond compares as the end does.
            store_signs(out, threshold < u * gain, offset, numel, inside, masked)
        else:
            store_signs(out, shape(u, gain, residual + offset, inside, masked), offset, numel, inside, masked)
    _tell(finite, failed)


@triton.jit(do_not_specialize=["tiles", "out", "numel", "aligned"])
def shape_pack(u, residual, out, tiles, numel, aligned, gain):
    """Write the packed signs of u, shaped."""
    numel = tl.cast(numel, tl.int64)
    first = tl.program_id(0).to(tl.int64) * (tiles * TILE)
    if (aligned != 0) & is_whole(first, numel, tiles):
        _shape_pack_chunk(u, residual, out, first, numel, tiles, gain, False)
    else:
        _shape_pack_chunk(u, residual, out, first, numel, tiles, gain, True)


@triton.jit
def _shape_pack_chunk(u, residual, out, first, numel, tiles, gain, masked: tl.constexpr):
    for tile in range(num_tiles(first, numel, tiles) if masked else tiles):
        offset = first + tile * TILE
        inside = inside_of(offset, numel)
        positive = shape(load(u + offset, inside, masked), gain, residual + offset, inside, masked)
        store_signs(out, positive, offset, numel, inside, masked)


@triton.jit(do_not_specialize=["tiles"])
def unpack_apply(table, owners, tiles, lr, decay, dtype: tl.constexpr, per_thread: tl.constexpr):
    """Do x = x decay - lr sign for many tensors."""
    row, first, numel, whole = _chunk(table, owners, tiles)
    if whole:
        _unpack_apply_chunk(row, first, numel, tiles, lr, decay, dtype, per_thread, False)
    else:
        _unpack_apply_chunk(row, first, numel, tiles, lr, decay, dtype, per_thread, True)


@triton.jit
def _unpack_apply_chunk(
    row, first, numel, tiles, lr, decay, dtype: tl.constexpr, per_thread: tl.constexpr, masked: tl.constexpr
):
    x, packed = _address(row, 4, dtype, masked), _address(row, 5, tl.uint8, True)
    for tile in range(num_tiles(first, numel, tiles) if masked else tiles):
        offset = first + tile * TILE
        inside = inside_of(offset, numel)
        old_x = load(x + offset, inside, masked)
        positive = load_signs(packed, offset, numel, per_thread, masked)
        new_x = _widen(old_x) * decay - tl.where(positive, lr, -lr)
        store(x + offset, _narrow(new_x, dtype), inside, masked)


@triton.jit(do_not_specialize=["tiles", "out", "start", "numel", "step", "rank", "stream", "seed_low", "seed_high"])
def quantize_pack(u, out, tiles, start, numel, gain, seed_low, seed_high, step, rank, stream):
    """Write the packed signs of Q(u)."""
    start, numel = tl.cast(start, tl.int64), tl.cast(numel, tl.int64)
    first = tl.program_id(0).to(tl.int64) * (tiles * TILE) - (start >> 3 & 3) * 8
    draws = seed_low, seed_high, step, rank, stream, (start + first) >> 5
    if is_whole(first, numel, tiles):
        _quantize_pack_chunk(u, out, first, numel, tiles, gain, draws, False)
    else:
        _quantize_pack_chunk(u, out, first, numel, tiles, gain, draws, True)


@triton.jit
def _quantize_pack_chunk(u, out, first, numel, tiles, gain, draws, masked: tl.constexpr):
    for tile in range(num_tiles(first, numel, tiles) if masked else tiles):
        offset = first + tile * TILE
        inside = inside_of(offset, numel)
        values = load(u + offset, inside, masked)
        threshold = thresholds_of(draws_of_tile(draws, tile * (TILE // 32), TILE))
        store_signs(out, threshold < values * gain, offset, numel, inside, masked)


@triton.jit
def _chunk(table, owners, tiles):
    """Return the row of this program's tensor, its first element there, the tensor's size, and whether it is whole."""
    program = tl.program_id(0).to(tl.int64)
    row = table + tl.load(owners + program).to(tl.int64) * ROW
    numel = tl.load(row + 1)
    # Written as a multiple of 8, the compiler sees that it is one.
    first = (program - tl.load(row)) * (tiles * TILE) - (tl.load(row + 2) >> 3 & 3) * 8
    return row, first, numel, (tl.load(row + 3) != 0) & is_whole(first, numel, tiles)


@triton.jit
def _address(row, column: tl.constexpr, dtype: tl.constexpr, masked: tl.constexpr):
    pointer = tl.load(row + column).to(tl.pointer_type(dtype))
    if masked:
        return pointer
    return tl.multiple_of(pointer, 16)


@triton.jit
def _update(grad, m, b, decay, inside, masked: tl.constexpr):
    """Update a tile of m and b; return u, and where the new b would not be finite."""
    beta, rest, beta_b, rest_b, of_m, of_g = decay
    # Four gradients a thread, as of m and b: eight of 16 bits would cost an exchange between threads.
    quads = tl.max_contiguous(tl.arange(0, TILE), 4)
    g = _widen(load_each(grad + quads, inside, masked))
    old_m, old_b = load(m, inside, masked), load(b, inside, masked)
    new_m = old_m * beta + g * rest
    new_b = old_b * beta_b + tl.abs(g) * rest_b
    is_finite = new_b < float("inf")
    new_m = tl.where(is_finite, new_m, old_m)
    new_b = tl.where(is_finite, new_b, old_b)
    store(m, new_m, inside, masked)
    store(b, new_b, inside, masked)
    positive = new_b > 0
    # `where` computes both branches; the inner ones keep infinity times 0 and 0 / 0 from raising flags in the
    # interpreter.
    ahead = tl.where(is_finite, new_m * of_m + tl.where(is_finite, g, 0.0) * of_g, new_m)
    return tl.where(positive, tl.div_rn(ahead, tl.where(positive, new_b, 1.0)), 0.0), is_finite == 0


@triton.jit
def _tell(finite, failed):
    """Make the flag 0 if an element of a tile failed."""
    some = tl.max(tl.reshape(failed.to(tl.int32), [TILE // 4, 4]), axis=1)
    # All that store, store the same 0: no atomic is needed.
    tl.store(finite + some * 0, 0, mask=some != 0)


@triton.jit
def _widen(value):
    """Return fp32; from bf16 by its bits, since Triton's interpreter makes its subnormals 0."""
    if value.dtype == tl.bfloat16:
        return (value.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return value.to(tl.float32)


@triton.jit
def _narrow(value, dtype: tl.constexpr):
    """Round fp32 to nearest even; to bf16 by its bits, since Triton's interpreter rounds wrongly."""
    if dtype == tl.bfloat16:
        bits = value.to(tl.uint32, bitcast=True)
        rounded = tl.where(value == value, (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, 0x7FC0)  # noqa: PLR0124
        return rounded.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return value.to(dtype)


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
            loaded = tl.load(packed + place, mask=(place >= 0) & (place < num_bytes), other=0)
            word |= loaded.to(tl.uint32) << (8 * run)
    else:
        word = tl.load((packed + byte).to(tl.pointer_type(tl.uint32)))
    return word


# Draws, and signs as bits

SIGN_TILES = tl.constexpr(4)  # of a program


@triton.jit(do_not_specialize=["start", "numel", "step", "rank", "stream", "seed_low", "seed_high"])
def write_draws(out, start, numel, seed_low, seed_high, step, rank, stream, are_thresholds: tl.constexpr):
    """Write draws, or thresholds."""
    start, numel = tl.cast(start, tl.int64), tl.cast(numel, tl.int64)
    # Draws may start at any element, so that a tile's first one lies at any element of `out`.
    first = tl.program_id(0).to(tl.int64) * (SIGN_TILES * TILE) - (start & 31)
    draws = seed_low, seed_high, step, rank, stream, (start + first) >> 5
    if is_whole(first, numel, SIGN_TILES):
        _write_chunk(out, first, numel, draws, are_thresholds, False)
    else:
        _write_chunk(out, first, numel, draws, are_thresholds, True)


@triton.jit
def _write_chunk(out, first, numel, draws, are_thresholds: tl.constexpr, masked: tl.constexpr):
    for tile in range(num_tiles(first, numel, SIGN_TILES) if masked else SIGN_TILES):
        offset = first + tile * TILE
        draw = draws_of_tile(draws, tile * (TILE // 32), TILE)
        values = thresholds_of(draw) if are_thresholds else draw.to(tl.int64)
        store(out + offset, values, inside_of(offset, numel), masked)


@triton.jit(do_not_specialize=["out", "numel"])
def pack(positive, out, numel):
    """Write as bits which values are not 0."""
    numel = tl.cast(numel, tl.int64)
    first = tl.program_id(0).to(tl.int64) * (SIGN_TILES * TILE)
    if is_whole(first, numel, SIGN_TILES):
        _pack_chunk(positive, out, first, numel, False)
    else:
        _pack_chunk(positive, out, first, numel, True)


@triton.jit
def _pack_chunk(positive, out, first, numel, masked: tl.constexpr):
    for tile in range(num_tiles(first, numel, SIGN_TILES) if masked else SIGN_TILES):
        offset = first + tile * TILE
        inside = inside_of(offset, numel)
        store_signs(out, load(positive + offset, inside, masked) != 0, offset, numel, inside, masked)


@triton.jit(do_not_specialize=["packed", "numel"])
def unpack(packed, out, numel):
    """Write signs."""
    numel = tl.cast(numel, tl.int64)
    first = tl.program_id(0).to(tl.int64) * (SIGN_TILES * TILE)
    if is_whole(first, numel, SIGN_TILES):
        _unpack_chunk(packed, out, first, numel, False)
    else:
        _unpack_chunk(packed, out, first, numel, True)


@triton.jit
def _unpack_chunk(packed, out, first, numel, masked: tl.constexpr):
    for tile in range(num_tiles(first, numel, SIGN_TILES) if masked else SIGN_TILES):
        offset = first + tile * TILE
        positive = load_signs(packed, offset, numel, 4, masked)
        store(out + offset, tl.where(positive, 1.0, -1.0), inside_of(offset, numel), masked)

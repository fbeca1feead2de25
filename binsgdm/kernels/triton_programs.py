"""What runs on the GPU, in Triton: one pass over memory for each kernel.

Division is `div_rn`, and `enable_fp_fusion` is off at each launch, since Triton's defaults (an approximate quotient, a
fused multiply-add) would not give the reference's bits. Python floats reach a program as fp32, rounded once.

Shape letters: N elements, K vectors, P bytes.
"""

# mypy: disable-error-code="no-untyped-def, import-not-found, import-untyped, untyped-decorator, assignment"
# ruff: noqa: PLR0913, PLR0917 - a program takes its pointers and numbers one by one

import triton
import triton.language as tl

from binsgdm.kernels.triton_tiles import (
    TILE,
    draws_of_tile,
    inside_of,
    is_whole,
    load,
    load_each,
    load_signs,
    num_tiles,
    philox,
    shape,
    split,
    store,
    store_signs,
    thresholds_of,
)

ROW = tl.constexpr(9)  # words of a row of the table: first chunk, numel, start, whether aligned, five addresses


@triton.jit(do_not_specialize=["tiles", "step", "rank", "stream", "seed_low", "seed_high"])
def update_quantize_pack(
    table, owners, tiles, finite, beta, rest, beta_b, rest_b, of_m, of_g, gain, seed_low, seed_high, step, rank, stream,
    dtype: tl.constexpr,
):  # fmt: skip
    """Update m and b of many tensors and write the packed signs of Q(m / b)."""
    row, first, numel, whole = _chunk(table, owners, tiles)
    group = (tl.load(row + 2) + first) >> 5
    draws = seed_low, seed_high, step, rank, stream, group
    decay = beta, rest, beta_b, rest_b, of_m, of_g
    if whole:
        _update_quantize_pack_chunk(row, first, numel, tiles, finite, decay, gain, draws, dtype, False)
    else:
        _update_quantize_pack_chunk(row, first, numel, tiles, finite, decay, gain, draws, dtype, True)


@triton.jit
def _update_quantize_pack_chunk(
    row, first, numel, tiles, finite, decay, gain, draws, dtype: tl.constexpr, masked: tl.constexpr
):
    grad, m, b = (
        _address(row, 4, dtype, masked),
        _address(row, 5, tl.float32, masked),
        _address(row, 6, tl.float32, masked),
    )
    out = _address(row, 7, tl.uint8, True)
    failed = tl.zeros([TILE], tl.int1)
    for tile in range(num_tiles(first, numel, tiles) if masked else tiles):
        offset = first + tile * TILE
        inside = inside_of(offset, numel)
        u, bad = _update(grad + offset, m + offset, b + offset, decay, inside, masked)
        failed = failed | bad
        threshold = thresholds_of(draws_of_tile(draws, tile * (TILE // 32), TILE))
        # No clip: a threshold lies in [-1, 1), so that whatever is beyond compares as the end does.
        store_signs(out, threshold < u * gain, offset, numel, inside, masked)
    _tell(finite, failed)


@triton.jit(do_not_specialize=["tiles"])
def update_shape_pack(table, owners, tiles, finite, beta, rest, beta_b, rest_b, of_m, of_g, gain, dtype: tl.constexpr):
    """Update m and b of many tensors and write the packed signs of m / b, shaped."""
    row, first, numel, whole = _chunk(table, owners, tiles)
    decay = beta, rest, beta_b, rest_b, of_m, of_g
    if whole:
        _update_shape_pack_chunk(row, first, numel, tiles, finite, decay, gain, dtype, False)
    else:
        _update_shape_pack_chunk(row, first, numel, tiles, finite, decay, gain, dtype, True)


@triton.jit
def _update_shape_pack_chunk(row, first, numel, tiles, finite, decay, gain, dtype: tl.constexpr, masked: tl.constexpr):
    grad, m, b, residual = (
        _address(row, 4, dtype, masked),
        _address(row, 5, tl.float32, masked),
        _address(row, 6, tl.float32, masked),
        _address(row, 7, tl.int16, masked),
    )
    out = _address(row, 8, tl.uint8, True)
    failed = tl.zeros([TILE], tl.int1)
    for tile in range(num_tiles(first, numel, tiles) if masked else tiles):
        offset = first + tile * TILE
        inside = inside_of(offset, numel)
        u, bad = _update(grad + offset, m + offset, b + offset, decay, inside, masked)
        failed = failed | bad
        positive = shape(u, gain, residual + offset, inside, masked)
        store_signs(out, positive, offset, numel, inside, masked)
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
def update(table, owners, tiles, finite, beta, rest, beta_b, rest_b, of_m, of_g, dtype: tl.constexpr):
    """Update m and b of many tensors and write u = m / b."""
    row, first, numel, whole = _chunk(table, owners, tiles)
    decay = beta, rest, beta_b, rest_b, of_m, of_g
    if whole:
        _update_chunk(row, first, numel, tiles, finite, decay, dtype, False)
    else:
        _update_chunk(row, first, numel, tiles, finite, decay, dtype, True)


@triton.jit
def _update_chunk(row, first, numel, tiles, finite, decay, dtype: tl.constexpr, masked: tl.constexpr):
    grad, m, b = (
        _address(row, 4, dtype, masked),
        _address(row, 5, tl.float32, masked),
        _address(row, 6, tl.float32, masked),
    )
    out_u = _address(row, 7, tl.float32, masked)
    failed = tl.zeros([TILE], tl.int1)
    for tile in range(num_tiles(first, numel, tiles) if masked else tiles):
        offset = first + tile * TILE
        inside = inside_of(offset, numel)
        u, bad = _update(grad + offset, m + offset, b + offset, decay, inside, masked)
        failed = failed | bad
        store(out_u + offset, u, inside, masked)
    _tell(finite, failed)


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
            found = tl.load(packed + place, mask=(place >= 0) & (place < num_bytes), other=0)
            word |= found.to(tl.uint32) << (8 * run)
    else:
        word = tl.load((packed + byte).to(tl.pointer_type(tl.uint32)))
    return word

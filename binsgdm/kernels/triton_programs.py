"""What runs on the GPU, in Triton: one pass over memory for each kernel.

Division is `div_rn`, and `enable_fp_fusion` is off at each launch, since Triton's defaults (an approximate quotient, a
fused multiply-add) would not give the reference's bits. Python floats reach a program as fp32, rounded once.

Shape letters: N elements, K vectors, P bytes.
"""

# mypy: disable-error-code="no-untyped-def, import-not-found, import-untyped, untyped-decorator, assignment"
# ruff: noqa: PLR0913, PLR0917 - a program takes its pointers and numbers one by one

import triton
import triton.language as tl

from binsgdm.kernels.triton_rounding import shape
from binsgdm.kernels.triton_tiles import (
    TILE,
    draws_of_tile,
    inside_of,
    is_whole,
    load,
    load_each,
    load_signs,
    num_tiles,
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

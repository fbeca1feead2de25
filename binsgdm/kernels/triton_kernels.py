"""The kernels for CUDA tensors, in Triton.

Division is `div_rn` and `enable_fp_fusion` is off, since Triton's defaults (an approximate quotient, a fused
multiply-add) would not give the reference's bits. With TRITON_INTERPRET=1 before the first import they run on the CPU.

Python floats reach a kernel as fp32, rounded once. A program does `groups` groups of 32 elements, as blocks of
(groups, 8): row r, column l of block w is element 8 w + l of group r, and takes word w of counter 8 r + l.

Shape letters: N elements, K vectors.
"""

# mypy: disable-error-code="no-untyped-def, import-not-found, import-untyped"
# ruff: noqa: ARG001, PLR0913, PLR0917 - a kernel takes its pointers and numbers one by one, and all end alike

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from binsgdm.kernels import checks, foreach
from binsgdm.random import GROUP_NUMEL, Key

name = "triton"

# Triton compiles a kernel anew when an integer argument becomes 1 or a multiple of 16; a step counter does both.
_KEY = ("seed", "step", "rank", "stream", "first_group")
_GROUPS = 32  # groups of 32 elements that one program does: 1024 elements on 128 threads
_BLOCK_NUMEL = _GROUPS * GROUP_NUMEL


def update_(grad: Tensor, m: Tensor, b: Tensor, *, beta: float, out_u: Tensor) -> Tensor:
    """Update both momenta and write u = m / b; see `binsgdm.kernels.Kernels`."""
    checks.update(grad, m, b, out_u)
    failed = _flag(grad)
    _launch(_update_kernel, grad.numel(), 0, grad, m, b, out_u, failed, beta, 1.0 - beta)
    return failed[0] == 0


def update_quantize_pack_(
    grad: Tensor, m: Tensor, b: Tensor, *, beta: float, key: Key, start: int, out: Tensor
) -> Tensor:
    """Update both momenta and write the packed signs of Q(m / b); see `binsgdm.kernels.Kernels`."""
    checks.update(grad, m, b)
    checks.quantized(out, numel=grad.numel(), start=start, device=grad.device)
    failed = _flag(grad)
    arguments = (grad, m, b, out, failed, beta, 1.0 - beta, *_words(key))
    _launch(_update_quantize_pack_kernel, grad.numel(), start, *arguments)
    return failed[0] == 0


def quantize_pack(u: Tensor, *, key: Key, start: int, out: Tensor) -> None:
    """Write Q(u), packed; see `binsgdm.kernels.Kernels`."""
    checks.tensor("u", u, numel=u.numel(), dtypes=checks.FP32, device=u.device)
    checks.quantized(out, numel=u.numel(), start=start, device=u.device)
    _launch(_quantize_pack_kernel, u.numel(), start, u, out, *_words(key))


def merge(packed_rows: Tensor, *, numel: int, key: Key, start: int, out: Tensor) -> None:
    """Write Q of the mean of K sign vectors, packed; see `binsgdm.kernels.Kernels`."""
    checks.merge(packed_rows, numel=numel, start=start, out=out)
    num_vectors, num_bytes = packed_rows.shape
    _launch(_merge_kernel, numel, start, packed_rows, out, num_vectors, num_bytes, *_words(key))


def mean_(parts: Tensor, out: Tensor) -> None:
    """Write the mean of K vectors, summed in order and divided once; see `binsgdm.kernels.Kernels`."""
    checks.mean(parts, out)
    _launch(_mean_kernel, out.numel(), 0, parts, out, parts.shape[0])


def unpack_apply_(x: Tensor, packed: Tensor, *, lr: float, weight_decay: float, maximize: bool = False) -> None:
    """Do x = x (1 - lr weight_decay) - lr sign; see `binsgdm.kernels.Kernels`."""
    checks.apply(x, packed)
    _launch(_unpack_apply_kernel, x.numel(), 0, x, packed, -lr if maximize else lr, 1.0 - lr * weight_decay)


foreach_update_ = foreach.foreach_update(update_)
foreach_update_quantize_pack_ = foreach.foreach_update_quantize_pack(update_quantize_pack_)
foreach_unpack_apply_ = foreach.foreach_unpack_apply(unpack_apply_)


def _kernel(function: Callable[..., Any]) -> Any:
    """Compile for whatever values the key takes, not anew for 1 or for multiples of 16."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return triton.jit(do_not_specialize=[name for name in names if name in _KEY])(function)


def _flag(like: Tensor) -> Tensor:
    return torch.zeros(1, dtype=torch.int32, device=like.device)


def _words(key: Key) -> tuple[int, int, int, int]:
    return key.seed, key.step, key.rank, int(key.stream)


def _launch(kernel: Any, numel: int, start: int, first: Tensor, *arguments: object) -> None:
    """Run enough programs to cover the groups of 32 elements that a segment touches."""
    skip = start % GROUP_NUMEL
    num_programs = triton.cdiv(skip + numel, _BLOCK_NUMEL)
    if numel == 0:
        return
    options: dict[str, Any] = {"groups": _GROUPS, "num_warps": 4, "enable_fp_fusion": False}
    # Triton launches on the current device, which need not be that of the tensors.
    with torch.cuda.device(first.device if first.is_cuda else -1):
        kernel[(num_programs,)](first, *arguments, numel, start // GROUP_NUMEL, skip, **options)


@_kernel
def _indices(word: tl.constexpr, numel, skip, groups: tl.constexpr):
    """Return the index in the segment of each element of a block, and whether it is inside.

    `skip` is how far inside its draw group the segment starts: elements before it are outside.
    """
    group = tl.program_id(0).to(tl.int64) * groups + tl.arange(0, groups)[:, None]
    index = group * 32 + (8 * word + tl.arange(0, 8)[None, :]) - skip
    return index, (index >= 0) & (index < numel)


@_kernel
def _draws(seed, step, rank, stream, first_group, groups: tl.constexpr):
    """Return the four words of Philox4x32-10 for each counter of a program."""
    group = first_group + tl.program_id(0).to(tl.int64) * groups + tl.arange(0, groups)[:, None]
    counter = (group * 8 + tl.arange(0, 8)[None, :]).to(tl.uint32)
    zero = counter * 0
    return tl.philox(
        tl.cast(seed, tl.uint64),
        counter,
        zero + tl.cast(step, tl.uint32),
        zero + tl.cast(rank, tl.uint32),
        zero + tl.cast(stream, tl.uint32),
        10,
    )


@_kernel
def _store_signs(u, draw, out, word: tl.constexpr, numel, skip, groups: tl.constexpr):
    """Quantize a block of u and store its bytes, one a row."""
    _, inside = _indices(word, numel, skip, groups)
    # 2^-22, exact in fp32: no rounding, so a product and a sum give the same bits as the CPU's bit trick.
    threshold = (draw >> 9).to(tl.float32) * 2.384185791015625e-07 - 1.0
    # Lane 0 is the most significant bit, as in `binsgdm.bits`; elements outside the segment give 0 bits.
    bits = ((threshold < u) & inside).to(tl.int32) << (7 - tl.arange(0, 8)[None, :])
    group = tl.program_id(0).to(tl.int64) * groups + tl.arange(0, groups)
    first = group * 32 + 8 * word - skip
    tl.store(out + first // 8, tl.sum(bits, axis=1).to(tl.uint8), mask=(first >= 0) & (first < numel))


@_kernel
def _update(grad, m, b, failed, beta, rest, index, inside):
    """Update a block of m and b; return u."""
    g = _widen(tl.load(grad + index, mask=inside, other=0.0))
    old_m = tl.load(m + index, mask=inside, other=0.0)
    old_b = tl.load(b + index, mask=inside, other=0.0)
    new_m = old_m * beta + g * rest
    new_b = old_b * beta + tl.abs(g) * rest
    finite = new_b < float("inf")
    new_m = tl.where(finite, new_m, old_m)
    new_b = tl.where(finite, new_b, old_b)
    tl.store(m + index, new_m, mask=inside)
    tl.store(b + index, new_b, mask=inside)
    # All failing lanes store the same 1 to the same word: no atomic is needed.
    tl.store(failed + index * 0, 1, mask=inside & (finite == 0))
    positive = new_b > 0
    # `where` computes both branches; the inner one keeps 0 / 0 from raising flags in the interpreter.
    return tl.where(positive, tl.div_rn(new_m, tl.where(positive, new_b, 1.0)), 0.0)


@_kernel
def _widen(value):
    """Return fp32; from bf16 by its bits, since Triton's interpreter makes its subnormals 0."""
    if value.dtype == tl.bfloat16:
        return (value.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return value.to(tl.float32)


@_kernel
def _narrow(value, dtype: tl.constexpr):
    """Round fp32 to nearest even; to bf16 by its bits, since Triton's interpreter rounds wrongly."""
    if dtype == tl.bfloat16:
        bits = value.to(tl.uint32, bitcast=True)
        rounded = tl.where(value == value, (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, 0x7FC0)  # noqa: PLR0124
        return rounded.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return value.to(dtype)


@_kernel
def _update_kernel(grad, m, b, out_u, failed, beta, rest, numel, first_group, skip, groups: tl.constexpr):
    for word in tl.static_range(4):
        index, inside = _indices(word, numel, skip, groups)
        u = _update(grad, m, b, failed, beta, rest, index, inside)
        tl.store(out_u + index, u, mask=inside)


@_kernel
def _update_quantize_pack_kernel(
    grad, m, b, out, failed, beta, rest, seed, step, rank, stream, numel, first_group, skip, groups: tl.constexpr
):
    draws = _draws(seed, step, rank, stream, first_group, groups)
    for word in tl.static_range(4):
        index, inside = _indices(word, numel, skip, groups)
        u = _update(grad, m, b, failed, beta, rest, index, inside)
        _store_signs(u, draws[word], out, word, numel, skip, groups)


@_kernel
def _quantize_pack_kernel(u, out, seed, step, rank, stream, numel, first_group, skip, groups: tl.constexpr):
    draws = _draws(seed, step, rank, stream, first_group, groups)
    for word in tl.static_range(4):
        index, inside = _indices(word, numel, skip, groups)
        _store_signs(tl.load(u + index, mask=inside, other=0.0), draws[word], out, word, numel, skip, groups)


@_kernel
def _merge_kernel(
    packed, out, num_vectors, num_bytes, seed, step, rank, stream, numel, first_group, skip, groups: tl.constexpr
):
    draws = _draws(seed, step, rank, stream, first_group, groups)
    for word in tl.static_range(4):
        index, inside = _indices(word, numel, skip, groups)
        count = tl.zeros([groups, 8], tl.int32)
        for vector in range(num_vectors):
            byte = tl.load(packed + tl.cast(vector, tl.int64) * num_bytes + index // 8, mask=inside, other=0)
            count += (byte.to(tl.int32) >> (7 - tl.arange(0, 8)[None, :])) & 1
        # Counting bits is exact; K signs sum to 2 x (number of +1) - K.
        sum_of_signs = (2 * count - num_vectors).to(tl.float32)
        mean = tl.div_rn(sum_of_signs, tl.zeros([groups, 8], tl.float32) + num_vectors)
        _store_signs(mean, draws[word], out, word, numel, skip, groups)


@_kernel
def _mean_kernel(parts, out, num_vectors, numel, first_group, skip, groups: tl.constexpr):
    for word in tl.static_range(4):
        index, inside = _indices(word, numel, skip, groups)
        total = tl.load(parts + index, mask=inside, other=0.0)
        # In the order of ranks, as in the reference: fp32 sums depend on their order.
        for vector in range(1, num_vectors):
            total += tl.load(parts + tl.cast(vector, tl.int64) * numel + index, mask=inside, other=0.0)
        tl.store(out + index, tl.div_rn(total, tl.zeros([groups, 8], tl.float32) + num_vectors), mask=inside)


@_kernel
def _unpack_apply_kernel(x, packed, lr, decay, numel, first_group, skip, groups: tl.constexpr):
    for word in tl.static_range(4):
        index, inside = _indices(word, numel, skip, groups)
        byte = tl.load(packed + index // 8, mask=inside, other=0).to(tl.int32)
        positive = ((byte >> (7 - tl.arange(0, 8)[None, :])) & 1) != 0
        old_x = tl.load(x + index, mask=inside, other=0.0)
        new_x = _widen(old_x) * decay - tl.where(positive, lr, -lr)
        tl.store(x + index, _narrow(new_x, old_x.dtype), mask=inside)

"""Checks of the arguments of every kernel: compiled kernels get bare addresses and would write out of bounds."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from binsgdm.errors import BinsgdmError
from binsgdm.kernels.bits import packed_numel
from binsgdm.kernels.columns import TensorColumn, packed_numels
from binsgdm.kernels.functional import MAX_SHAPED_VECTORS
from binsgdm.kernels.random import MAX_NUMEL

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
FP32 = (torch.float32,)
BYTES = (torch.uint8,)
RESIDUALS = (torch.int16,)


def tensor(name: str, given: Tensor, *, numel: int, dtypes: tuple[torch.dtype, ...], device: torch.device) -> None:
    """Raise unless a tensor is contiguous and has this size, one of these dtypes, and this device."""
    if given.numel() != numel:
        raise BinsgdmError(f"{name}: {given.numel()} elements: must have {numel}")
    if given.dtype not in dtypes:
        raise BinsgdmError(f"{name}: {given.dtype}: must be {' or '.join(map(str, dtypes))}")
    if given.device != device:
        raise BinsgdmError(f"{name}: on {given.device}: must be on {device}, as the first argument")
    if not given.is_contiguous():
        raise BinsgdmError(f"{name}: strides {given.stride()}: must be contiguous; pass a flat copy")


def update(grad: Tensor, m: Tensor, b: Tensor, out_u: Tensor | None = None) -> None:
    """Check the arguments of both updates."""
    tensor("grad", grad, numel=grad.numel(), dtypes=FLOATS, device=grad.device)
    for name, given in (("m", m), ("b", b), ("out_u", out_u)):
        if given is not None:
            tensor(name, given, numel=grad.numel(), dtypes=FP32, device=grad.device)


def updates(grads: TensorColumn, ms: TensorColumn, bs: TensorColumn, outs_u: TensorColumn | None = None) -> None:
    """Check the arguments of both updates for many tensors, which share a device."""
    lists = (grads, ms, bs) if outs_u is None else (grads, ms, bs, outs_u)
    numels = grads.numels
    if not _are_alike(grads, numels, FLOATS, grads) or not all(_are_alike(g, numels, FP32, grads) for g in lists[1:]):
        for given in zip(*lists, strict=True):
            update(*given)
        same_device("grad", grads)


def all_quantized(outs: TensorColumn, likes: TensorColumn, starts: Sequence[int]) -> None:
    """Check where the packed signs of many tensors go and which draws they take."""
    if not _are_alike(outs, packed_numels(likes.numels), BYTES, likes) or not _are_starts(tuple(starts), likes.numels):
        for out, like, start in zip(outs, likes, starts, strict=True):
            quantized(out, numel=like.numel(), start=start, device=like.device)


@lru_cache(maxsize=64)
def _are_starts(starts: tuple[int, ...], numels: tuple[int, ...]) -> bool:
    pairs = zip(starts, numels, strict=True)
    return all(start >= 0 and not start % 8 and start + numel <= MAX_NUMEL for start, numel in pairs)


def all_shaped(outs: TensorColumn, residuals: TensorColumn, likes: TensorColumn) -> None:
    """Check residuals of many tensors and where their packed signs go."""
    if not _are_alike(residuals, likes.numels, RESIDUALS, likes) or not _are_alike(
        outs, packed_numels(likes.numels), BYTES, likes
    ):
        for out, residual, like in zip(outs, residuals, likes, strict=True):
            shaped(out, residual, like)


def applications(xs: TensorColumn, signs: TensorColumn) -> None:
    """Check the arguments of `unpack_apply_` for many tensors, which share a device."""
    if not _are_alike(xs, xs.numels, FLOATS, xs) or not _are_alike(signs, packed_numels(xs.numels), BYTES, xs):
        for given in zip(xs, signs, strict=True):
            apply(*given)
        same_device("x", xs)


def same_device(name: str, given: Sequence[Tensor]) -> None:
    """Raise unless tensors are on the device of the first: one launch does all of them."""
    for other in given:
        if other.device != given[0].device:
            raise BinsgdmError(f"{name}: on {other.device}: must be on {given[0].device}, as the first tensor")


def _are_alike(
    given: TensorColumn, numels: tuple[int, ...], dtypes: tuple[torch.dtype, ...], likes: TensorColumn
) -> bool:
    """Tell whether many tensors are as they must be, all on one device."""
    return (
        given.numels == numels
        and given.dtypes.issubset(dtypes)
        and given.devices == likes.devices
        and len(given.devices) <= 1
        and given.is_contiguous
    )


def packed(name: str, given: Tensor, *, numel: int, device: torch.device, rows: int = 1) -> None:
    """Check a tensor of packed signs."""
    tensor(name, given, numel=rows * packed_numel(numel), dtypes=BYTES, device=device)


def quantized(out: Tensor, *, numel: int, start: int, device: torch.device) -> None:
    """Check where packed signs go and which draws they take."""
    # Not a multiple of 8: two segments would write to one byte.
    if start % 8 or start < 0 or start + numel > MAX_NUMEL:
        raise BinsgdmError(f"start: {start!r}: must be a multiple of 8 in [0, 2**34 - {numel}]")
    packed("out", out, numel=numel, device=device)


def shaped(out: Tensor, residual: Tensor, like: Tensor) -> None:
    """Check the residual of values, and where their packed signs go."""
    tensor("residual", residual, numel=like.numel(), dtypes=RESIDUALS, device=like.device)
    packed("out", out, numel=like.numel(), device=like.device)


def merge(packed_rows: Tensor, *, numel: int, start: int, out: Tensor) -> None:
    """Check the arguments of `merge`."""
    _rows(packed_rows, numel)
    quantized(out, numel=numel, start=start, device=packed_rows.device)


def merge_shaped(packed_rows: Tensor, residual: Tensor, *, numel: int, out: Tensor) -> None:
    """Check the arguments of `merge_shaped_`."""
    _rows(packed_rows, numel)
    if packed_rows.shape[0] > MAX_SHAPED_VECTORS:
        raise BinsgdmError(
            f"packed_rows: {packed_rows.shape[0]} vectors: must be at most {MAX_SHAPED_VECTORS}; take rounding='random'"
        )
    tensor("residual", residual, numel=numel, dtypes=RESIDUALS, device=packed_rows.device)
    packed("out", out, numel=numel, device=packed_rows.device)


def _rows(packed_rows: Tensor, numel: int) -> None:
    if packed_rows.dim() != 2 or packed_rows.shape[0] == 0:
        raise BinsgdmError(f"packed_rows: shape {tuple(packed_rows.shape)}: must be K x P with K at least 1")
    packed("packed_rows", packed_rows, numel=numel, device=packed_rows.device, rows=packed_rows.shape[0])


def counted(num_vectors: int, most: int) -> None:
    """Check that a kernel can count this many vectors."""
    if num_vectors > most:
        raise BinsgdmError(f"packed_rows: {num_vectors} vectors: must be at most {most}; take kernels='reference'")


def mean(parts: Tensor, out: Tensor) -> None:
    """Check the arguments of `mean_`."""
    if parts.dim() != 2 or parts.shape[0] == 0:
        raise BinsgdmError(f"parts: shape {tuple(parts.shape)}: must be K x N with K at least 1")
    tensor("parts", parts, numel=parts.numel(), dtypes=FP32, device=parts.device)
    tensor("out", out, numel=parts.shape[1], dtypes=FP32, device=parts.device)


def apply(x: Tensor, signs: Tensor) -> None:
    """Check the arguments of `unpack_apply_`."""
    tensor("x", x, numel=x.numel(), dtypes=FLOATS, device=x.device)
    packed("packed", signs, numel=x.numel(), device=x.device)

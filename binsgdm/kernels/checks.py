"""Checks of the arguments of every kernel: compiled kernels get bare addresses and would write out of bounds."""

from functools import lru_cache

import torch
from torch import Tensor

from binsgdm.errors import BinsgdmError
from binsgdm.kernels.bits import packed_numel
from binsgdm.kernels.columns import TensorColumn, packed_numels
from binsgdm.kernels.random import MAX_NUMEL

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
FP32 = (torch.float32,)
BYTES = (torch.uint8,)
RESIDUALS = (torch.int16,)

Dtypes = tuple[torch.dtype, ...]
NamedColumn = tuple[str, TensorColumn, Dtypes]


def tensor(name: str, given: Tensor, *, numel: int, dtypes: Dtypes, device: torch.device) -> None:
    """Raise unless a tensor is contiguous and has this size, one of these dtypes, and this device."""
    if given.numel() != numel:
        raise BinsgdmError(f"{name}: {given.numel()} elements: must have {numel}")
    if given.dtype not in dtypes:
        raise BinsgdmError(f"{name}: {given.dtype}: must be {' or '.join(map(str, dtypes))}")
    if given.device != device:
        raise BinsgdmError(f"{name}: on {given.device}: must be on {device}, as the first argument")
    if not given.is_contiguous():
        raise BinsgdmError(f"{name}: strides {given.stride()}: must be contiguous; pass a flat copy")


def columns(*named: NamedColumn) -> None:
    """Raise unless tensors are as those of the first column, and of the dtypes of theirs; bytes hold packed signs.

    All share one device, since one launch does all of them.
    """
    likes = named[0][1]
    if all(_are_alike(column, dtypes, likes) for _, column, dtypes in named):
        return
    for row in zip(*(column for _, column, _ in named), strict=True):
        for (name, _, dtypes), given in zip(named, row, strict=True):
            numel = packed_numel(row[0].numel()) if dtypes is BYTES else row[0].numel()
            tensor(name, given, numel=numel, dtypes=dtypes, device=row[0].device)
    for other in likes:
        if other.device != likes[0].device:
            raise BinsgdmError(f"{named[0][0]}: on {other.device}: must be on {likes[0].device}, as the first tensor")


def _are_alike(given: TensorColumn, dtypes: Dtypes, likes: TensorColumn) -> bool:
    """Tell whether many tensors are as they must be, all on one device."""
    return (
        given.numels == (packed_numels(likes.numels) if dtypes is BYTES else likes.numels)
        and given.dtypes.issubset(dtypes)
        and given.devices == likes.devices
        and len(given.devices) <= 1
        and given.is_contiguous
    )


@lru_cache(maxsize=256)
def starts(given: tuple[int, ...], numels: tuple[int, ...]) -> None:
    """Check which draws tensors take."""
    for start, numel in zip(given, numels, strict=True):
        # Not a multiple of 8: two segments would write to one byte.
        if start % 8 or start < 0 or start + numel > MAX_NUMEL:
            raise BinsgdmError(f"start: {start!r}: must be a multiple of 8 in [0, 2**34 - {numel}]")


def packed(name: str, given: Tensor, *, numel: int, device: torch.device, rows: int = 1) -> None:
    """Check a tensor of packed signs."""
    tensor(name, given, numel=rows * packed_numel(numel), dtypes=BYTES, device=device)


def residual(given: Tensor, *, numel: int, device: torch.device) -> None:
    """Check a residual."""
    tensor("residual", given, numel=numel, dtypes=RESIDUALS, device=device)


def sign_rows(packed_rows: Tensor, *, numel: int, out: Tensor) -> None:
    """Check sign vectors, and where the signs of their mean go."""
    if packed_rows.dim() != 2 or packed_rows.shape[0] == 0:
        raise BinsgdmError(f"packed_rows: shape {tuple(packed_rows.shape)}: must be K x P with K at least 1")
    packed("packed_rows", packed_rows, numel=numel, device=packed_rows.device, rows=packed_rows.shape[0])
    packed("out", out, numel=numel, device=packed_rows.device)


def counted(num_vectors: int, most: int, repair: str) -> None:
    """Check that a kernel, or a residual, can count this many vectors."""
    if num_vectors > most:
        raise BinsgdmError(f"packed_rows: {num_vectors} vectors: must be at most {most}; take {repair}")


def mean(parts: Tensor, out: Tensor) -> None:
    """Check the arguments of `mean_`."""
    if parts.dim() != 2 or parts.shape[0] == 0:
        raise BinsgdmError(f"parts: shape {tuple(parts.shape)}: must be K x N with K at least 1")
    tensor("parts", parts, numel=parts.numel(), dtypes=FP32, device=parts.device)
    tensor("out", out, numel=parts.shape[1], dtypes=FP32, device=parts.device)

"""Draws and packed signs on a GPU, in one pass over memory, where plain torch makes tens of them."""

# mypy: disable-error-code="import-not-found, import-untyped"

import torch
import triton
from torch import Tensor

from binsgdm.kernels import triton_programs, triton_support

_SIGN_NUMEL = triton_programs.SIGN_TILES.value * triton_programs.TILE.value


def write_draws(out: Tensor, words: triton_support.Words, *, start: int) -> None:
    """Write draws to int64 (N), or thresholds to fp32 (N)."""
    num_programs = triton.cdiv(start % 32 + out.numel(), _SIGN_NUMEL)
    kind = out.dtype == torch.float32
    triton_support.launch(
        triton_programs.write_draws, num_programs, out, start, out.numel(), *words, are_thresholds=kind
    )


def pack(positive: Tensor, out: Tensor) -> None:
    """Pack booleans, or whole numbers that are 0 or 1, (N) into uint8 (P)."""
    numel = positive.numel()
    # A boolean is a byte: a view, where any other dtype is copied.
    values = positive.view(torch.uint8) if positive.dtype == torch.bool else positive.to(torch.uint8)
    triton_support.launch(triton_programs.pack, triton.cdiv(numel, _SIGN_NUMEL), values, out, numel)


def unpack(packed: Tensor, out: Tensor) -> None:
    """Unpack uint8 (P) into fp32 signs (N)."""
    triton_support.launch(triton_programs.unpack, triton.cdiv(out.numel(), _SIGN_NUMEL), packed, out, out.numel())

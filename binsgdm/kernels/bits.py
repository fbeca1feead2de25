"""Signs as bits: the reference, in plain torch.

The first sign is the most significant bit of the first byte, as in numpy.packbits; a set bit is +1; the bits after the
last sign are 0.

Shape letters: N elements, P = ceil(N / 8) bytes.
"""

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from binsgdm.kernels import host_loops, triton_support
from binsgdm.kernels.functional import packed_numel
from binsgdm.kernels.host_tensors import constant

_BYTES_AT_ONCE = 1 << 13
_SHIFTS = (7, 6, 5, 4, 3, 2, 1, 0)


def pack_signs(positive: Tensor) -> Tensor:
    """Pack booleans (N), True for +1, into uint8 (P).

    Example:
        >>> pack_signs(torch.tensor([True, False, False, False, False, False, False, True, True]))
        tensor([129, 128], dtype=torch.uint8)
    """
    if triton_support.is_used_on(positive.device):
        from binsgdm.kernels import triton_signs

        packed = torch.empty(packed_numel(positive.numel()), dtype=torch.uint8, device=positive.device)
        triton_signs.pack(positive.contiguous(), packed)
        return packed
    if host_loops.is_used_on(positive.device):
        return torch.from_numpy(np.packbits(positive.numpy()))
    # Padding bits are 0, so equal signs give equal bytes and ranks can compare packed tensors bit for bit.
    padding = -positive.numel() % 8
    bits = torch.nn.functional.pad(positive.to(torch.uint8), (0, padding)).view(-1, 8)
    shifts = constant(_SHIFTS, torch.uint8, positive.device)
    # Each bit has a place of its own, so the sum of a row is its bitwise OR.
    return (bits << shifts).sum(dim=1, dtype=torch.uint8)


def unpack_signs(packed: Tensor, numel: int) -> Tensor:
    """Unpack uint8 (P) into fp32 signs (N), each +1 or -1.

    Example:
        >>> unpack_signs(torch.tensor([128], dtype=torch.uint8), 3)
        tensor([ 1., -1., -1.])
    """
    if triton_support.is_used_on(packed.device):
        from binsgdm.kernels import triton_signs

        signs = torch.empty(numel, device=packed.device)
        triton_signs.unpack(packed.contiguous(), signs)
        return signs
    if host_loops.is_used_on(packed.device):
        data, table = packed.numpy(), _signs_of_bytes()
        made = np.empty((data.size, 8), np.float32)
        # Some at a time: numpy makes a number of 8 bytes of every index. None is out of range, so nothing is clipped.
        for first in range(0, data.size, _BYTES_AT_ONCE):
            last = first + _BYTES_AT_ONCE
            np.take(table, data[first:last], axis=0, out=made[first:last], mode="clip")
        return torch.from_numpy(made.reshape(-1)[:numel])
    shifts = constant(_SHIFTS, torch.uint8, packed.device)
    bits = (packed[:, None] >> shifts & 1).view(-1)[:numel]
    return bits.to(torch.float32) * 2.0 - 1.0


@cache
def _signs_of_bytes() -> NDArray[np.float32]:
    """Return the eight signs of every byte."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
    return bits.astype(np.float32) * 2 - 1

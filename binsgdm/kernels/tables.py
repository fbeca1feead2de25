"""Where many tensors lie, as a table on their device, so that one launch does all of them.

A table is made anew where an address has changed (gradients may move from step to step), and is small: 72 bytes a
tensor, from pinned memory, beside what the GPU does. Which tensor a program belongs to is a second table, which
depends on sizes alone.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from binsgdm.kernels.columns import TensorColumn
from binsgdm.random import GROUP_NUMEL
from binsgdm.uploads import upload_tensor

ROW_WORDS = 9
_ADDRESSES = 4  # the first of a row's words that hold addresses
_ALIGNMENT = 16  # bytes that a thread reads at once
_KEPT = 256  # tables: a bucket has two or three, and as many again of gradients that have moved

Numbers = tuple[int, ...]


class TensorTable(NamedTuple):
    """What a launch for many tensors reads.

    Attributes:
        rows: int64 (tensors x 9): first chunk, numel, start, whether aligned, and up to five addresses.
        owners: int32 (chunks): the row of each chunk.
        num_chunks: how many programs to launch.
    """

    rows: Tensor
    owners: Tensor
    num_chunks: int


def make(columns: Sequence[TensorColumn], *, starts: Sequence[int] | None, chunk: int, aligned: int) -> TensorTable:
    """Return the table of tensors of one device, the one made before if nothing has moved.

    Args:
        columns: up to five of tensors, of equal length; the first gives the sizes.
        starts: global index of each tensor's first element; None where no draws are made.
        chunk: elements that a program does.
        aligned: how many columns, from the first on, must lie at multiples of 16 bytes for the fast way.
    """
    device = columns[0][0].device
    stream, numels = stream_of(device), columns[0].numels
    known_starts = tuple(starts) if starts is not None else (0,) * len(numels)
    addresses = tuple(column.addresses for column in columns)
    owners = _owners(device, stream, numels, _skips(known_starts), chunk)
    return TensorTable(_rows(device, stream, addresses, numels, known_starts, chunk, aligned), owners, owners.numel())


def _skips(starts: Numbers) -> Numbers:
    return tuple(start % GROUP_NUMEL for start in starts)


def _num_chunks(numels: Numbers, skips: Numbers, chunk: int) -> NDArray[np.int64]:
    """Return how many chunks each tensor has: they begin where a group of draws does."""
    sizes, before = np.array(numels, np.int64), np.array(skips, np.int64)
    return np.where(sizes > 0, -(-(sizes + before) // chunk), 0)


@lru_cache(maxsize=_KEPT)
def _owners(device: torch.device, stream: int, numels: Numbers, skips: Numbers, chunk: int) -> Tensor:  # noqa: ARG001
    num_chunks = _num_chunks(numels, skips, chunk)
    return upload_tensor(torch.from_numpy(np.repeat(np.arange(len(numels), dtype=np.int32), num_chunks)), device)


@lru_cache(maxsize=_KEPT)
def _rows(  # noqa: PLR0913, PLR0917 - the key of the cache
    device: torch.device,
    stream: int,  # noqa: ARG001
    addresses: tuple[Numbers, ...],
    numels: Numbers,
    starts: Numbers,
    chunk: int,
    aligned: int,
) -> Tensor:
    rows = np.zeros((len(numels), ROW_WORDS), np.int64)
    num_chunks = _num_chunks(numels, _skips(starts), chunk)
    places = np.array(addresses, np.uint64).T.view(np.int64)
    rows[:, 0] = np.cumsum(num_chunks) - num_chunks
    rows[:, 1] = numels
    rows[:, 2] = starts
    rows[:, 3] = (places[:, :aligned] % _ALIGNMENT == 0).all(axis=1)
    rows[:, _ADDRESSES : _ADDRESSES + places.shape[1]] = places
    return upload_tensor(torch.from_numpy(rows), device)


def stream_of(device: torch.device) -> int:
    """Return the current stream: what is kept is made and read on one, so that no other has to wait for it."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0

"""Where many tensors lie, as a table on their device, so that one launch does all of them.

A table is made anew where an address has changed (gradients may move from step to step), and is small: 72 bytes a
tensor, from pinned memory, beside what the GPU does. Which tensor a program belongs to is a second table, which
depends on sizes alone.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from binsgdm.kernels.columns import TensorColumn
from binsgdm.kernels.host_tensors import upload_tensor
from binsgdm.kernels.keys import GROUP_NUMEL

ROW_WORDS = 9
_ADDRESSES = 4  # the first of a row's words that hold addresses
_ALIGNMENT = 16  # bytes that a thread reads at once
# Memory of the device that tables may take. Of rows a bucket has two tables or three, and as many again of gradients
# that have moved: 16 MiB hold them for 50,000 tensors in a few buckets, or for 8,000 buckets. Keys take three times as
# much on the host, which is what bounds them where gradients move in every step.
_ROWS_BYTES = 2**24
# 4 bytes of a table do for 1,024 elements or more: enough for 17,000 million elements.
_OWNERS_BYTES = 2**26
_LEAST_BYTES = 512  # PyTorch's allocator hands out no less

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


class _LastUsedTables:
    """Tables by what they were made of, those used last, which take at most so much memory; any thread may ask.

    A number of tables would be no bound: a model has a few of many tensors, or thousands of few.

    Attributes:
        num_made: tables so far.
    """

    def __init__(self, made: Callable[..., Tensor], most_bytes: int) -> None:
        self._made, self._most_bytes = made, most_bytes
        self._lock, self.num_made = threading.Lock(), 0
        self.cache_clear()

    def __call__(self, *key: Any) -> Tensor:
        """Return the table of a key."""
        with self._lock:
            table = self._tables.pop(key, None)
            if table is not None:
                self._tables[key] = table  # the last one again
                return table
        table = self._made(*key)
        with self._lock:
            self.num_made += 1
            if key not in self._tables:
                self._bytes += _bytes_of(table)
            self._tables[key] = table
            while self._bytes > self._most_bytes and len(self._tables) > 1:
                self._bytes -= _bytes_of(self._tables.pop(next(iter(self._tables))))
        return table

    def cache_clear(self) -> None:
        """Forget all tables."""
        with self._lock:
            self._tables: dict[tuple[Any, ...], Tensor] = {}
            self._bytes = 0


def _bytes_of(table: Tensor) -> int:
    return max(table.nbytes, _LEAST_BYTES)


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


def _made_owners(device: torch.device, _stream: int, numels: Numbers, skips: Numbers, chunk: int) -> Tensor:
    num_chunks = _num_chunks(numels, skips, chunk)
    return upload_tensor(torch.from_numpy(np.repeat(np.arange(len(numels), dtype=np.int32), num_chunks)), device)


def _made_rows(  # noqa: PLR0913, PLR0917 - the key of the cache
    device: torch.device,
    _stream: int,
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


_owners, _rows = _LastUsedTables(_made_owners, _OWNERS_BYTES), _LastUsedTables(_made_rows, _ROWS_BYTES)


def num_made() -> int:
    """Return how many tables were made in this process; each cost the host its making and a copy."""
    return _owners.num_made + _rows.num_made


def stream_of(device: torch.device) -> int:
    """Return the current stream: what is kept is made and read on one, so that no other has to wait for it."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0

"""The kernels for CPU tensors: compiled loops on as many threads as torch uses.

The threads are Python's own, since the loops release the GIL: numba's thread pool may not be entered from two threads
at once, and a backward hook and the main thread may both be here.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache, lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from binsgdm.kernels import numba_kernels
from binsgdm.kernels.columns import by_dtype
from binsgdm.kernels.interface import Columns, Decay, Kernels, SignStep
from binsgdm.kernels.random import GROUP_NUMEL, Key

# numpy has no bf16, and numba handles neither 16-bit type: the kernels get integers and widen their bits.
_CARRIERS = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}
_KEPT_TABLES = 256  # a bucket has two or three, and as many again of gradients that have moved
_LEAST_PIECE_NUMEL = 1 << 16  # below, waking another thread takes longer than the work
_LEAST_BYTES_PER_THREAD = 1 << 23  # likewise, of many tensors: some 0.2 ms
_PIECES_PER_THREAD = 8  # so that a thread that is held up leaves its share to the others

Array = NDArray[Any]
Numbers = tuple[int, ...]
Jobs = list[tuple[int, int]]


class CpuKernels(Kernels):
    """Compiled loops on several threads."""

    name = "cpu"

    def _update(self, columns: Columns, decay: Decay) -> Tensor:
        return _true_unless(_on_rows(numba_kernels.update_rows, columns, (32, 32, 32), decay.factors))

    def _update_quantize_pack(
        self, columns: Columns, starts: Sequence[int], decay: Decay, gain: float, key: Key
    ) -> Tensor:
        numbers = decay.factors, gain, key.unsigned_words()
        loop = numba_kernels.update_quantize_pack_rows
        return _true_unless(_on_rows(loop, columns, (32, 32, 1), *numbers, starts=starts))

    def _update_shape_pack(self, columns: Columns, decay: Decay, gain: float) -> Tensor:
        loop = numba_kernels.update_shape_pack_rows
        return _true_unless(_on_rows(loop, columns, (32, 32, 16, 1), decay.factors, gain))

    def _unpack_apply(self, columns: Columns, step: SignStep) -> None:
        _on_rows(numba_kernels.unpack_apply_rows, columns, (1,), *step.factors)

    def _quantize_pack(self, u: Tensor, out: Tensor, gain: float, start: int, key: Key) -> None:
        values, signs, words = as_array(u), as_array(out), key.unsigned_words()
        on_threads(
            _pieces(u.numel()),
            lambda lo, hi: numba_kernels.quantize_pack(values[lo:hi], _bytes(signs, lo, hi), gain, start + lo, words),
        )

    def _shape_pack(self, u: Tensor, residual: Tensor, out: Tensor, gain: float) -> None:
        values, left, signs = as_array(u), as_array(residual), as_array(out)
        on_threads(
            _pieces(u.numel()),
            lambda lo, hi: numba_kernels.shape_pack(values[lo:hi], left[lo:hi], _bytes(signs, lo, hi), gain),
        )

    def _merge(self, rows: Tensor, out: Tensor, numel: int, start: int, key: Key) -> None:
        many, signs, words = rows.numpy(), as_array(out), key.unsigned_words()
        on_threads(
            _pieces(numel), lambda lo, hi: numba_kernels.merge(many, lo, hi, _bytes(signs, lo, hi), start + lo, words)
        )

    def _merge_shaped(self, rows: Tensor, residual: Tensor, out: Tensor, numel: int) -> None:
        many, left, signs = rows.numpy(), as_array(residual), as_array(out)
        on_threads(_pieces(numel), lambda lo, hi: numba_kernels.merge_shaped(many, left, lo, hi, _bytes(signs, lo, hi)))

    def _mean(self, parts: Tensor, out: Tensor) -> None:
        rows, target = parts.detach().numpy(), as_array(out)
        on_threads(_pieces(out.numel()), lambda lo, hi: numba_kernels.mean(rows, target, lo, hi))


def _on_rows(
    loop: Callable[..., object], columns: Columns, bits: Numbers, *numbers: object, starts: Sequence[int] | None = None
) -> bool:
    """Run a loop over rows of a table of tensors, dtype by dtype of the first column; return whether one said so.

    Args:
        loop: takes a table, first row and end, what stands for the dtype, and the numbers.
        columns: tensors of the same numbers of elements.
        bits: what an element has in each column but the first.
        numbers: what else the loop takes.
        starts: where each tensor starts in the order of draws, if that matters.
    """
    said_so = False
    for dtype, some, begins in by_dtype(columns, *(() if starts is None else (starts,))):
        table, jobs = _table(some, (8 * dtype.itemsize, *bits), *begins)
        said_so |= on_threads(jobs, partial(_run_rows, loop, table, (carrier(dtype), *numbers)))
    return said_so


def _run_rows(loop: Callable[..., object], table: Array, numbers: Sequence[object], first: int, last: int) -> object:
    return loop(table, first, last, *numbers)


@cache
def carrier(dtype: torch.dtype) -> Array:
    """Return an empty array of what the kernels know a dtype by."""
    return as_array(torch.empty(0, dtype=dtype, device="cpu"))


def _table(columns: Columns, bits: Numbers, starts: Sequence[int] | None = None) -> tuple[Array, Jobs]:
    """Cut tensors into pieces and return a row for each, and which rows make a job.

    Args:
        columns: tensors of the same numbers of elements.
        bits: what an element has in each column.
        starts: where each tensor starts in the order of draws, if that matters.

    Returns:
        int64 rows of addresses, elements and, if asked for, start; first row and end of every job.
    """
    addresses = tuple(one.addresses for one in columns)
    begins = None if starts is None else tuple(starts)
    numels = columns[0].numels
    threads = min(torch.get_num_threads(), max(1, sum(numels) * sum(bits) // (8 * _LEAST_BYTES_PER_THREAD)))
    return _rows(addresses, bits, numels, begins, threads)


@lru_cache(maxsize=_KEPT_TABLES)
def _rows(
    addresses: tuple[Numbers, ...], bits: Numbers, numels: Numbers, starts: Numbers | None, threads: int
) -> tuple[Array, Jobs]:
    # One table of raw addresses for all tensors: one call into compiled code a thread, in place of one a tensor. A
    # model has hundreds of small tensors, and a Python call costs more than the update of a bias. It is made anew only
    # where something has moved.
    tensor, lo, sizes, jobs = _pieces_of_all(numels, threads)
    table = np.empty((sizes.size, len(addresses) + 1 + (starts is not None)), np.int64)
    for place, (some, its_bits) in enumerate(zip(addresses, bits, strict=True)):
        table[:, place] = np.array(some, np.int64)[tensor] + lo * its_bits // 8
    table[:, len(addresses)] = sizes
    if starts is not None:
        table[:, -1] = np.array(starts, np.int64)[tensor] + lo
    return table, jobs


@lru_cache(maxsize=_KEPT_TABLES)
def _pieces_of_all(numels: Numbers, threads: int) -> tuple[Array, Array, Array, Jobs]:
    """Return of each piece its tensor, first element there and elements, and which pieces make a job."""
    all_numels = np.array(numels, np.int64)
    total = int(all_numels.sum())
    piece = _piece_numel(total, threads) if threads > 1 else max(1, total)
    counts = -(-all_numels // piece)
    tensor = np.repeat(np.arange(all_numels.size), counts)
    lo = (np.arange(tensor.size) - np.repeat(counts.cumsum() - counts, counts)) * piece
    sizes = np.minimum(all_numels[tensor] - lo, piece)
    # A job is a run of pieces with about as many elements as one, so small tensors share a job.
    bounds = np.searchsorted(sizes.cumsum(), np.arange(piece, total + piece, piece))
    ends = [0, *np.unique(np.minimum(bounds + 1, tensor.size)).tolist()]
    return tensor, lo, sizes, list(pairwise(ends))


def as_array(tensor: Tensor) -> Array:
    """View a contiguous tensor as a 1-D array; bf16 and fp16 as the integers that `numba_kernels` knows them by."""
    flat = tensor.detach().view(-1)
    return flat.view(_CARRIERS.get(tensor.dtype, tensor.dtype)).numpy()


def _bytes(packed: Array, lo: int, hi: int) -> Array:
    """Return the bytes of the signs [lo, hi), lo a multiple of 8."""
    return packed[lo // 8 : (hi + 7) // 8]


@cache
def _true_unless(failed: bool) -> Tensor:
    # Kept: making a scalar takes 60 us behind a step that has filled the caches, and nobody changes a flag.
    return torch.tensor(not failed, device="cpu")


def _piece_numel(numel: int, threads: int) -> int:
    """Return the elements of each piece into which a vector is cut, a multiple of a draw group."""
    piece = max(_LEAST_PIECE_NUMEL, -(-numel // (threads * _PIECES_PER_THREAD)))
    return piece + -piece % GROUP_NUMEL


def _pieces(numel: int) -> Jobs:
    """Return first element and end of every piece of a vector."""
    piece = _piece_numel(numel, torch.get_num_threads())
    return [(lo, min(lo + piece, numel)) for lo in range(0, numel, piece)]


def on_threads(jobs: Jobs, run: Callable[[int, int], object]) -> bool:
    """Run all jobs on torch's number of threads, this one among them.

    Args:
        jobs: first and end of each job.
        run: does a job; returns something true if a value was not finite.

    Returns:
        Whether any job said so.
    """
    queue = iter(jobs)

    def drain() -> bool:
        # `next` on an iterator of a list is atomic: each job is taken once. `any` would stop at the first that is true
        # and leave the other jobs undone.
        return sum(bool(run(lo, hi)) for lo, hi in queue) > 0

    threads = torch.get_num_threads()
    # This thread works as well: for one job there is no other thread to wake.
    helpers = min(threads, len(jobs)) - 1
    if helpers < 0:
        return False
    if helpers == 0:
        return bool(run(jobs[0][0], jobs[-1][1]))  # nobody to share with
    futures: list[Future[bool]] = []
    try:
        futures += (_pool(threads, os.getpid()).submit(drain) for _ in range(helpers))
        here = drain()
    finally:
        _finish(queue, futures)
    return sum(future.result() for future in futures) > 0 or here


def _finish(queue: Iterator[tuple[int, int]], futures: Sequence[Future[bool]]) -> None:
    """Leave no job to take and wait for those taken, whatever interrupts: what they write to must outlive them."""
    interrupted: BaseException | None = None
    while True:
        try:
            deque(queue, maxlen=0)
            wait(futures)
            break
        except BaseException as error:  # kept until all is quiet
            interrupted = error
    if interrupted is not None:
        raise interrupted


@lru_cache(maxsize=1)
def _pool(threads: int, pid: int) -> ThreadPoolExecutor:  # noqa: ARG001 - a forked child needs a pool of its own
    return ThreadPoolExecutor(threads, thread_name_prefix="binsgdm")


kernels = CpuKernels()

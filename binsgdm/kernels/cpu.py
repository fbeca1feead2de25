"""The kernels for CPU tensors: compiled loops on as many threads as torch uses.

The threads are Python's own, since the loops release the GIL: numba's thread pool may not be entered from two threads
at once, and a backward hook and the main thread may both be here.
"""

# ruff: noqa: D103 - `binsgdm.kernels.interface.Kernels` says what these do

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
from binsgdm.kernels.columns import Columns, by_dtype, sign_factors
from binsgdm.kernels.keys import GROUP_NUMEL, Key

# numpy has no bf16, and numba handles neither 16-bit type: the kernels get integers and widen their bits.
_CARRIERS = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}
_KEPT_TABLES = 256  # a bucket has two or three, and as many again of gradients that have moved
_LEAST_PIECE_NUMEL = 1 << 16  # below, waking another thread takes longer than the work
_LEAST_BYTES_PER_THREAD = 1 << 23  # likewise, of many tensors: some 0.2 ms
_PIECES_PER_THREAD = 8  # so that a thread that is held up leaves its share to the others

Array = NDArray[Any]
Numbers = tuple[int, ...]
Jobs = list[tuple[int, int]]


def update(columns: Columns, decay: Sequence[float]) -> Tensor:
    return _true_unless(_on_rows(numba_kernels.update, columns, (32, 32, 32), decay))


def update_quantize_pack(
    columns: Columns, starts: Sequence[int], decay: Sequence[float], gain: float, key: Key
) -> Tensor:
    numbers = decay, gain, key.unsigned_words()
    return _true_unless(_on_rows(numba_kernels.update_quantize_pack, columns, (32, 32, 1), *numbers, starts=starts))


def update_shape_pack(columns: Columns, decay: Sequence[float], gain: float) -> Tensor:
    return _true_unless(_on_rows(numba_kernels.update_shape_pack, columns, (32, 32, 16, 1), decay, gain))


def unpack_apply(columns: Columns, lr: float, weight_decay: float, maximize: bool) -> None:
    factors = sign_factors(lr, weight_decay, maximize)
    _on_rows(numba_kernels.unpack_apply, columns, (1,), *factors, only_read=1)


def quantize_pack(columns: Columns, start: int, gain: float, key: Key) -> None:
    numbers = gain, key.unsigned_words()
    _on_rows(numba_kernels.quantize_pack, columns, (1,), *numbers, starts=(start,), least_bytes=1)


def shape_pack(columns: Columns, gain: float) -> None:
    _on_rows(numba_kernels.shape_pack, columns, (16, 1), gain, least_bytes=1)


def merge(rows: Tensor, out: Tensor, numel: int, start: int, key: Key) -> None:
    _on_groups(numba_kernels.merge, rows, [out], numel, start, key.unsigned_words())


def merge_shaped(rows: Tensor, residual: Tensor, out: Tensor, numel: int) -> None:
    _on_groups(numba_kernels.merge_shaped, rows, [out, residual], numel)


def mean(parts: Tensor, out: Tensor) -> None:
    rows, target = parts.detach().numpy(), as_array(out)
    on_threads(_pieces(out.numel()), lambda lo, hi: numba_kernels.mean(rows, target, lo, hi))


def _on_groups(
    loop: Callable[..., object], rows: Tensor, written: Sequence[Tensor], numel: int, start: int = 0, *key: object
) -> None:
    """Run a loop over vectors of packed signs, K x P.

    Args:
        loop: takes whole groups only: the arrays, first element and end, and start and key if there is one.
        rows: the vectors.
        written: packed signs, and maybe a residual.
        numel: of a vector.
        start: where they start in the order of draws.
        key: of the draws, if any.
    """
    whole = 0 if start % GROUP_NUMEL else numel // GROUP_NUMEL * GROUP_NUMEL
    arrays, numbers = [rows.numpy(), *map(as_array, written)], (start, *key) if key else ()
    on_threads(_pieces(whole), lambda lo, hi: loop(*arrays, lo, hi, *numbers))
    if whole == numel:
        return
    # Of no vector that is exchanged: what is left, padded to whole groups.
    before, after = start % GROUP_NUMEL, -(start + numel) % GROUP_NUMEL

    def padded(tensor: Tensor) -> Tensor:
        each = 8 if tensor.dtype == torch.uint8 else 1
        return torch.nn.functional.pad(tensor[..., whole // each :], (before // each, after // each))

    copies = [padded(tensor.view(-1)) for tensor in written]
    _on_groups(loop, padded(rows), copies, before + numel - whole + after, start + whole - before, *key)
    for tensor, copied in zip(written, copies, strict=True):
        each = 8 if tensor.dtype == torch.uint8 else 1
        left = tensor.view(-1)[whole // each :]
        left.copy_(copied[before // each :][: left.numel()])
    if numel % 8:
        written[0].view(-1)[-1] &= 0xFF00 >> numel % 8 & 0xFF  # padding bits must be 0 on all ranks


def _on_rows(  # noqa: PLR0913
    loop: Callable[..., object],
    columns: Columns,
    bits: Numbers,
    *numbers: object,
    starts: Sequence[int] | None = None,
    only_read: int = 0,
    least_bytes: int = _LEAST_BYTES_PER_THREAD,
) -> bool:
    """Run a loop over rows of a table of tensors, dtype by dtype of the first column; return whether one said so.

    Args:
        loop: takes a table, first row and end, what stands for the dtype, and the numbers.
        columns: tensors of the same numbers of elements.
        bits: what an element has in each column but the first.
        numbers: what else the loop takes.
        starts: where each tensor starts in the order of draws, if that matters.
        only_read: the column that does not change.
        least_bytes: what is worth a thread.
    """
    said_so = False
    for dtype, some, (begins,) in by_dtype(columns, starts or (0,) * len(columns[0])):
        sizes, head = some[0].numels, (8 * dtype.itemsize, *bits, only_read)
        threads = min(torch.get_num_threads(), max(1, sum(sizes) * sum(head) // (8 * least_bytes)))
        table, jobs = _table(tuple([column.addresses for column in some]), head, sizes, tuple(begins), threads)
        run = partial(_run_rows, loop, table, (carrier(dtype), *numbers))
        said_so |= on_threads(jobs, run)
    return said_so


def _run_rows(loop: Callable[..., object], table: Array, numbers: Sequence[object], first: int, last: int) -> object:
    return loop(table, first, last, *numbers)


@cache
def carrier(dtype: torch.dtype) -> Array:
    """Return an empty array of what the kernels know a dtype by."""
    return as_array(torch.empty(0, dtype=dtype, device="cpu"))


@lru_cache(maxsize=_KEPT_TABLES)
def _table(
    addresses: tuple[Numbers, ...], head: Numbers, numels: Numbers, starts: Numbers, threads: int
) -> tuple[Array, Jobs]:
    """Cut tensors into rows of a table, see `numba_kernels`, and tell which rows make a job."""
    # One table of raw addresses for all tensors: one call into compiled code a thread, in place of one a tensor. A
    # model has hundreds of small tensors, and a Python call costs more than the update of a bias. It is made anew only
    # where something has moved.
    tensor, lo, sizes, begins, jobs = _cuts(numels, starts, threads)
    table = np.zeros((1 + sizes.size, len(addresses) + 2), np.int64)
    table[0, : len(head)] = head
    for place, some in enumerate(addresses):
        table[1:, place] = np.array(some, np.int64)[tensor] + lo * head[place] // 8
    table[1:, -2] = sizes
    table[1:, -1] = begins
    return table, jobs


@lru_cache(maxsize=_KEPT_TABLES)
def _cuts(numels: Numbers, starts: Numbers, threads: int) -> tuple[Array, Array, Array, Array, Jobs]:
    """Return of each row its tensor, first element there, elements and start, and which rows make a job."""
    all_numels = np.array(numels, np.int64)
    total = int(all_numels.sum())
    piece = _piece_numel(total, threads) if threads > 1 else max(1, total)
    counts = -(-all_numels // piece)
    tensor = np.repeat(np.arange(all_numels.size), counts)
    lo = (np.arange(tensor.size) - np.repeat(counts.cumsum() - counts, counts)) * piece
    sizes = np.minimum(all_numels[tensor] - lo, piece)
    # Of each piece, what is before its whole groups, these, and what is behind them.
    before = np.minimum(sizes, -(np.array(starts, np.int64)[tensor] + lo) % GROUP_NUMEL)
    behind = (sizes - before) % GROUP_NUMEL
    lo = np.stack([lo, lo + before, lo + sizes - behind], axis=1).reshape(-1)
    sizes = np.stack([before, sizes - before - behind, behind], axis=1).reshape(-1)
    tensor, lo, sizes = (column[sizes > 0] for column in (np.repeat(tensor, 3), lo, sizes))
    # A job is a run of rows with about as many elements as a piece, so small tensors share a job.
    bounds = np.searchsorted(sizes.cumsum(), np.arange(piece, total + piece, piece))
    ends = [1, *(1 + np.unique(np.minimum(bounds + 1, tensor.size))).tolist()]
    return tensor, lo, sizes, np.array(starts, np.int64)[tensor] + lo, list(pairwise(ends))


def as_array(tensor: Tensor) -> Array:
    """View a contiguous tensor as a 1-D array; bf16 and fp16 as the integers that `numba_kernels` knows them by."""
    flat = tensor.detach().view(-1)
    return flat.view(_CARRIERS.get(tensor.dtype, tensor.dtype)).numpy()


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

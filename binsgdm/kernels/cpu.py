"""The kernels for CPU tensors: compiled loops on as many threads as torch uses.

The threads are Python's own, since the loops release the GIL: numba's thread pool may not be entered from two threads
at once, and a backward hook and the main thread may both be here.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from binsgdm.kernels import checks, numba_kernels
from binsgdm.random import GROUP_NUMEL, Key

name = "cpu"

# numpy has no bf16, and numba handles neither 16-bit type: the kernels get integers and widen their bits.
_CARRIERS = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}
_LEAST_PIECE_NUMEL = 1 << 16  # below, waking another thread takes longer than the work
_PIECES_PER_THREAD = 8  # so that a thread that is held up leaves its share to the others

Array = NDArray[Any]
Jobs = list[tuple[int, int]]
Decay = tuple[float, float, float, float]  # beta, 1 - beta, beta_b, 1 - beta_b


def update_(  # noqa: PLR0913
    grad: Tensor, m: Tensor, b: Tensor, *, beta: float, beta_b: float, out_u: Tensor
) -> Tensor:
    """Update both momenta and write u = m / b; see `binsgdm.kernels.Kernels`."""
    return foreach_update_([grad], [m], [b], beta=beta, beta_b=beta_b, outs_u=[out_u])


def foreach_update_(  # noqa: PLR0913
    grads: Sequence[Tensor],
    ms: Sequence[Tensor],
    bs: Sequence[Tensor],
    *,
    beta: float,
    beta_b: float,
    outs_u: Sequence[Tensor],
) -> Tensor:
    """Do `update_` for many tensors; see `binsgdm.kernels.Kernels`."""
    for given in zip(grads, ms, bs, outs_u, strict=True):
        checks.update(*given)
    failed = False
    for like, (some_g, some_m, some_b, some_u) in _by_dtype(grads, ms, bs, outs_u):
        table, jobs = _table([(some_g, 8 * like.itemsize), (some_m, 32), (some_b, 32), (some_u, 32)])
        failed |= _on_threads(jobs, partial(_update_rows, table, like, _decay(beta, beta_b)))
    return _true_unless(failed)


def update_quantize_pack_(  # noqa: PLR0913
    grad: Tensor,
    m: Tensor,
    b: Tensor,
    *,
    beta: float,
    beta_b: float,
    key: Key,
    start: int,
    out: Tensor,
    gain: float = 1.0,
) -> Tensor:
    """Update both momenta and write the packed signs of Q(m / b); see `binsgdm.kernels.Kernels`."""
    where: dict[str, Any] = {"key": key, "starts": [start], "outs": [out], "gain": gain}
    return foreach_update_quantize_pack_([grad], [m], [b], beta=beta, beta_b=beta_b, **where)


def foreach_update_quantize_pack_(  # noqa: PLR0913
    grads: Sequence[Tensor],
    ms: Sequence[Tensor],
    bs: Sequence[Tensor],
    *,
    beta: float,
    beta_b: float,
    key: Key,
    starts: Sequence[int],
    outs: Sequence[Tensor],
    gain: float = 1.0,
) -> Tensor:
    """Do `update_quantize_pack_` for many tensors; see `binsgdm.kernels.Kernels`."""
    for grad, m, b, start, out in zip(grads, ms, bs, starts, outs, strict=True):
        checks.update(grad, m, b)
        checks.quantized(out, numel=grad.numel(), start=start, device=grad.device)
    words, failed, decay = _words(key), False, _decay(beta, beta_b)
    for like, (some_g, some_m, some_b, some_out, begins) in _by_dtype(grads, ms, bs, outs, starts):
        table, jobs = _table([(some_g, 8 * like.itemsize), (some_m, 32), (some_b, 32), (some_out, 1)], begins)
        failed |= _on_threads(jobs, partial(_update_quantize_pack_rows, table, like, decay, gain, words))
    return _true_unless(failed)


def update_shape_pack_(  # noqa: PLR0913
    grad: Tensor, m: Tensor, b: Tensor, residual: Tensor, *, beta: float, beta_b: float, gain: float, out: Tensor
) -> Tensor:
    """Update both momenta and write the packed signs of m / b, shaped; see `binsgdm.kernels.Kernels`."""
    return foreach_update_shape_pack_([grad], [m], [b], [residual], beta=beta, beta_b=beta_b, gain=gain, outs=[out])


def foreach_update_shape_pack_(  # noqa: PLR0913
    grads: Sequence[Tensor],
    ms: Sequence[Tensor],
    bs: Sequence[Tensor],
    residuals: Sequence[Tensor],
    *,
    beta: float,
    beta_b: float,
    gain: float,
    outs: Sequence[Tensor],
) -> Tensor:
    """Do `update_shape_pack_` for many tensors; see `binsgdm.kernels.Kernels`."""
    checks.updates(grads, ms, bs)
    checks.all_shaped(outs, residuals, grads)
    failed, decay = False, _decay(beta, beta_b)
    for like, (some_g, *averages, some_e, some_out) in _by_dtype(grads, ms, bs, residuals, outs):
        columns = [(some_g, 8 * like.itemsize), *((some, 32) for some in averages), (some_e, 16), (some_out, 1)]
        table, jobs = _table(columns)
        failed |= _on_threads(jobs, partial(_update_shape_pack_rows, table, like, decay, gain))
    return _true_unless(failed)


def quantize_pack(u: Tensor, *, key: Key, start: int, out: Tensor, gain: float = 1.0) -> None:
    """Write Q(u), packed; see `binsgdm.kernels.Kernels`."""
    checks.tensor("u", u, numel=u.numel(), dtypes=checks.FP32, device=u.device)
    checks.quantized(out, numel=u.numel(), start=start, device=u.device)
    values, signs, words = _array(u), _array(out), _words(key)
    _on_threads(
        _pieces(u.numel()),
        lambda lo, hi: numba_kernels.quantize_pack(values[lo:hi], _bytes(signs, lo, hi), gain, start + lo, words),
    )


def shape_pack_(u: Tensor, residual: Tensor, *, gain: float, out: Tensor) -> None:
    """Write the signs of u, shaped, packed; see `binsgdm.kernels.Kernels`."""
    checks.tensor("u", u, numel=u.numel(), dtypes=checks.FP32, device=u.device)
    checks.shaped(out, residual, u)
    values, left, signs = _array(u), _array(residual), _array(out)
    _on_threads(
        _pieces(u.numel()),
        lambda lo, hi: numba_kernels.shape_pack(values[lo:hi], left[lo:hi], _bytes(signs, lo, hi), gain),
    )


def merge(packed_rows: Tensor, *, numel: int, key: Key, start: int, out: Tensor) -> None:
    """Write Q of the mean of K sign vectors, packed; see `binsgdm.kernels.Kernels`."""
    checks.merge(packed_rows, numel=numel, start=start, out=out)
    rows, signs, words = packed_rows.numpy(), _array(out), _words(key)
    _on_threads(
        _pieces(numel), lambda lo, hi: numba_kernels.merge(rows, lo, hi, _bytes(signs, lo, hi), start + lo, words)
    )


def merge_shaped_(packed_rows: Tensor, residual: Tensor, *, numel: int, out: Tensor) -> None:
    """Write the signs of the mean of K sign vectors, shaped, packed; see `binsgdm.kernels.Kernels`."""
    checks.merge_shaped(packed_rows, residual, numel=numel, out=out)
    rows, left, signs = packed_rows.numpy(), _array(residual), _array(out)
    _on_threads(_pieces(numel), lambda lo, hi: numba_kernels.merge_shaped(rows, left, lo, hi, _bytes(signs, lo, hi)))


def mean_(parts: Tensor, out: Tensor) -> None:
    """Write the mean of K vectors, summed in order and divided once; see `binsgdm.kernels.Kernels`."""
    checks.mean(parts, out)
    rows, target = parts.detach().numpy(), _array(out)
    _on_threads(_pieces(out.numel()), lambda lo, hi: numba_kernels.mean(rows, target, lo, hi))


def unpack_apply_(x: Tensor, packed: Tensor, *, lr: float, weight_decay: float, maximize: bool = False) -> None:
    """Do x = x (1 - lr weight_decay) - lr sign; see `binsgdm.kernels.Kernels`."""
    foreach_unpack_apply_([x], [packed], lr=lr, weight_decay=weight_decay, maximize=maximize)


def foreach_unpack_apply_(
    xs: Sequence[Tensor], packed: Sequence[Tensor], *, lr: float, weight_decay: float, maximize: bool = False
) -> None:
    """Do `unpack_apply_` for many tensors; see `binsgdm.kernels.Kernels`."""
    for x, signs in zip(xs, packed, strict=True):
        checks.apply(x, signs)
    # Computed in double precision and rounded to fp32 once, in the kernel, as the reference rounds it.
    decay, step = 1.0 - lr * weight_decay, -lr if maximize else lr
    for like, (some_x, some_signs) in _by_dtype(xs, packed):
        table, jobs = _table([(some_x, 8 * like.itemsize), (some_signs, 1)])
        _on_threads(jobs, partial(_unpack_apply_rows, table, like, step, decay))


def _update_rows(table: Array, like: Array, decay: Decay, first: int, last: int) -> object:
    return numba_kernels.update_rows(table, first, last, like, decay)


def _update_quantize_pack_rows(  # noqa: PLR0913, PLR0917
    table: Array, like: Array, decay: Decay, gain: float, words: tuple[int, ...], first: int, last: int
) -> object:
    return numba_kernels.update_quantize_pack_rows(table, first, last, like, decay, gain, words)


def _update_shape_pack_rows(  # noqa: PLR0913, PLR0917
    table: Array, like: Array, decay: Decay, gain: float, first: int, last: int
) -> object:
    return numba_kernels.update_shape_pack_rows(table, first, last, like, decay, gain)


def _unpack_apply_rows(  # noqa: PLR0913, PLR0917
    table: Array, like: Array, step: float, decay: float, first: int, last: int
) -> object:
    return numba_kernels.unpack_apply_rows(table, first, last, like, step, decay)


def _by_dtype(tensors: Sequence[Tensor], *others: Sequence[Any]) -> Iterator[tuple[Array, list[list[Any]]]]:
    """Give, for each dtype of the tensors, an empty array of it and what belongs to the tensors that have it."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        chosen = [number for number, tensor in enumerate(tensors) if tensor.dtype == dtype]
        yield (
            _array(torch.empty(0, dtype=dtype, device="cpu")),
            [[given[n] for n in chosen] for given in (tensors, *others)],
        )


def _table(columns: Sequence[tuple[list[Tensor], int]], starts: Sequence[int] | None = None) -> tuple[Array, Jobs]:
    """Cut tensors into pieces and return a row for each, and which rows make a job.

    Args:
        columns: tensors of the same numbers of elements, and how many bits per element has in them.
        starts: where each tensor starts in the order of draws, if that matters.

    Returns:
        int64 rows of addresses, elements and, if asked for, start; first row and end of every job.
    """
    # One table of raw addresses for all tensors: one call into compiled code a thread, in place of one a tensor. A
    # model has hundreds of small tensors, and a Python call costs more than the update of a bias.
    numels = np.array([tensor.numel() for tensor in columns[0][0]], np.int64)
    piece = _piece_numel(int(numels.sum()))
    counts = -(-numels // piece)
    tensor = np.repeat(np.arange(numels.size), counts)
    lo = (np.arange(tensor.size) - np.repeat(counts.cumsum() - counts, counts)) * piece
    addresses = [np.array([t.data_ptr() for t in some], np.int64)[tensor] + lo * bits // 8 for some, bits in columns]
    sizes = np.minimum(numels[tensor] - lo, piece)
    first_draw = [] if starts is None else [np.array(starts, np.int64)[tensor] + lo]
    # A job is a run of rows with about one piece of elements, so small tensors share a job.
    bounds = np.searchsorted(sizes.cumsum(), np.arange(piece, int(numels.sum()) + piece, piece))
    ends = [0, *np.unique(np.minimum(bounds + 1, tensor.size)).tolist()]
    return np.stack([*addresses, sizes, *first_draw], axis=1), list(pairwise(ends))


def _array(tensor: Tensor) -> Array:
    """View a contiguous tensor as a 1-D array; bf16 and fp16 as the integers that `numba_kernels` knows them by."""
    flat = tensor.detach().view(-1)
    return flat.view(_CARRIERS.get(tensor.dtype, tensor.dtype)).numpy()


def _bytes(packed: Array, lo: int, hi: int) -> Array:
    """Return the bytes of the signs [lo, hi), lo a multiple of 8."""
    return packed[lo // 8 : (hi + 7) // 8]


def _words(key: Key) -> tuple[int, int, int, int, int]:
    return key.seed & 0xFFFFFFFF, key.seed >> 32, key.step, key.rank, int(key.stream)


def _decay(beta: float, beta_b: float) -> Decay:
    beta, beta_b = float(beta), float(beta_b)
    return beta, 1.0 - beta, beta_b, 1.0 - beta_b


def _true_unless(failed: bool) -> Tensor:
    return torch.tensor(not failed, device="cpu")


def _piece_numel(numel: int) -> int:
    """Return the elements of each piece into which a vector is cut, a multiple of a draw group."""
    piece = max(_LEAST_PIECE_NUMEL, -(-numel // (torch.get_num_threads() * _PIECES_PER_THREAD)))
    return piece + -piece % GROUP_NUMEL


def _pieces(numel: int) -> Jobs:
    """Return first element and end of every piece of a vector."""
    piece = _piece_numel(numel)
    return [(lo, min(lo + piece, numel)) for lo in range(0, numel, piece)]


def _on_threads(jobs: Jobs, run: Callable[[int, int], object]) -> bool:
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
    if helpers <= 0:
        return drain()
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

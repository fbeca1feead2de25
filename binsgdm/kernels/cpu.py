"""The kernels for CPU tensors: compiled loops on as many threads as torch uses.

The threads are Python's own, since the loops release the GIL: numba's thread pool may not be entered from two threads
at once, and a backward hook and the main thread may both be here.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from binsgdm.kernels import checks, vector
from binsgdm.random import Key

name = "cpu"

_CARRIERS = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}
_EXPONENTS: dict[torch.dtype, Any] = {
    torch.float32: np.int32(0x7F800000),
    torch.bfloat16: np.int16(0x7F80),
    torch.float16: np.int16(0x7C00),
}
_LEAST_PIECE_NUMEL = 1 << 16  # below, waking another thread takes longer than the work
_PIECES_PER_THREAD = 8  # so that a thread that is held up leaves its share to the others

Array = NDArray[Any]


def is_finite(grad: Tensor) -> Tensor:
    """Tell whether every element is finite, as a boolean scalar."""
    checks.tensor("grad", grad, numel=grad.numel(), dtypes=checks.FLOATS, device=torch.device("cpu"))
    exponent = _EXPONENTS[grad.dtype]
    bits = _array(grad).view(exponent.dtype)
    return _true_unless(_on_threads(grad.numel(), lambda lo, hi: not vector.is_finite(bits[lo:hi], exponent)))


def update_(grad: Tensor, m: Tensor, b: Tensor, *, beta: float, out_u: Tensor) -> Tensor:
    """Update both momenta and write u = m / b; see `binsgdm.kernels.Kernels`."""
    checks.update(grad, m, b, out_u)
    arrays = [_array(given) for given in (grad, m, b, out_u)]
    failed = _on_threads(
        grad.numel(), lambda lo, hi: vector.update(*(array[lo:hi] for array in arrays), beta, 1.0 - beta)
    )
    return _true_unless(failed)


def update_quantize_pack_(  # noqa: PLR0913
    grad: Tensor, m: Tensor, b: Tensor, *, beta: float, key: Key, start: int, out: Tensor
) -> Tensor:
    """Update both momenta and write the packed signs of Q(m / b); see `binsgdm.kernels.Kernels`."""
    checks.update(grad, m, b)
    checks.quantized(out, numel=grad.numel(), start=start, device=grad.device)
    arrays, signs, words = [_array(given) for given in (grad, m, b)], _array(out), _words(key)

    def run(lo: int, hi: int) -> int:
        pieces = [array[lo:hi] for array in arrays]
        done: int = vector.update_quantize_pack(*pieces, _bytes(signs, lo, hi), beta, 1.0 - beta, start + lo, words)
        return done

    return _true_unless(_on_threads(grad.numel(), run))


def quantize_pack(u: Tensor, *, key: Key, start: int, out: Tensor) -> None:
    """Write Q(u), packed; see `binsgdm.kernels.Kernels`."""
    checks.tensor("u", u, numel=u.numel(), dtypes=checks.FP32, device=u.device)
    checks.quantized(out, numel=u.numel(), start=start, device=u.device)
    values, signs, words = _array(u), _array(out), _words(key)
    _on_threads(u.numel(), lambda lo, hi: vector.quantize_pack(values[lo:hi], _bytes(signs, lo, hi), start + lo, words))


def merge(packed_rows: Tensor, *, numel: int, key: Key, start: int, out: Tensor) -> None:
    """Write Q of the mean of K sign vectors, packed; see `binsgdm.kernels.Kernels`."""
    checks.merge(packed_rows, numel=numel, start=start, out=out)
    rows, signs, words = packed_rows.numpy(), _array(out), _words(key)
    _on_threads(numel, lambda lo, hi: vector.merge(rows, lo, hi, _bytes(signs, lo, hi), start + lo, words))


def mean_(parts: Tensor, out: Tensor) -> None:
    """Write the mean of K vectors, summed in order and divided once; see `binsgdm.kernels.Kernels`."""
    checks.mean(parts, out)
    rows, target = parts.detach().numpy(), _array(out)
    _on_threads(out.numel(), lambda lo, hi: vector.mean(rows, target, lo, hi))


def unpack_apply_(x: Tensor, packed: Tensor, *, lr: float, weight_decay: float, maximize: bool = False) -> None:
    """Do x = x (1 - lr weight_decay) - lr sign; see `binsgdm.kernels.Kernels`."""
    checks.apply(x, packed)
    values, signs = _array(x), _array(packed)
    decay, step = 1.0 - lr * weight_decay, -lr if maximize else lr
    _on_threads(x.numel(), lambda lo, hi: vector.unpack_apply(values[lo:hi], _bytes(signs, lo, hi), step, decay))


def _array(tensor: Tensor) -> Array:
    """View a contiguous tensor as a 1-D array; bf16 and fp16 as the integers that `vector` knows them by."""
    flat = tensor.detach().view(-1)
    return flat.view(_CARRIERS.get(tensor.dtype, tensor.dtype)).numpy()


def _bytes(packed: Array, lo: int, hi: int) -> Array:
    """Return the bytes of the signs [lo, hi), lo a multiple of 8."""
    return packed[lo // 8 : (hi + 7) // 8]


def _words(key: Key) -> tuple[int, int, int, int, int]:
    return key.seed & 0xFFFFFFFF, key.seed >> 32, key.step, key.rank, int(key.stream)


def _true_unless(failed: bool) -> Tensor:
    return torch.tensor(not failed)


def _on_threads(numel: int, run: Callable[[int, int], object]) -> bool:
    """Run over pieces of [0, numel) on torch's number of threads, this one among them.

    Returns:
        Whether any run returned something true.
    """
    threads = torch.get_num_threads()
    piece = max(_LEAST_PIECE_NUMEL, -(-numel // (threads * _PIECES_PER_THREAD)))
    piece += -piece % 32
    starts = iter(range(0, numel, piece))

    def drain() -> bool:
        # `next` on a range is atomic: each piece is taken once.
        return sum(bool(run(lo, min(lo + piece, numel))) for lo in starts) > 0

    helpers = min(threads, -(-numel // piece)) - 1
    if helpers <= 0:
        return drain()
    futures = [_pool(threads, os.getpid()).submit(drain) for _ in range(helpers)]
    here = drain()
    return sum(future.result() for future in futures) > 0 or here


@lru_cache(maxsize=1)
def _pool(threads: int, pid: int) -> ThreadPoolExecutor:  # noqa: ARG001 - a forked child needs a pool of its own
    return ThreadPoolExecutor(threads, thread_name_prefix="binsgdm")

"""Quantizers' loops for CPU tensors, with the bits of the plain form that callers have where there is no numba.

Keys are those of `binsgdm.kernels.random` as `Key.unsigned_words` gives them.

Shape letters: N elements, B blocks of `block_size` elements, L levels, P bytes.
"""

import math
import os
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from binsgdm.kernels.triton_support import ENVIRONMENT_VARIABLE, Words

# A thread's share, a multiple of the loops' blocks and of 5 trits; below, waking another thread takes longer.
_PIECE_NUMEL = 5 << 14


def is_used_on(device: torch.device) -> bool:
    """Tell whether what plain torch computes in many passes is left to compiled loops: on a CPU, unless told otherwise.

    Where operations are counted or only thought of, they are those of the plain form.
    """
    is_wanted = device.type == "cpu" and os.environ.get(ENVIRONMENT_VARIABLE) != "reference"
    return is_wanted and _get_current_dispatch_mode() is None and _has_numba()


@cache
def _has_numba() -> bool:
    try:
        import_module("numba")
    except ImportError:
        return False
    return True


def _loop(name: str) -> Any:
    """Return a loop; one that is not compiled yet, by one process of a machine, from whose cache others load it."""
    loop = getattr(import_module("binsgdm.kernels.quantizer_loops"), name)  # with numba, a fifth of a second
    return loop if loop.signatures else partial(_called_in_turn, loop)


def _called_in_turn(loop: Callable[..., Any], *arguments: Any) -> Any:
    results: list[Any] = []
    first_use = import_module("binsgdm.kernels.first_use")
    first_use.compile_in_turn(lambda: results.append(loop(*arguments)), _notice())
    return results[0]


@cache
def _notice() -> Any:
    return import_module("binsgdm.kernels.first_use").Notice()


def _run(numel: int, run: Callable[[int, int], object], piece: int = _PIECE_NUMEL) -> None:
    """Run a loop over all elements, on as many threads as torch uses."""
    on_threads = import_module("binsgdm.kernels.cpu").on_threads
    on_threads([(lo, min(lo + piece, numel)) for lo in range(0, numel, piece)], run)


def filled(
    name: str,
    size: int,
    *inputs: Any,
    dtype: torch.dtype = torch.float32,
    numel: int | None = None,
    per: int = 1,
) -> Tensor:
    """Return what a loop of `binsgdm.kernels.quantizer_loops` writes from its inputs, (size,), on torch's threads.

    Args:
        name: of the loop.
        size: elements of the result.
        inputs: what the loop takes before the result.
        dtype: of the result.
        numel: elements that it runs over, where they are not those of the result.
        per: values behind each of these.
    """
    out = torch.empty(size, dtype=dtype, device="cpu")
    loop, array = _loop(name), out.numpy()
    arguments = [_flat(value) if isinstance(value, Tensor) else value for value in inputs]
    piece = max(1, _PIECE_NUMEL // per)
    _run(size if numel is None else numel, lambda lo, hi: loop(*arguments, array, lo, hi), piece)
    return out


def _flat(tensor: Tensor) -> Any:
    return tensor.detach().contiguous().numpy()


def smallest_draws(key: Words, numel: int, count: int) -> Tensor | None:
    """Return the elements of the smallest draws, of equal ones the first, ascending; None if too many are small."""
    # Draws are even: with six standard deviations more than wanted, enough are below the limit.
    wanted = min(numel, math.ceil(count + 6 * math.sqrt(count) + 16))
    tickets = np.empty(min(numel, 2 * wanted), np.int64)
    num_small = _loop("smallest_draws")(numel, math.ceil(2**32 * wanted / numel), key, tickets)
    if num_small < count:  # too few, or -1
        return None
    chosen = np.partition(tickets[:num_small], count - 1)[:count] & 2**31 - 1
    chosen.sort()
    return torch.from_numpy(chosen)


@cache
def tables(levels: tuple[float, ...]) -> tuple[Any, Any]:
    """Return levels, and these with infinities behind them: a power of 2, less one."""
    grid = np.array(levels, np.float32)
    padded = np.full(2 ** math.ceil(math.log2(len(levels) + 1)) - 1, np.inf, np.float32)
    padded[: grid.size] = grid
    return grid, padded


# Selections by magnitude, whose bits without the sign are ordered as the magnitudes


def count_above(values: Tensor, threshold: int) -> int:
    """Return how many bit patterns of magnitudes are above a threshold."""
    loop, flat, counts = _loop("count_above"), _flat(values), []
    _run(values.numel(), lambda lo, hi: counts.append(loop(flat, threshold, lo, hi)))
    return sum(counts)


def indices_above(values: Tensor, threshold: int, most: int) -> Tensor | None:
    """Return where bit patterns of magnitudes are above a threshold, ascending; None if there are more than `most`."""
    out = np.empty(most, np.int64)
    count = _loop("indices_above")(_flat(values), threshold, out)
    return None if count < 0 else torch.from_numpy(out[:count])

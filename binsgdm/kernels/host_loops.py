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


def fill(name: str, out: Tensor, *inputs: Any, numel: int | None = None, piece: int = _PIECE_NUMEL) -> Tensor:
    """Let a loop write a tensor, from what it takes before that; it runs over as many elements, or `numel`."""
    loop, array = _loop(name), out.numpy()
    arguments = [_flat(value) if isinstance(value, Tensor) else value for value in inputs]
    _run(out.numel() if numel is None else numel, lambda lo, hi: loop(*arguments, array, lo, hi), piece)
    return out


def _flat(tensor: Tensor) -> Any:
    return tensor.detach().contiguous().numpy()


def _empty(numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(numel, dtype=dtype, device="cpu")


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


# Scales, and levels of them


def largest(values: Tensor, block_size: int) -> Tensor:
    """Return the largest magnitude of every block (B), NaN where one is not finite."""
    out = _empty(-(-values.numel() // block_size))
    return fill("largest", out, values, block_size, piece=max(1, _PIECE_NUMEL // block_size))


def round_to_levels(values: Tensor, scales: Tensor, block_size: int, levels: tuple[float, ...], key: Words) -> Tensor:
    """Do `binsgdm.compressors.levels.round_to_levels` of the fractions of scales (B): uint8 (N)."""
    out = _empty(values.numel(), torch.uint8)
    return fill("round_to_levels", out, values, scales, block_size, *_tables(levels), key)


@cache
def _tables(levels: tuple[float, ...]) -> tuple[Any, Any]:
    """Return levels, and these with infinities behind them: a power of 2, less one."""
    grid = np.array(levels, np.float32)
    padded = np.full(2 ** math.ceil(math.log2(len(levels) + 1)) - 1, np.inf, np.float32)
    padded[: grid.size] = grid
    return grid, padded


def levels_times_scales(codes: Tensor, table: Tensor, scales: Tensor, block_size: int) -> Tensor:
    """Return of each code, uint8 (N), its entry of a table (L) times its scale (B)."""
    return fill("levels_times_scales", _empty(codes.numel()), codes, table, scales, block_size)


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Do `binsgdm.compressors.levels.pack_codes`."""
    out = _empty(-(-codes.numel() * bits // 8), torch.uint8)
    return fill("pack_codes", out, codes, bits, numel=codes.numel())


def unpack_codes(packed: Tensor, bits: int, numel: int) -> Tensor:
    """Do `binsgdm.compressors.levels.unpack_codes`."""
    return fill("unpack_codes", _empty(numel, torch.uint8), packed, bits)


def pack_trits(codes: Tensor) -> Tensor:
    """Do `binsgdm.compressors.levels.pack_trits`."""
    return fill("pack_trits", _empty(-(-codes.numel() // 5), torch.uint8), codes, numel=codes.numel())


def bytes_of_scales(values: Tensor, scales: Tensor, block_size: int, largest_byte: int) -> Tensor:
    """Return values over their scale (B) times the largest byte, rounded half to even; 0 where that is NaN."""
    return fill("bytes_of_scales", _empty(values.numel(), torch.int8), values, scales, block_size, largest_byte)


def bytes_times_steps(codes: Tensor, steps: Tensor, block_size: int) -> Tensor:
    """Return each byte times its step (B)."""
    return fill("bytes_times_steps", _empty(codes.numel()), codes, steps, block_size)


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

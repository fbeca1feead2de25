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
    found = getattr(import_module("binsgdm.kernels.quantizer_loops"), name)  # with numba, a fifth of a second
    return found if found.signatures else partial(_called_in_turn, found)


def _called_in_turn(loop: Callable[..., Any], *given: Any) -> Any:
    results: list[Any] = []
    first_use = import_module("binsgdm.kernels.first_use")
    first_use.compile_in_turn(lambda: results.append(loop(*given)), _notice())
    return results[0]


@cache
def _notice() -> Any:
    return import_module("binsgdm.kernels.first_use").Notice()


def _run(numel: int, run: Callable[[int, int], object], piece: int = _PIECE_NUMEL) -> None:
    """Run a loop over all elements, on as many threads as torch uses."""
    on_threads = import_module("binsgdm.kernels.cpu").on_threads
    on_threads([(lo, min(lo + piece, numel)) for lo in range(0, numel, piece)], run)


def _flat(tensor: Tensor) -> Any:
    return tensor.detach().contiguous().numpy()


# Draws


def draws(key: Words, start: int, numel: int) -> Tensor:
    """Do `binsgdm.kernels.random.draws`."""
    out, loop = torch.empty(numel, dtype=torch.int64, device="cpu"), _loop("write_draws")
    array = out.numpy()
    _run(numel, lambda lo, hi: loop(array, start, key, lo, hi))
    return out


def thresholds(key: Words, start: int, numel: int) -> Tensor:
    """Do `binsgdm.kernels.random.thresholds`."""
    out, loop = torch.empty(numel, device="cpu"), _loop("write_thresholds")
    array = out.numpy()
    _run(numel, lambda lo, hi: loop(array, start, key, lo, hi))
    return out


def smallest_draws(key: Words, numel: int, count: int) -> Tensor | None:
    """Return the elements of the smallest draws, of equal ones the first, ascending; None if too many are small."""
    # Draws are even: with six standard deviations more than wanted, enough are below the limit.
    wanted = min(numel, math.ceil(count + 6 * math.sqrt(count) + 16))
    tickets = np.empty(min(numel, 2 * wanted), np.int64)
    found = _loop("smallest_draws")(numel, math.ceil(2**32 * wanted / numel), key, tickets)
    if found < count:  # too few, or -1
        return None
    chosen = np.partition(tickets[:found], count - 1)[:count] & 2**31 - 1
    chosen.sort()
    return torch.from_numpy(chosen)


# Scales, and levels of them


def largest(values: Tensor, block_size: int) -> Tensor:
    """Return the largest magnitude of every block, NaN where one is not finite.

    Shape:
        values: (N,); returned: (B,).
    """
    out, loop, given = torch.empty(-(-values.numel() // block_size), device="cpu"), _loop("largest"), _flat(values)
    array = out.numpy()
    _run(out.numel(), lambda lo, hi: loop(given, block_size, array, lo, hi), max(1, _PIECE_NUMEL // block_size))
    return out


def round_to_levels(values: Tensor, scales: Tensor, block_size: int, levels: tuple[float, ...], key: Words) -> Tensor:
    """Do `binsgdm.compressors.levels.round_to_levels` of the fractions of scales.

    Shape:
        values: (N,); scales: (B,); returned: (N,) uint8.
    """
    out, loop = torch.empty(values.numel(), dtype=torch.uint8, device="cpu"), _loop("round_to_levels")
    grid, padded = _tables(levels)
    given, by, codes = _flat(values), _flat(scales), out.numpy()
    _run(out.numel(), lambda lo, hi: loop(given, by, block_size, grid, padded, key, codes, lo, hi))
    return out


@cache
def _tables(levels: tuple[float, ...]) -> tuple[Any, Any]:
    """Return levels, and these with infinities behind them: a power of 2, less one."""
    grid = np.array(levels, np.float32)
    padded = np.full(2 ** math.ceil(math.log2(len(levels) + 1)) - 1, np.inf, np.float32)
    padded[: grid.size] = grid
    return grid, padded


def levels_times_scales(codes: Tensor, table: Tensor, scales: Tensor, block_size: int) -> Tensor:
    """Return of each code its entry of a table times its scale.

    Shape:
        codes: (N,) uint8; scales: (B,); returned: (N,).
    """
    out, loop = torch.empty(codes.numel(), device="cpu"), _loop("levels_times_scales")
    given, entries, by, array = _flat(codes), _flat(table), _flat(scales), out.numpy()
    _run(out.numel(), lambda lo, hi: loop(given, entries, by, block_size, array, lo, hi))
    return out


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Do `binsgdm.compressors.levels.pack_codes`."""
    out, loop = torch.empty(-(-codes.numel() * bits // 8), dtype=torch.uint8, device="cpu"), _loop("pack_codes")
    given, array = _flat(codes), out.numpy()
    _run(codes.numel(), lambda lo, hi: loop(given, bits, array, lo, hi))
    return out


def unpack_codes(packed: Tensor, bits: int, numel: int) -> Tensor:
    """Do `binsgdm.compressors.levels.unpack_codes`."""
    out, loop = torch.empty(numel, dtype=torch.uint8, device="cpu"), _loop("unpack_codes")
    given, array = _flat(packed), out.numpy()
    _run(numel, lambda lo, hi: loop(given, bits, array, lo, hi))
    return out


def pack_trits(codes: Tensor) -> Tensor:
    """Do `binsgdm.compressors.levels.pack_trits`."""
    out, loop = torch.empty(-(-codes.numel() // 5), dtype=torch.uint8, device="cpu"), _loop("pack_trits")
    given, array = _flat(codes), out.numpy()
    _run(codes.numel(), lambda lo, hi: loop(given, array, lo, hi))
    return out


def bytes_of_scales(values: Tensor, scales: Tensor, block_size: int, largest_byte: int) -> Tensor:
    """Return values over their scale times the largest byte, rounded half to even; 0 where that is NaN.

    Shape:
        values: (N,); scales: (B,); returned: (N,) int8.
    """
    out, loop = torch.empty(values.numel(), dtype=torch.int8, device="cpu"), _loop("bytes_of_scales")
    given, by, array = _flat(values), _flat(scales), out.numpy()
    _run(out.numel(), lambda lo, hi: loop(given, by, block_size, largest_byte, array, lo, hi))
    return out


def bytes_times_steps(codes: Tensor, steps: Tensor, block_size: int) -> Tensor:
    """Return each byte times its step.

    Shape:
        codes: (N,) int8; steps: (B,); returned: (N,).
    """
    out, loop = torch.empty(codes.numel(), device="cpu"), _loop("bytes_times_steps")
    given, by, array = _flat(codes), _flat(steps), out.numpy()
    _run(out.numel(), lambda lo, hi: loop(given, by, block_size, array, lo, hi))
    return out


# Selections by magnitude, whose bits without the sign are ordered as the magnitudes


def count_above(values: Tensor, threshold: int) -> int:
    """Return how many bit patterns of magnitudes are above a threshold."""
    loop, given, counts = _loop("count_above"), _flat(values), []
    _run(values.numel(), lambda lo, hi: counts.append(loop(given, threshold, lo, hi)))
    return sum(counts)


def indices_above(values: Tensor, threshold: int, most: int) -> Tensor | None:
    """Return where bit patterns of magnitudes are above a threshold, ascending; None if there are more than `most`."""
    out = np.empty(most, np.int64)
    found = _loop("indices_above")(_flat(values), threshold, out)
    return None if found < 0 else torch.from_numpy(out[:found])

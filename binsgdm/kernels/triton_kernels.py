"""The kernels for CUDA tensors, in Triton: what is checked and launched.

What runs is in `triton_programs`.

With TRITON_INTERPRET=1 before the first import they run on the CPU. A launch goes to the current stream of the tensors'
device, and nothing here waits for it. A call allocates the flag that it returns and, where tensors have moved, a table
of their addresses.

Shape letters: N elements, K vectors.
"""

# mypy: disable-error-code="import-not-found, import-untyped"
# ruff: noqa: D103 - `binsgdm.kernels.interface.Kernels` says what these do

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from binsgdm.kernels import tables, triton_programs
from binsgdm.kernels.columns import Columns, by_dtype, check_count, sign_factors
from binsgdm.kernels.host_tensors import upload_tensor
from binsgdm.kernels.keys import GROUP_NUMEL, Key
from binsgdm.kernels.triton_support import FEW_PROGRAMS, launch

_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
_TILE: int = triton_programs.TILE.value
# A program does more than one tile where that leaves every multiprocessor tens of programs.
_MANY_TILES, _MOST_TILES = 2**13, 4
_MERGE_NUMEL = GROUP_NUMEL * triton_programs.MERGE_GROUPS.value
_ALIGNMENT = 16  # bytes that a thread reads at once
_NONE = (1.0, 0, 0, 0, 0, 0)  # gain and words of a key of programs that use none
_MAX_COUNT = 2**16 - 1  # of vectors that `merge` can count


def update(columns: Columns, decay: Sequence[float]) -> Tensor:
    return _launch_update(columns, decay, rounding="none", aligned=4)


def update_quantize_pack(
    columns: Columns, starts: Sequence[int], decay: Sequence[float], gain: float, key: Key
) -> Tensor:
    numbers = gain, *key.words()
    options: dict[str, Any] = {"aligned": 3, "starts": starts, "registers": FEW_PROGRAMS}
    return _launch_update(columns, decay, *numbers, rounding="random", **options)


def update_shape_pack(columns: Columns, decay: Sequence[float], gain: float) -> Tensor:
    return _launch_update(columns, decay, gain, rounding="shaped", aligned=4)


def unpack_apply(columns: Columns, lr: float, weight_decay: float, maximize: bool) -> None:
    factors = sign_factors(lr, weight_decay, maximize)
    for dtype, some, _ in by_dtype(columns):
        per_thread = _ALIGNMENT // dtype.itemsize
        _launch_tables(triton_programs.unpack_apply, some, factors, aligned=1, per_thread=per_thread)


def quantize_pack(columns: Columns, start: int, gain: float, key: Key) -> None:
    (u,), (out,) = columns
    tiles = _tiles_for(u.numel())
    num_programs = triton.cdiv(start % GROUP_NUMEL + u.numel(), tiles * _TILE)
    launch(triton_programs.quantize_pack, num_programs, u, out, tiles, start, u.numel(), gain, *key.words())


def shape_pack(columns: Columns, gain: float) -> None:
    (u,), (residual,), (out,) = columns
    tiles = _tiles_for(u.numel())
    aligned = not (u.data_ptr() | residual.data_ptr()) % _ALIGNMENT
    numbers = tiles, u.numel(), int(aligned), gain
    launch(triton_programs.shape_pack, triton.cdiv(u.numel(), tiles * _TILE), u, residual, out, *numbers)


def merge(rows: Tensor, out: Tensor, numel: int, start: int, key: Key) -> None:
    num_vectors, num_bytes = rows.shape
    check_count(rows, _MAX_COUNT, "kernels='reference'")
    # Words of four bytes: every row, the result and every group of draws begin at one.
    aligned = not (rows.data_ptr() | out.data_ptr() | num_bytes) % 4 and not start % GROUP_NUMEL
    limits = _limits(num_vectors, rows.device, tables.stream_of(rows.device))
    num_programs = triton.cdiv(start % GROUP_NUMEL + numel, _MERGE_NUMEL)
    arguments = (rows, out, limits, num_vectors, num_bytes, start, numel, int(aligned), *key.words())
    width = 8 if num_vectors < 2**8 else 16
    launch(triton_programs.merge, num_programs, *arguments, width=width, registers=FEW_PROGRAMS)


def merge_shaped(rows: Tensor, residual: Tensor, out: Tensor, numel: int) -> None:
    numbers = *rows.shape, numel, int(not residual.data_ptr() % _ALIGNMENT)
    launch(triton_programs.merge_shaped, triton.cdiv(numel, _TILE), residual, rows, out, *numbers)


def mean(parts: Tensor, out: Tensor) -> None:
    aligned = not (parts.data_ptr() | out.data_ptr() | parts.shape[1] * parts.itemsize) % _ALIGNMENT
    num_programs = triton.cdiv(out.numel(), _TILE)
    launch(triton_programs.mean, num_programs, parts, out, parts.shape[0], out.numel(), int(aligned))


def _launch_update(columns: Columns, decay: Sequence[float], *numbers: float, **how: Any) -> Tensor:
    """Launch the update, which gets a gain and a key's words where there is none as well."""
    # True on the tensors' device, for programs to make False.
    finite = torch.ones((), dtype=torch.bool, device=columns[0][0].device if columns[0] else "cpu")
    _launch_tables(
        triton_programs.update, columns, (finite.view(torch.uint8), *decay, *numbers, *_NONE[len(numbers) :]), **how
    )
    return finite


def _launch_tables(
    program: Any,
    columns: Columns,
    numbers: Sequence[object],
    *,
    aligned: int,
    starts: Sequence[int] | None = None,
    **constants: Any,
) -> None:
    """Launch a program for many tensors, once for each dtype of the first column; see `tables.make`."""
    for dtype, some, begins in by_dtype(columns, *(() if starts is None else (starts,))):
        tiles = _tiles_for(sum(some[0].numels))
        table = tables.make(some, starts=begins[0] if begins else None, chunk=tiles * _TILE, aligned=aligned)
        dtypes = {"dtype": _DTYPES[dtype]}
        launch(program, table.num_chunks, table.rows, table.owners, tiles, *numbers, **dtypes, **constants)


def _tiles_for(numel: int) -> int:
    """Return how many tiles a program does."""
    return max(1, min(_MOST_TILES, numel // _TILE // _MANY_TILES))


@lru_cache(maxsize=64)
def _limits(num_vectors: int, device: torch.device, stream: int) -> Tensor:  # noqa: ARG001 - the key of the cache
    """Return how many of the 2**23 thresholds are below the mean of signs, for each number of +1: int32 (K + 1)."""
    # Computed as the reference computes the mean: a sum that is exact, and one rounding in the division.
    sums = 2 * torch.arange(num_vectors + 1, device="cpu") - num_vectors
    means = sums.to(torch.float32) / torch.tensor(float(num_vectors), device="cpu")
    # A threshold is k * 2**-22 - 1 for k from 0 on; fp64 computes the number of those below a mean exactly.
    limits = ((means.double() + 1.0) * 2.0**22).ceil().to(torch.int32)
    return upload_tensor(limits, device)

"""The kernels for CUDA tensors, in Triton: what is checked and launched.

What runs is in `triton_programs` and `triton_merges`.

With TRITON_INTERPRET=1 before the first import they run on the CPU. A launch goes to the current stream of the tensors'
device, and nothing here waits for it. A call allocates the flag that it returns and, where tensors have moved, a table
of their addresses.

Shape letters: N elements, K vectors.
"""

# mypy: disable-error-code="import-not-found, import-untyped"

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from binsgdm.kernels import checks, foreach, tables, triton_merges, triton_programs, triton_tiles
from binsgdm.kernels.columns import TensorColumn, by_dtype, column
from binsgdm.kernels.host_tensors import upload_tensor
from binsgdm.kernels.random import GROUP_NUMEL, Key
from binsgdm.kernels.triton_support import FEW_PROGRAMS, launch

name = "triton"

_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
_TILE: int = triton_tiles.TILE.value
# A program does more than one tile where that leaves every multiprocessor tens of programs.
_MANY_TILES, _MOST_TILES = 2**13, 4
_MERGE_NUMEL = GROUP_NUMEL * triton_merges.MERGE_GROUPS.value
_ALIGNMENT = 16  # bytes that a thread reads at once
_MAX_COUNT = 2**16 - 1  # of vectors that `merge` can count


def foreach_update_(  # noqa: PLR0913
    grads: Sequence[Tensor],
    ms: Sequence[Tensor],
    bs: Sequence[Tensor],
    *,
    beta: float,
    beta_b: float,
    nesterov: bool = False,
    outs_u: Sequence[Tensor],
) -> Tensor:
    """Do `update_` for many tensors, in one launch a dtype; see `binsgdm.kernels.Kernels`."""
    given = column(grads), column(ms), column(bs), column(outs_u)
    checks.updates(*given)
    finite = _flag(given[0])
    for dtype, columns, _ in by_dtype(given):
        tiles = _tiles_for(sum(columns[0].numels))
        table = tables.make(columns, starts=None, chunk=tiles * _TILE, aligned=4)
        numbers = tiles, finite.view(torch.uint8), *foreach.decay_of(beta, beta_b, nesterov)
        _launch_table(triton_programs.update, table, *numbers, dtype=_DTYPES[dtype])
    return finite


def foreach_update_quantize_pack_(  # noqa: PLR0913
    grads: Sequence[Tensor],
    ms: Sequence[Tensor],
    bs: Sequence[Tensor],
    *,
    beta: float,
    beta_b: float,
    nesterov: bool = False,
    key: Key,
    starts: Sequence[int],
    outs: Sequence[Tensor],
    gain: float = 1.0,
) -> Tensor:
    """Do `update_quantize_pack_` for many tensors, in one launch a dtype; see `binsgdm.kernels.Kernels`."""
    given = column(grads), column(ms), column(bs), column(outs)
    checks.updates(*given[:3])
    checks.all_quantized(given[3], given[1], starts)
    finite = _flag(given[0])
    for dtype, columns, (some_starts,) in by_dtype(given, starts):
        tiles = _tiles_for(sum(columns[0].numels))
        table = tables.make(columns, starts=some_starts, chunk=tiles * _TILE, aligned=3)
        numbers = (
            tiles,
            finite.view(torch.uint8),
            *foreach.decay_of(beta, beta_b, nesterov),
            float(gain),
            *key.words(),
        )
        _launch_table(
            triton_programs.update_quantize_pack, table, *numbers, dtype=_DTYPES[dtype], registers=FEW_PROGRAMS
        )
    return finite


def foreach_update_shape_pack_(  # noqa: PLR0913
    grads: Sequence[Tensor],
    ms: Sequence[Tensor],
    bs: Sequence[Tensor],
    residuals: Sequence[Tensor],
    *,
    beta: float,
    beta_b: float,
    nesterov: bool = False,
    gain: float,
    outs: Sequence[Tensor],
) -> Tensor:
    """Do `update_shape_pack_` for many tensors, in one launch a dtype; see `binsgdm.kernels.Kernels`."""
    given = column(grads), column(ms), column(bs), column(residuals), column(outs)
    checks.updates(*given[:3])
    checks.all_shaped(given[4], given[3], given[1])
    finite = _flag(given[0])
    for dtype, columns, _ in by_dtype(given):
        tiles = _tiles_for(sum(columns[0].numels))
        table = tables.make(columns, starts=None, chunk=tiles * _TILE, aligned=4)
        numbers = (tiles, finite.view(torch.uint8), *foreach.decay_of(beta, beta_b, nesterov), float(gain))
        _launch_table(triton_programs.update_shape_pack, table, *numbers, dtype=_DTYPES[dtype])
    return finite


def quantize_pack(u: Tensor, *, key: Key, start: int, out: Tensor, gain: float = 1.0) -> None:
    """Write Q(u), packed; see `binsgdm.kernels.Kernels`."""
    checks.tensor("u", u, numel=u.numel(), dtypes=checks.FP32, device=u.device)
    checks.quantized(out, numel=u.numel(), start=start, device=u.device)
    tiles = _tiles_for(u.numel())
    num_programs = triton.cdiv(start % GROUP_NUMEL + u.numel(), tiles * _TILE)
    launch(triton_programs.quantize_pack, num_programs, u, out, tiles, start, u.numel(), float(gain), *key.words())


def shape_pack_(u: Tensor, residual: Tensor, *, gain: float, out: Tensor) -> None:
    """Write the signs of u, shaped, packed; see `binsgdm.kernels.Kernels`."""
    checks.tensor("u", u, numel=u.numel(), dtypes=checks.FP32, device=u.device)
    checks.shaped(out, residual, u)
    tiles = _tiles_for(u.numel())
    aligned = not (u.data_ptr() | residual.data_ptr()) % _ALIGNMENT
    numbers = tiles, u.numel(), int(aligned), float(gain)
    launch(triton_programs.shape_pack, triton.cdiv(u.numel(), tiles * _TILE), u, residual, out, *numbers)


def merge(packed_rows: Tensor, *, numel: int, key: Key, start: int, out: Tensor) -> None:
    """Write Q of the mean of K sign vectors, packed; see `binsgdm.kernels.Kernels`."""
    checks.merge(packed_rows, numel=numel, start=start, out=out)
    num_vectors, num_bytes = packed_rows.shape
    checks.counted(num_vectors, _MAX_COUNT)
    # Words of four bytes: every row, the result and every group of draws begin at one.
    aligned = not (packed_rows.data_ptr() | out.data_ptr() | num_bytes) % 4 and not start % GROUP_NUMEL
    limits = _limits(num_vectors, packed_rows.device, tables.stream_of(packed_rows.device))
    num_programs = triton.cdiv(start % GROUP_NUMEL + numel, _MERGE_NUMEL)
    arguments = (packed_rows, out, limits, num_vectors, num_bytes, start, numel, int(aligned), *key.words())
    width = 8 if num_vectors < 2**8 else 16
    launch(triton_merges.merge, num_programs, *arguments, width=width, registers=FEW_PROGRAMS)


def merge_shaped_(packed_rows: Tensor, residual: Tensor, *, numel: int, out: Tensor) -> None:
    """Write the signs of the mean of K sign vectors, shaped, packed; see `binsgdm.kernels.Kernels`."""
    checks.merge_shaped(packed_rows, residual, numel=numel, out=out)
    num_vectors, num_bytes = packed_rows.shape
    aligned = not residual.data_ptr() % _ALIGNMENT
    numbers = num_vectors, num_bytes, numel, int(aligned)
    launch(triton_merges.merge_shaped, triton.cdiv(numel, _TILE), residual, packed_rows, out, *numbers)


def mean_(parts: Tensor, out: Tensor) -> None:
    """Write the mean of K vectors, summed in order and divided once; see `binsgdm.kernels.Kernels`."""
    checks.mean(parts, out)
    aligned = not (parts.data_ptr() | out.data_ptr() | parts.shape[1] * parts.itemsize) % _ALIGNMENT
    num_programs = triton.cdiv(out.numel(), _TILE)
    launch(triton_merges.mean, num_programs, parts, out, parts.shape[0], out.numel(), int(aligned))


def foreach_unpack_apply_(
    xs: Sequence[Tensor], packed: Sequence[Tensor], *, lr: float, weight_decay: float, maximize: bool = False
) -> None:
    """Do `unpack_apply_` for many tensors, in one launch a dtype; see `binsgdm.kernels.Kernels`."""
    given = column(xs), column(packed)
    checks.applications(*given)
    for dtype, columns, _ in by_dtype(given):
        tiles = _tiles_for(sum(columns[0].numels))
        table = tables.make(columns, starts=None, chunk=tiles * _TILE, aligned=1)
        numbers = tiles, -lr if maximize else lr, 1.0 - lr * weight_decay
        options = {"dtype": _DTYPES[dtype], "per_thread": _ALIGNMENT // dtype.itemsize}
        _launch_table(triton_programs.unpack_apply, table, *numbers, **options)


def _tiles_for(numel: int) -> int:
    """Return how many tiles a program does."""
    return max(1, min(_MOST_TILES, numel // _TILE // _MANY_TILES))


def _flag(tensors: TensorColumn) -> Tensor:
    """Return True on the tensors' device, for programs to make False."""
    return torch.ones((), dtype=torch.bool, device=tensors[0].device if tensors else "cpu")


@lru_cache(maxsize=64)
def _limits(num_vectors: int, device: torch.device, stream: int) -> Tensor:  # noqa: ARG001 - the key of the cache
    """Return how many of the 2**23 thresholds are below the mean of signs, for each number of +1: int32 (K + 1)."""
    # Computed as the reference computes the mean: a sum that is exact, and one rounding in the division.
    sums = 2 * torch.arange(num_vectors + 1, device="cpu") - num_vectors
    means = sums.to(torch.float32) / torch.tensor(float(num_vectors), device="cpu")
    # A threshold is k * 2**-22 - 1 for k from 0 on; fp64 computes the number of those below a mean exactly.
    limits = ((means.double() + 1.0) * 2.0**22).ceil().to(torch.int32)
    return upload_tensor(limits, device)


def _launch_table(program: Any, table: tables.TensorTable, *numbers: object, **constants: Any) -> None:
    launch(program, table.num_chunks, table.rows, table.owners, *numbers, **constants)


update_ = foreach.update(foreach_update_)
update_quantize_pack_ = foreach.update_quantize_pack(foreach_update_quantize_pack_)
update_shape_pack_ = foreach.update_shape_pack(foreach_update_shape_pack_)
unpack_apply_ = foreach.unpack_apply(foreach_unpack_apply_)

"""1-bit Adam's passes over CPU tensors: compiled loops that leave no temporary of a model's size.

All parameters are one flat vector in the order in which they were given, with padding, cut into as many chunks as there
are ranks. Loops go through it block by block, so that what one of them leaves for the next stays in a cache. Results
are those of `binsgdm.optimizers.one_bit_adam_plain`, to the bit; magnitudes are
summed in fp64 in the order of elements, which no number of threads changes.

Shape letters: N elements with padding; W chunks of N / W elements; T tensors.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from binsgdm.kernels import numba_kernels
from binsgdm.kernels.cpu import as_array, carrier, on_threads

Array = NDArray[Any]
PLACES = 4
"""Addresses of a tensor: m, v and x, and its fp32 gradient or what all ranks' come to."""
FACTORS = 10
"""Of a tensor: beta1, 1 - beta1, beta2, 1 - beta2, ranks, scale of its momentum, bias correction of v, eps, decay of x,
step size."""
_LEAST_JOB_NUMEL = 1 << 16
_JOBS_PER_THREAD = 8
_STREAMED_NUMEL = 1 << 22  # 16 MiB, more than caches keep until the next pass
_KEPT_PLANS = 16
_SCALE_BYTES = 4


class Plan(NamedTuple):
    """How a flat vector is cut.

    Attributes:
        chunk: elements of a chunk.
        pieces: int64 (P, 4): tensor, first element there, elements, first element in the vector.
        blocks: int64 (B, 4): first element and end; first piece and end.
        starts: first block of each chunk.
    """

    chunk: int
    pieces: Array
    blocks: Array
    starts: Array


@lru_cache(maxsize=_KEPT_PLANS)
def plan(numels: tuple[int, ...], numel: int, chunks: int) -> Plan:
    """Return how a vector of `numel` elements, which begins with tensors of `numels`, is cut."""
    chunk = numel // chunks
    firsts = np.arange(0, chunk, numba_kernels.ADAM_BLOCK_NUMEL)
    los = (np.arange(chunks)[:, None] * chunk + firsts).reshape(-1)
    ends = np.append(los[1:], numel)
    tensor_starts = np.cumsum([0, *numels])
    # A piece begins where a block or a tensor does.
    begins = np.union1d(los[los < tensor_starts[-1]], tensor_starts[:-1][np.array(numels, np.int64) > 0])
    tensors = np.searchsorted(tensor_starts, begins, side="right") - 1
    sizes = np.diff(np.append(begins, tensor_starts[-1]))
    pieces = np.stack([tensors, begins - tensor_starts[tensors], sizes, begins], axis=1).astype(np.int64)
    first_pieces, end_pieces = np.searchsorted(begins, los), np.searchsorted(begins, ends)
    blocks = np.stack([los, ends, first_pieces, end_pieces], axis=1).astype(np.int64)
    return Plan(chunk, pieces, blocks, np.arange(chunks) * firsts.size)


def addresses(tensors: Sequence[torch.Tensor | None]) -> Array:
    """Return where tensors begin, 0 for none: int64 (T)."""
    return np.array([0 if tensor is None else tensor.data_ptr() for tensor in tensors], np.int64)


def gather_gradients(cut: Plan, grads: Array, out: torch.Tensor, limit: float) -> bool:
    """Copy contiguous fp32 gradients into the flat vector; tell whether all magnitudes are below a limit."""
    flat = as_array(out)
    # Streams want whole cache lines; a tensor may come with memory of any alignment.
    streams = out.numel() >= _STREAMED_NUMEL and out.data_ptr() % 64 == 0
    flat[int(cut.pieces[-1, 2] + cut.pieces[-1, 3]) if len(cut.pieces) else 0 :] = 0
    return not _on_blocks(cut, numba_kernels.gather_gradients, cut.pieces, grads, flat, limit, streams)


def are_small(cut: Plan, grads: Array, limit: float) -> bool:
    """Tell whether all magnitudes of contiguous fp32 gradients are below a limit."""
    return not _on_blocks(cut, numba_kernels.check_gradients, cut.pieces, grads, limit)


def dense_step(cut: Plan, places: Array, factors: Array, dtype: torch.dtype) -> None:
    """Take a dense step from the sum of all ranks' gradients.

    Args:
        cut: of the flat vector.
        places: int64 (T, PLACES), 0 for tensors of another dtype or without a gradient.
        factors: fp32 (T, FACTORS).
        dtype: of x.
    """
    _on_blocks(cut, numba_kernels.dense_adam, cut.pieces, places, factors, carrier(dtype), dtype.itemsize)


def pack_valid(cut: Plan, places: Array) -> tuple[torch.Tensor, Array]:
    """Return which elements have a variance, packed (N / 8), and how many of each chunk (W)."""
    valid, counts = (
        torch.empty(cut.chunk * len(cut.starts) // 8, dtype=torch.uint8, device="cpu"),
        np.empty(len(cut.blocks)),
    )
    _on_blocks(cut, numba_kernels.pack_valid, cut.pieces, places, as_array(valid), counts)
    return valid, np.add.reduceat(counts, cut.starts)


def local_momenta(cut: Plan, places: Array, factors: Array, out: torch.Tensor) -> None:
    """Write this rank's momenta to a flat vector, which gradients may lie in.

    Where an element has no variance, what is written stands for nothing.
    """
    _on_blocks(cut, numba_kernels.local_momenta, cut.pieces, places, factors, as_array(out))


def encode_momenta(  # noqa: PLR0913, PLR0917
    cut: Plan, places: Array, factors: Array, residual: torch.Tensor, valid: torch.Tensor, counts: Array
) -> torch.Tensor:
    """Do `local_momenta` and `encode_values` without storing momenta."""
    rows, block_sums = _rows(cut), np.empty(len(cut.blocks))
    left, bits, out = as_array(residual), as_array(valid), rows.numpy()
    numbers = cut.pieces, places, factors, left, bits, out, cut.chunk, block_sums
    _on_blocks(cut, numba_kernels.encode_momenta, *numbers)
    _keep(cut, left, bits, out, block_sums, counts)
    return rows


def encode_values(values: torch.Tensor, residual: torch.Tensor, valid: torch.Tensor, counts: Array) -> torch.Tensor:
    """Return values and residual encoded, a row a chunk; the residual becomes what this loses.

    Args:
        values: fp32, flat.
        residual: likewise.
        valid: bits of the elements that count, the others keep their residuals.
        counts: how many of each chunk.
    """
    cut = plan((), values.numel(), len(counts))
    rows, block_sums = _rows(cut), np.empty(len(cut.blocks))
    flat, left, bits, out = as_array(values), as_array(residual), as_array(valid), rows.numpy()
    _on_blocks(cut, numba_kernels.encode_values, flat, left, bits, out, cut.chunk, block_sums)
    _keep(cut, left, bits, out, block_sums, counts)
    return rows


def encode_mean(encoded: torch.Tensor, residual: torch.Tensor, valid: torch.Tensor, counts: Array) -> torch.Tensor:
    """Return the mean of encoded chunks, encoded again; as `encode_values`."""
    cut = plan((), residual.numel(), 1)
    rows, block_sums = _rows(cut), np.empty(len(cut.blocks))
    received, left, bits, out = encoded.numpy(), as_array(residual), as_array(valid), rows.numpy()
    _on_blocks(cut, numba_kernels.encode_mean, received, _scales(received), left, bits, out, block_sums)
    _keep(cut, left, bits, out, block_sums, counts)
    return rows


def apply_average(cut: Plan, places: Array, factors: Array, rows: torch.Tensor, dtype: torch.dtype) -> None:
    """Take the encoded average of all ranks as the momenta, and move parameters; as `dense_step`."""
    encoded, like = rows.numpy(), carrier(dtype)
    streams = cut.chunk * len(cut.starts) >= _STREAMED_NUMEL
    numbers = cut.pieces, places, factors, encoded, _scales(encoded), cut.chunk, like, dtype.itemsize, streams
    _on_blocks(cut, numba_kernels.apply_average, *numbers)


def _on_blocks(cut: Plan, loop: Callable[..., object], *arguments: object) -> bool:
    """Run a loop over all blocks, on several threads; return whether one said so."""
    jobs = _jobs_of(len(cut.blocks), torch.get_num_threads())
    return on_threads(jobs, lambda first, last: loop(cut.blocks, first, last, *arguments))


def _rows(cut: Plan) -> torch.Tensor:
    return torch.empty(len(cut.starts), _SCALE_BYTES + cut.chunk // 8, dtype=torch.uint8, device="cpu")


def _scales(rows: Array) -> Array:
    return np.ascontiguousarray(rows[:, :_SCALE_BYTES]).view(np.float32).reshape(-1)


def _keep(  # noqa: PLR0913, PLR0917
    cut: Plan, residual: Array, valid: Array, rows: Array, block_sums: Array, counts: Array
) -> None:
    """Put the scales of chunks in front of their rows, and take what is sent from the residual."""
    sums = np.add.reduceat(block_sums, cut.starts)
    scales = (sums / np.maximum(counts, 1)).astype(np.float32)
    rows[:, :_SCALE_BYTES] = scales.view(np.uint8).reshape(-1, _SCALE_BYTES)
    _on_blocks(cut, numba_kernels.keep_residual, residual, valid, rows, scales, cut.chunk)


@lru_cache(maxsize=64)
def _jobs_of(blocks: int, threads: int) -> list[tuple[int, int]]:
    least = _LEAST_JOB_NUMEL // numba_kernels.ADAM_BLOCK_NUMEL
    size = max(least, -(-blocks // (threads * _JOBS_PER_THREAD)))
    return [(first, min(first + size, blocks)) for first in range(0, blocks, size)]

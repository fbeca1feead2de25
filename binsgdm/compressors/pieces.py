"""Pieces of a bucket: one for each position of a group, cut tensor by tensor.

A tensor's pieces depend on its own shape alone, so that what a rank keeps of its piece (a residual, a factor) stays
right when DDP forms its buckets anew.

Shape letters: N elements of a bucket, K pieces, L elements of the longest piece.
"""

import math
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch

from binsgdm.compressors.base import Cut, Shapes, numel_of

_KEPT_CUTS = 4096  # tensors of a model, which is cut alike in every step


class _TensorCut(NamedTuple):
    """How one tensor is cut: as a matrix, along one of its two dimensions."""

    matrix: tuple[int, int]
    dim: int
    lengths: list[int]
    shapes: Shapes

    def in_order(self, parts: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return flat tensors that are the whole tensor one after the other, of its flat parts."""
        if self.dim == 0:
            return parts
        rows, _ = self.matrix
        sides = [part.view(rows, length) for part, length in zip(parts, self.lengths, strict=True)]
        return [torch.cat(sides, self.dim).view(-1)]


class Pieces:
    """The cut of a bucket into pieces.

    Args:
        shapes: of the bucket's tensors.
        count: K.
        cut: along what; a tensor that is too short for it is cut along its elements.

    Example:
        >>> Pieces(((5, 3), (4,)), 2, "rows").shapes(0)
        ((3, 3), (2,))
    """

    def __init__(self, shapes: Shapes, count: int, cut: Cut) -> None:
        self._count = count
        self._cuts = [_tensor_cut(shape, count, cut) for shape in shapes]

    def shapes(self, position: int) -> Shapes:
        """Return the shapes of a piece's tensors; some may have no elements."""
        return self._shapes[position]

    @cached_property
    def _shapes(self) -> list[Shapes]:
        return [tuple(one.shapes[position] for one in self._cuts) for position in range(self._count)]

    @cached_property
    def numels(self) -> list[int]:
        """Elements of each piece; the first is the longest."""
        return [numel_of(self.shapes(position)) for position in range(self._count)]

    def split(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return the pieces of flat values.

        Shape:
            values: (N,); returned: K of at most (L,).
        """
        return [values] if self._count == 1 else [torch.cat(parts) for parts in self._parts(values)]

    def padded(self, values: torch.Tensor) -> torch.Tensor:
        """Return the pieces as rows, zeros behind the shorter ones.

        Shape:
            values: (N,); returned: (K, L).
        """
        rows = values.new_empty(self._count, self.numels[0])
        for row, numel, parts in zip(rows, self.numels, self._parts(values), strict=True):
            torch.cat(parts, out=row[:numel])
            row[numel:].zero_()
        return rows

    def join(self, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the flat values that these are the pieces of; what stands behind a piece is left out.

        Shape:
            pieces: K of at least as many elements as the piece has; returned: (N,).
        """
        if self._count == 1:
            return pieces[0][: self.numels[0]]
        parts = [
            torch.split(piece[:numel], [math.prod(shape) for shape in self.shapes(position)])
            for position, (piece, numel) in enumerate(zip(pieces, self.numels, strict=True))
        ]
        return torch.cat(
            [flat for number, one in enumerate(self._cuts) for flat in one.in_order([part[number] for part in parts])]
        )

    def _parts(self, values: torch.Tensor) -> list[list[torch.Tensor]]:
        """Return the flat parts of the tensors, piece by piece."""
        tensors = torch.split(values, [rows * columns for (rows, columns), *_ in self._cuts])
        parts = [
            torch.split(tensor.view(one.matrix), one.lengths, one.dim)
            for tensor, one in zip(tensors, self._cuts, strict=True)
        ]
        return [[part[position].reshape(-1) for part in parts] for position in range(self._count)]


def pad(values: torch.Tensor, numel: int) -> torch.Tensor:
    """Return flat values with zeros behind them.

    Shape:
        values: at most (numel,); returned: (numel,).
    """
    return torch.nn.functional.pad(values, (0, numel - values.numel()))


def even_lengths(total: int, count: int) -> list[int]:
    """Return lengths that differ by at most one, the longer ones first.

    Example:
        >>> even_lengths(5, 3)
        [2, 2, 1]
    """
    return [total // count + (position < total % count) for position in range(count)]


@lru_cache(maxsize=_KEPT_CUTS)
def _tensor_cut(shape: tuple[int, ...], count: int, cut: Cut) -> _TensorCut:
    numel = math.prod(shape)
    rows = shape[0] if shape else 1
    columns = numel // rows if rows else 0
    if cut == "rows" and len(shape) > 1 and numel and rows >= count:
        lengths = even_lengths(rows, count)
        return _TensorCut((rows, columns), 0, lengths, tuple((length, *shape[1:]) for length in lengths))
    if cut == "columns" and len(shape) > 1 and numel and columns >= count:
        lengths = even_lengths(columns, count)
        return _TensorCut((rows, columns), 1, lengths, tuple((rows, length) for length in lengths))
    lengths = even_lengths(numel, count)
    return _TensorCut((numel, 1), 0, lengths, tuple((length,) for length in lengths))

"""Gradients as matrices: which tensors of a bucket are factored, and orthonormal factors of them.

A tensor of shape (n, ...) is the matrix (n, -1). Scalars, 1-d tensors, and matrices whose factors of rank r would have
no fewer elements than the matrix are not factored but sent as they are. So an r of min(n, m) or more is never an error:
it leaves small matrices uncompressed and lossless.

Shape letters: n rows, m columns, rank r of a matrix.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from binsgdm.comm import RankContext
from binsgdm.compressors.base import ParameterId, Shapes, numel_of
from binsgdm.kernels import host_loops
from binsgdm.kernels.random import thresholds

_norm = torch.linalg.vector_norm
# The norm that a unit column must keep when its projection on the columns before it is taken away. A column that keeps
# less depends on them, up to fp32 rounding.
MIN_INDEPENDENT_PART = 1e-5


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return rows and columns of a tensor as a matrix; a scalar or a 1-d tensor is one column.

    Example:
        >>> matrix_shape((8, 3, 2, 2)), matrix_shape((5,)), matrix_shape(())
        ((8, 12), (5, 1), (1, 1))
    """
    rows = shape[0] if shape else 1
    return rows, math.prod(shape[1:])


def is_factored(shape: tuple[int, ...], matrix_rank: float) -> bool:
    """Tell whether factors with `matrix_rank` columns have fewer elements than the tensor; else it is sent whole.

    Example:
        >>> is_factored((64, 64), 4), is_factored((4, 64), 4), is_factored((64,), 1), is_factored((0, 64), 1)
        (True, False, False, False)
    """
    rows, columns = matrix_shape(shape)
    return matrix_rank * (rows + columns) < rows * columns


def orthonormalized(columns: torch.Tensor, fill: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return orthonormal columns that span the given ones: Gram-Schmidt, twice for each column.

    A column that is zero, not finite, or dependent on those before it is replaced by that of `fill`, so that the result
    has full rank whatever is given.

    Args:
        columns: fp32 of any magnitude.
        fill: draws random columns, the same on all ranks.

    Shape:
        columns, what `fill` returns, returned: (n, r) with r <= n.
    """
    basis = torch.zeros_like(columns)
    on_host = host_loops.is_used_on(columns.device)
    fills = None if on_host else fill()
    for number in range(columns.shape[1]):
        given, is_independent = _orthogonal_part(columns[:, number], basis)
        if on_host and is_independent:
            basis[:, number] = given
            continue
        # On a GPU both columns are always computed and one is selected: no branch on one of its values, and all ranks
        # run alike.
        fills = fill() if fills is None else fills
        filled, _ = _orthogonal_part(fills[:, number], basis)
        basis[:, number] = torch.where(is_independent, given, filled)
    return basis


def _orthogonal_part(column: torch.Tensor, basis: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the unit vector of what of a column is orthogonal to a basis, and whether there is enough of it."""
    # First by the largest element, then by the norm: squares of gradients of 1e-30 or 1e30 would leave the range of
    # fp32.
    unit = column / column.abs().amax()
    unit = unit.div_(_norm(unit))
    residue = unit.sub_(basis.mv(basis.T.mv(unit)))
    norm = _norm(residue)
    residue.div_(norm)
    # "Twice is enough": one pass leaves parts of the basis as large as rounding over the remaining norm.
    residue.sub_(basis.mv(basis.T.mv(residue)))
    return residue.div_(_norm(residue)), norm > MIN_INDEPENDENT_PART


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """One factored tensor of a bucket: whose, what, and where its random numbers start."""

    parameter: ParameterId
    values: torch.Tensor
    start: int

    def gaussian(self, context: RankContext, rows: int, matrix_rank: int, *, skip: int = 0) -> torch.Tensor:
        """Draw standard normal numbers (rows, r), the same on all ranks."""
        device = self.values.device
        uniform = thresholds(context.common_key, start=self.start + skip, numel=rows * matrix_rank, device=device)
        # Thresholds are multiples of 2^-22 from -1 on; half a step moves them inside (-1, 1), where erfinv is finite.
        return ((uniform + 2.0**-23).erfinv() * math.sqrt(2)).view(rows, matrix_rank)


@dataclass(frozen=True, kw_only=True)
class SplitBucket:
    """A bucket as matrices to be factored, by their number among its tensors, and the other tensors, flat."""

    matrices: dict[int, Matrix]
    whole: tuple[torch.Tensor, ...]

    def write(
        self, factored: Sequence[Callable[[], torch.Tensor]], whole: Sequence[torch.Tensor], out: torch.Tensor
    ) -> None:
        """Write what its matrices are made to be, one after the other, and its other tensors, each in order."""
        matrices, rest, place = iter(factored), iter(whole), 0
        for number in range(len(self.matrices) + len(self.whole)):
            values = next(matrices)() if number in self.matrices else next(rest)
            out[place : place + values.numel()].view(values.shape).copy_(values)
            place += values.numel()


def split_matrices(
    values: torch.Tensor, parameters: Sequence[ParameterId], shapes: Shapes, matrix_rank: float
) -> SplitBucket:
    """Split flat values of tensors of these shapes into matrices and others."""
    matrices: dict[int, Matrix] = {}
    whole: list[torch.Tensor] = []
    start = 0
    pieces = torch.split(values, [numel_of((shape,)) for shape in shapes])
    for number, (piece, parameter, shape) in enumerate(zip(pieces, parameters, shapes, strict=True)):
        if not is_factored(shape, matrix_rank):
            whole.append(piece)
            continue
        rows, columns = matrix_shape(shape)
        matrices[number] = Matrix(parameter=parameter, values=piece.view(rows, columns), start=start)
        # Enough draws for both factors, so that no two matrices of a bucket share draws.
        start += math.ceil(matrix_rank) * (rows + columns)
    return SplitBucket(matrices=matrices, whole=tuple(whole))

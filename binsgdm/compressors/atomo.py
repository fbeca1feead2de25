"""ATOMO on singular vectors: a few random singular triplets of a matrix travel; their expectation is the matrix.

Shape letters: N values of a bucket; n rows, m columns of a matrix; c triplets; A atoms.
"""

import math
from dataclasses import dataclass

import torch

from binsgdm.compressors.base import Shapes, is_number, numel_of
from binsgdm.compressors.error_feedback import CheckedCompressor, PayloadSpec
from binsgdm.compressors.matrices import Matrix, is_factored, matrix_shape, split_matrices
from binsgdm.errors import BinsgdmError, shown
from binsgdm.kernels.host_tensors import upload
from binsgdm.kernels.random import Key, draws

COUNT_DTYPE = torch.int32


@dataclass(frozen=True, kw_only=True)
class Atomo(CheckedCompressor):
    """Send a random few of a matrix's singular triplets, each scaled up by its chance: spectral ATOMO.

    Unbiased. A matrix with singular values s_i, sent with chances p_i, has E ||M - C(M)||_F^2 = sum s_i^2 (1/p_i - 1),
    the least of all chances that send as many triplets on average.

    A payload has the tensors that are not factored, fp32; the number of triplets of each matrix, int32; and for each
    matrix with rows n, columns m and c triplets c scaled left vectors (c, n) and c right ones (c, m), fp32.

    Attributes:
        budget: triplets sent of a matrix on average, > 0; of a matrix of lower rank all are sent.

    Raises:
        BinsgdmError: If the budget is not above 0 and finite.

    Source: Wang, Sievert, Liu, Charles, Papailiopoulos and Wright, "ATOMO: communication-efficient learning via atomic
    sparsification", NeurIPS 2018, with singular vectors as atoms (`probabilities`). Differs: convolutions are (n, -1)
    matrices; matrices that would not get smaller are sent whole.
    """

    budget: float = 3.0

    name = "atomo"
    title = "ATOMO"
    source = "Wang et al., NeurIPS 2018"
    wire_format = "drawn singular triplets of every matrix in fp32, vectors whole"
    is_unbiased = True
    topologies = ("gather", "hierarchical")  # the length of a payload depends on what is drawn
    cut = "rows"
    needs_equal_threads = True

    def __post_init__(self) -> None:
        if not is_number(self.budget, above=0):
            raise BinsgdmError(f"{self.name}: budget: {shown(self.budget)}: must be above 0 and finite, such as 3")

    def payload_spec(self, shapes: Shapes) -> PayloadSpec:
        """Return what is not factored, fp32; the triplets of each matrix, int32; their vectors, fp32.

        On average these are 4 budget (n + m) bytes for a matrix.
        """
        sides = self._sides(shapes)
        numel_whole = numel_of(shapes) - sum(rows * columns for rows, columns in sides.values())
        return (torch.float32, numel_whole), (COUNT_DTYPE, len(sides)), (torch.float32, None if sides else 0)

    def encode(self, values: torch.Tensor, shapes: Shapes, key: Key) -> tuple[torch.Tensor, ...]:
        """Decompose the matrices and draw their triplets."""
        split = split_matrices(values, range(len(shapes)), shapes, self.budget)
        triplets = [_drawn_triplets(matrix, self.budget, key) for matrix in split.matrices.values()]
        counts = upload([left.shape[0] for left, _ in triplets], COUNT_DTYPE, values.device)
        atoms = [vectors.reshape(-1) for pair in triplets for vectors in pair]
        return torch.cat([values[:0], *split.whole]), counts, torch.cat([values[:0], *atoms])

    def decode(self, tensors: tuple[torch.Tensor, ...], shapes: Shapes, key: Key) -> torch.Tensor:  # noqa: ARG002
        """Return the sums of the sent triplets, and the tensors sent whole."""
        whole, counted, atoms = tensors
        sides, counts = self._sides(shapes), counted.tolist()
        sizes = [count * side for count, pair in zip(counts, sides.values(), strict=True) for side in pair]
        if min(sizes, default=0) < 0 or sum(sizes) != atoms.numel():
            raise BinsgdmError(
                f"{self.name}: a payload of {atoms.numel()} values of triplets: must be {sum(sizes)}, as its counts "
                f"{counts} say; compress with the same settings and version"
            )
        vectors = iter(torch.split(atoms, sizes))
        others = [numel_of((shape,)) for number, shape in enumerate(shapes) if number not in sides]
        rest = iter(torch.split(whole, others))
        pieces = [
            _sum_of_triplets(next(vectors), next(vectors), sides[number]) if number in sides else next(rest)
            for number in range(len(shapes))
        ]
        return torch.cat([atoms[:0], *pieces])

    def _sides(self, shapes: Shapes) -> dict[int, tuple[int, int]]:
        """Return rows and columns of the tensors that are factored, by their number."""
        return {number: matrix_shape(shape) for number, shape in enumerate(shapes) if is_factored(shape, self.budget)}


def probabilities(magnitudes: torch.Tensor, budget: float) -> torch.Tensor:
    """Return with which chance to send each atom, so that `budget` are sent on average and the variance is least.

    The largest are certain, the others have chances proportional to their magnitudes.

    Args:
        magnitudes: >= 0, descending.
        budget: > 0; all are certain if it is at least as many as there are. A magnitude of 0 needs no sending: 0.

    Shape:
        magnitudes, returned: (A), at least one.

    Source: Wang et al. 2018 (`Atomo`).

    Example:
        >>> probabilities(torch.tensor([6.0, 2.0, 1.0, 1.0]), 2)
        tensor([1.0000, 0.5000, 0.2500, 0.2500])
    """
    # tails[i] = magnitudes[i] + magnitudes[i + 1] + ...; left[i] = triplets of the budget that remain after i certain
    # ones.
    tails = magnitudes.flip(0).cumsum(0).flip(0)
    left = budget - torch.arange(magnitudes.numel(), device=magnitudes.device)
    # Descending: once a chance magnitude x left / tail is at most 1, so are all after it. Those before are certain.
    is_certain = (magnitudes * left <= tails).cumsum(0) == 0
    # With a dimension: torch would read a scalar index on the host.
    first = is_certain.sum(dim=0, keepdim=True).clamp(max=magnitudes.numel() - 1)
    # 0 / 0 where all remaining magnitudes are 0.
    shared = (magnitudes * left[first] / tails[first]).nan_to_num(0.0).clamp(0, 1)
    return torch.where(is_certain, torch.ones_like(magnitudes), shared)


def _drawn_triplets(matrix: Matrix, budget: float, key: Key) -> tuple[torch.Tensor, torch.Tensor]:
    """Return left vectors (c, n), scaled, and right vectors (c, m); of a matrix that is not finite, one NaN triplet."""
    largest = matrix.values.abs().amax()
    is_usable = largest.isfinite() & (largest > 0)
    # Scaled to 1 for the decomposition, which fails on infinities and loses tiny values; the scale comes back below.
    unit = torch.where(is_usable, matrix.values / largest, 0.0)
    lefts, singular, rights = torch.linalg.svd(unit, full_matrices=False)
    chances = probabilities(singular.to(torch.float64), budget)
    # Compared in fp64, which holds a 32-bit draw exactly.
    tickets = draws(key, start=matrix.start, numel=singular.numel(), device=singular.device).to(torch.float64)
    is_broken = ~largest.isfinite() & (torch.arange(singular.numel(), device=singular.device) == 0)
    sent = ((tickets < chances * 2.0**32) | is_broken).nonzero().view(-1)
    scales = torch.where(is_broken, math.nan, singular / chances)[sent].to(torch.float32) * largest
    return scales[:, None] * lefts.T[sent], rights[sent]


def _sum_of_triplets(lefts: torch.Tensor, rights: torch.Tensor, sides: tuple[int, int]) -> torch.Tensor:
    rows, columns = sides
    return (lefts.view(-1, rows).T @ rights.view(-1, columns)).reshape(-1)

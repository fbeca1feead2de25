"""Gradients as matrices: PowerSGD and GradZip send thin factors, ATOMO singular triplets.

PowerSGD and GradZip are no compressors: what travels is a mean over all ranks already, and what one rank computes next
depends on it. They have the residuals (`binsgdm.compressors.error_feedback`) and the factors by parameter. A gradient
with an infinity or a NaN is not finite on any rank, at least in the row or the column of its matrix. Residuals stay
what they were; a factor that is not finite starts anew at random.

A tensor of shape (n, ...) is the matrix (n, -1). Scalars, 1-d tensors, and matrices whose factors of rank r would have
no fewer elements than the matrix are not factored but sent as they are. So an r of min(n, m) or more is never an error:
it leaves small matrices uncompressed and lossless.

Shape letters: N values of a bucket; n rows, m columns, rank r of a matrix; c triplets.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from binsgdm.comm import Message, Protocol, RankContext
from binsgdm.compressors.base import (
    REPAIR,
    GradientBucket,
    ParameterId,
    ProtocolSystem,
    Shapes,
    check_choice,
    check_state,
    check_whole,
    is_number,
    matrix_shape,
    numel_of,
    numels_of,
)
from binsgdm.compressors.compressor import CheckedCompressor, PayloadSpec, all_reduce_mean
from binsgdm.compressors.error_feedback import Residuals, is_parameter, tensors_of
from binsgdm.errors import BinsgdmError, shown
from binsgdm.kernels import host_loops, streams
from binsgdm.kernels.host_tensors import upload
from binsgdm.kernels.keys import Key
from binsgdm.kernels.random import draws, thresholds

# The norm that a unit column must keep when its projection on the columns before it is taken away. A column that keeps
# less depends on them, up to fp32 rounding.
MIN_INDEPENDENT_PART = 1e-5
_BYTES = 4
_COUNT_DTYPE = torch.int32
_norm = torch.linalg.vector_norm

Tensors = list[Tensor]
Averaged = Generator[Message, Tensor, Tensors]
Products = list[Callable[[], Tensor]]  # one at a time, so that no two are in memory
Means = Generator[Message, Tensor, tuple[Products, Products, Tensors]]


def is_factored(shape: tuple[int, ...], matrix_rank: float) -> bool:
    """Tell whether factors with `matrix_rank` columns have fewer elements than the tensor; else it is sent whole.

    Example:
        >>> is_factored((64, 64), 4), is_factored((4, 64), 4), is_factored((64,), 1), is_factored((0, 64), 1)
        (True, False, False, False)
    """
    rows, columns = matrix_shape(shape)
    return matrix_rank * (rows + columns) < rows * columns


def orthonormalized(columns: Tensor, fill: Callable[[], Tensor]) -> Tensor:
    """Return orthonormal columns that span the given ones: Gram-Schmidt, twice for each column.

    They are fp32 of any magnitude, (n, r) with r <= n. One that is zero, not finite, or dependent on those before it is
    replaced by that of `fill`, which draws as many, alike on all ranks: the result has full rank whatever is given.
    """
    basis = torch.zeros_like(columns)
    on_host = host_loops.is_used_on(columns.device)
    fills = None if on_host else fill()
    for number in range(columns.shape[1]):
        column, is_independent = _orthogonal_part(columns[:, number], basis)
        if on_host and is_independent:
            basis[:, number] = column
            continue
        # On a GPU both columns are always computed and one is selected: no branch on one of its values, and all ranks
        # run alike.
        fills = fill() if fills is None else fills
        filled, _ = _orthogonal_part(fills[:, number], basis)
        basis[:, number] = torch.where(is_independent, column, filled)
    return basis


def _orthogonal_part(column: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
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
    values: Tensor
    start: int

    def gaussian(self, context: RankContext, rows: int, matrix_rank: int, *, skip: int = 0) -> Tensor:
        """Draw standard normal numbers (rows, r), the same on all ranks."""
        device = self.values.device
        uniform = thresholds(context.common_key, start=self.start + skip, numel=rows * matrix_rank, device=device)
        # Thresholds are multiples of 2^-22 from -1 on; half a step moves them inside (-1, 1), where erfinv is finite.
        return ((uniform + 2.0**-23).erfinv() * math.sqrt(2)).view(rows, matrix_rank)


def split_matrices(
    values: Tensor, parameters: Sequence[ParameterId], shapes: Shapes, matrix_rank: float
) -> tuple[list[Matrix], Tensors]:
    """Split flat values of tensors of these shapes into matrices to be factored and other tensors, flat."""
    matrices: list[Matrix] = []
    whole: Tensors = []
    start = 0
    pieces = torch.split(values, numels_of(shapes))
    for piece, parameter, shape in zip(pieces, parameters, shapes, strict=True):
        if not is_factored(shape, matrix_rank):
            whole.append(piece)
            continue
        rows, columns = matrix_shape(shape)
        matrices.append(Matrix(parameter=parameter, values=piece.view(rows, columns), start=start))
        # Enough draws for both factors, so that no two matrices of a bucket share draws.
        start += math.ceil(matrix_rank) * (rows + columns)
    return matrices, whole


def in_order(
    products: Iterable[Callable[[], Tensor]], whole: Iterable[Tensor], shapes: Shapes, matrix_rank: float
) -> Iterator[Tensor]:
    """Yield what matrices are made to be, one after the other, and other tensors, each as `split_matrices` has them."""
    factored, rest = iter(products), iter(whole)
    for shape in shapes:
        yield next(factored)() if is_factored(shape, matrix_rank) else next(rest)


class _LowRankSystem(ProtocolSystem):
    """Error feedback, the state by parameter, and the split of a bucket, which PowerSGD and GradZip share."""

    aggregation = "all_reduce"
    cut = "rows"
    needs_equal_threads = True
    has_feedback = True
    common_state = ("factors", "turns")
    _state_keys: tuple[str, ...] = ("residuals", "factors")
    _num_factors: ClassVar[int]  # that are averaged of a matrix, the left one first

    def __init__(self, matrix_rank: int, *, rank: int, world_size: int) -> None:
        check_whole(f"{self.name}: matrix_rank", matrix_rank, low=1)
        self.matrix_rank = matrix_rank
        self.residuals = Residuals(rank=rank, world_size=world_size)
        self._factors: dict[ParameterId, Tensor] = {}

    def mean(self, bucket: GradientBucket, context: RankContext) -> Protocol:
        """Average a low-rank approximation over all ranks, keep what it lost.

        The result is the same on every rank to the bit where all ranks compute alike (the same device, library and
        number of threads): the last product of factors is each rank's own.
        """
        corrected = self.residuals.corrected(bucket, context)
        matrices, whole = split_matrices(corrected, bucket.parameters, bucket.shapes, self.matrix_rank)
        products, mean, whole_mean = yield from self._means(matrices, whole, context)
        delivered = torch.empty_like(corrected)
        places = torch.split(delivered, bucket.numels)
        for place, values in zip(places, in_order(mean, whole_mean, bucket.shapes, self.matrix_rank), strict=True):
            place.view(values.shape).copy_(values)
        del values  # the last product: no two are in memory
        # The residual is of this rank's approximation of its own matrix. Vectors travel whole and lose nothing.
        for matrix, product in zip(matrices, products, strict=True):
            matrix.values.sub_(product())
        for vector in whole:
            vector.sub_(vector)
        self.residuals.store(corrected, bucket, mean=delivered)
        return delivered

    @abstractmethod
    def _means(self, matrices: Sequence[Matrix], whole: Sequence[Tensor], context: RankContext) -> Means:
        """Return what makes this rank's approximation of each matrix, that of all ranks, and the mean of `whole`."""

    def num_bytes(self, shapes: Shapes) -> int:
        """Return the bytes of what is averaged over all ranks, in fp32, for tensors of these shapes."""
        return _BYTES * sum(
            self.matrix_rank * sum(matrix_shape(shape)[: self._num_factors])
            if is_factored(shape, self.matrix_rank)
            else numel_of((shape,))
            for shape in shapes
        )

    def state_dict(self) -> dict[str, Any]:
        """Return a copy for a checkpoint; every rank saves its own, since residuals differ (factors do not)."""
        factors = {parameter: factor.clone() for parameter, factor in self._factors.items()}
        return {"residuals": self.residuals.state_dict(), "factors": factors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a copy of what `state_dict` returned; all ranks must, since factors are equal on all.

        Factors are taken from any rank of any world size; residuals as `Residuals.load_state_dict` says.
        """
        check_state(self.name, state, self._state_keys)
        # One that is not finite, as after a gradient that was not, starts anew.
        factors = tensors_of(state["factors"], where=self.name, what="factor", dim=2, must_be_finite=False)
        for parameter, factor in factors.items():
            if factor.shape[1] != self.matrix_rank:
                raise BinsgdmError(
                    f"{self.name}: parameter {parameter!r}: a factor of shape {tuple(factor.shape)}: must have "
                    f"{self.matrix_rank} columns (matrix_rank); load the state of the same settings"
                )
        self.residuals.load_state_dict(state["residuals"])
        self._factors = factors

    def _orthonormal(self, matrix: Matrix, rows: int, context: RankContext, *, warm: bool = True) -> Tensor:
        """Return orthonormal columns (rows, r): of the factor from before, or at random."""
        # Drawn alike on all ranks, since all ranks must start from the same factor.
        fill = cache(partial(matrix.gaussian, context, rows, self.matrix_rank))
        factor = self._factors.get(matrix.parameter) if warm else None
        if factor is None:
            return orthonormalized(fill(), fill)
        if tuple(factor.shape) != (rows, self.matrix_rank):
            raise BinsgdmError(
                f"{self.name}: parameter {matrix.parameter!r}: a factor of shape {tuple(factor.shape)} for a matrix of "
                f"shape {tuple(matrix.values.shape)} and matrix_rank {self.matrix_rank}: must fit; load the state of "
                "the same model and matrix_rank"
            )
        # As residuals: one that was loaded was made on another stream.
        on_device = streams.of(matrix.values.device)
        on_device.keep(on_device.current(), factor)
        return orthonormalized(factor.to(matrix.values.device), fill)


class PowerSGD(_LowRankSystem):
    """Approximate each gradient matrix by one step of power iteration, with error feedback.

        P = mean(M Q);  P = orthonormalize(P);  Q = mean(M^T P);  M is delivered as P Q^T

    Two all-reduces a bucket: all P with all tensors that are not factored, then all Q. Rank 4 of a 4096 x 4096 matrix
    is 0.0625 bits per element, 1/512 of fp32. What a rank delivers, P P^T M, is a projection of its M, so
    ||M - C(M)|| <= ||M||, and never less than the best approximation of rank r leaves.

    Args:
        matrix_rank: r, columns of each factor, >= 1.
        warm_start: start each power iteration from the last Q of the parameter instead of a random one.

    Source: Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient compression for distributed
    optimization", NeurIPS 2019 (without its momentum, which is the optimizer's). Differs: a column of P that is zero or
    dependent is replaced by a random one, and Q is orthonormalized too (P spans the same), so that a gradient that is
    zero, not finite or of low rank does not leave factors of low rank for good; matrices that would not get smaller are
    sent whole; the residual is of this rank's own P (M^T P)^T, as in the paper's error feedback, where torch's
    powerSGD_hook takes that of the mean (both have the same mean over ranks).
    """

    name = "power_sgd"
    title = "PowerSGD"
    source = "Vogels et al., NeurIPS 2019"
    wire_format = "two thin factors of every matrix in fp32, vectors whole"
    _num_factors = 2

    def __init__(self, *, matrix_rank: int = 4, warm_start: bool = True, rank: int, world_size: int) -> None:
        super().__init__(matrix_rank, rank=rank, world_size=world_size)
        check_choice("power_sgd: warm_start", warm_start, (True, False))
        self._warm_start = warm_start

    def _means(self, matrices: Sequence[Matrix], whole: Sequence[Tensor], context: RankContext) -> Means:
        # All P of a bucket travel in one all-reduce, with the vectors: few large messages in place of many small ones.
        widths = [matrix.values.shape[1] for matrix in matrices]
        lefts = [
            matrix.values @ self._orthonormal(matrix, columns, context, warm=self._warm_start)
            for matrix, columns in zip(matrices, widths, strict=True)
        ]
        averaged = yield from _averaged([*lefts, *whole], context)
        lefts = [
            # The first m r draws are those of Q.
            orthonormalized(left, partial(matrix.gaussian, context, *left.shape, skip=columns * self.matrix_rank))
            for matrix, left, columns in zip(matrices, averaged, widths, strict=False)
        ]
        # The second all-reduce needs the mean of the first: P is common to all ranks from here on, and Q is linear in
        # M.
        local_rights = [matrix.values.T @ left for matrix, left in zip(matrices, lefts, strict=True)]
        rights = yield from _averaged(local_rights, context)
        self._factors.update((matrix.parameter, right) for matrix, right in zip(matrices, rights, strict=True))
        local: Products = [
            partial(torch.matmul, left, right.T) for left, right in zip(lefts, local_rights, strict=True)
        ]
        mean: Products = [partial(torch.matmul, left, right.T) for left, right in zip(lefts, rights, strict=True)]
        return local, mean, averaged[len(matrices) :]


class GradZip(_LowRankSystem):
    """Factor each gradient matrix alternately: one factor is shared by all ranks, the other is fitted and averaged.

        even turns, V shared:  U = mean(argmin ||M - U V^T||) = mean(M V);      next, U is orthonormalized and shared
        odd turns, U shared:   V = mean(argmin ||M - U V^T||) = mean(M^T U);    next, V is orthonormalized and shared

    One all-reduce a bucket, of one thin factor for each matrix with all tensors that are not factored: half the bytes
    and half the messages of PowerSGD, and half its power iteration a step. With error feedback.

    Args:
        matrix_rank: r, columns of each factor, >= 1.

    Source: Cho, Muthusamy, Nemanich and Puri, "GradZip: gradient compression using alternating matrix factorization for
    large-scale deep learning", NeurIPS 2019 workshop on systems for machine learning. This is a reading of the idea
    (alternating least squares, one factor fixed and equal on all ranks, so that the other can be averaged), not of its
    code. Differs: the shared factor is orthonormalized, so the least squares need neither a regularization nor an
    inverse; the first V is random; sides alternate by step and parameter; error feedback is that of PowerSGD.
    """

    name = "grad_zip"
    title = "GradZip"
    source = "Cho et al., NeurIPS 2019 workshop"
    wire_format = "one thin factor of every matrix in fp32, vectors whole"
    _num_factors = 1
    _state_keys = ("residuals", "factors", "turns")

    def __init__(self, *, matrix_rank: int = 4, rank: int, world_size: int) -> None:
        super().__init__(matrix_rank, rank=rank, world_size=world_size)
        self._turns: dict[ParameterId, int] = {}

    def _means(self, matrices: Sequence[Matrix], whole: Sequence[Tensor], context: RankContext) -> Means:
        # A turn on the transpose fits the other factor with the same code.
        is_odd = [self._turns.get(matrix.parameter, 0) == 1 for matrix in matrices]  # whether the left one is shared
        sides = [matrix.values.T if odd else matrix.values for matrix, odd in zip(matrices, is_odd, strict=True)]
        shared = [self._orthonormal(m, side.shape[1], context) for m, side in zip(matrices, sides, strict=True)]
        # For an orthonormal V the least-squares U of ||M - U V^T|| is M V: no inverse. It is linear in M, so the mean
        # of the ranks' U is the U of the mean gradient.
        local_factors = [side @ factor for side, factor in zip(sides, shared, strict=True)]
        averaged = yield from _averaged([*local_factors, *whole], context)
        fitted, rest = averaged[: len(matrices)], averaged[len(matrices) :]
        local: Products = [partial(_product, *three) for three in zip(local_factors, shared, is_odd, strict=True)]
        mean: Products = [partial(_product, *three) for three in zip(fitted, shared, is_odd, strict=True)]
        for matrix, factor in zip(matrices, fitted, strict=True):
            self._factors[matrix.parameter] = factor
            self._turns[matrix.parameter] = 1 - self._turns.get(matrix.parameter, 0)
        return local, mean, rest

    def state_dict(self) -> dict[str, Any]:
        """Return a copy for a checkpoint, as PowerSGD does, with the factor whose turn is next."""
        return {**super().state_dict(), "turns": dict(self._turns)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a copy of what `state_dict` returned; all ranks must, since factors are equal on all."""
        check_state(self.name, state, self._state_keys)
        turns = state["turns"]
        if not isinstance(turns, Mapping) or not all(
            is_parameter(parameter) and type(turn) is int and turn in (0, 1) for parameter, turn in turns.items()
        ):
            raise BinsgdmError(f"{self.name}: turns of the state: must be 0 or 1 by parameter; {REPAIR}")
        if isinstance(state["factors"], Mapping) and turns.keys() != state["factors"].keys():
            raise BinsgdmError(f"{self.name}: turns of the state: must be of the parameters with factors; {REPAIR}")
        super().load_state_dict(state)
        self._turns = dict(turns)


def _product(fitted: Tensor, shared: Tensor, is_odd: bool) -> Tensor:
    product = fitted @ shared.T
    return product.T if is_odd else product


def _averaged(tensors: Sequence[Tensor], context: RankContext) -> Averaged:
    """Return the means of these tensors over all ranks, by one all-reduce, or none if there is nothing to average."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors]) if tensors else torch.empty(0)
    if flat.numel():
        flat = yield from all_reduce_mean(flat, context)
    means = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [mean.view(tensor.shape) for mean, tensor in zip(means, tensors, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Atomo(CheckedCompressor):
    """Send a random few of a matrix's singular triplets, each scaled up by its chance: spectral ATOMO.

    Unbiased. A matrix with singular values s_i, sent with chances p_i, has E ||M - C(M)||_F^2 = sum s_i^2 (1/p_i - 1),
    the least of all chances that send as many triplets on average.

    A payload has the tensors that are not factored, fp32; the number of triplets of each matrix, int32; and for each
    matrix with rows n, columns m and c triplets c scaled left vectors (c, n) and c right ones (c, m), fp32.

    Attributes:
        budget: triplets sent of a matrix on average, > 0; of a matrix of lower rank all are sent.

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
        numel_whole = numel_of(shapes) - sum(rows * columns for rows, columns in sides)
        return (torch.float32, numel_whole), (_COUNT_DTYPE, len(sides)), (torch.float32, None if sides else 0)

    def encode(self, values: Tensor, shapes: Shapes, key: Key) -> tuple[Tensor, ...]:
        """Decompose the matrices and draw their triplets."""
        matrices, whole = split_matrices(values, range(len(shapes)), shapes, self.budget)
        triplets = [_drawn_triplets(matrix, self.budget, key) for matrix in matrices]
        counts = upload([left.shape[0] for left, _ in triplets], _COUNT_DTYPE, values.device)
        atoms = [vectors.reshape(-1) for pair in triplets for vectors in pair]
        return torch.cat([values[:0], *whole]), counts, torch.cat([values[:0], *atoms])

    def decode(self, tensors: tuple[Tensor, ...], shapes: Shapes, key: Key) -> Tensor:  # noqa: ARG002
        """Return the sums of the sent triplets, and the tensors sent whole."""
        whole, counted, atoms = tensors
        sides, counts = self._sides(shapes), counted.tolist()
        sizes = [count * side for count, pair in zip(counts, sides, strict=True) for side in pair]
        if min(sizes, default=0) < 0 or sum(sizes) != atoms.numel():
            raise BinsgdmError(
                f"{self.name}: a payload of {atoms.numel()} values of triplets: must be {sum(sizes)}, as its counts "
                f"{counts} say; compress with the same settings and version"
            )
        vectors = iter(torch.split(atoms, sizes))
        sums = [partial(_sum_of_triplets, next(vectors), next(vectors), side) for side in sides]
        others = torch.split(whole, [numel_of((shape,)) for shape in shapes if not is_factored(shape, self.budget)])
        return torch.cat([atoms[:0], *in_order(sums, others, shapes, self.budget)])

    def _sides(self, shapes: Shapes) -> list[tuple[int, int]]:
        """Return rows and columns of the tensors that are factored."""
        return [matrix_shape(shape) for shape in shapes if is_factored(shape, self.budget)]


def probabilities(magnitudes: Tensor, budget: float) -> Tensor:
    """Return with which chance to send each atom, so that `budget` are sent on average and the variance is least.

    The largest are certain, the others have chances proportional to their magnitudes, which are >= 0 and descend. All
    are certain if the budget, > 0, is at least as many as there are; a magnitude of 0 needs no sending: 0.

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


def _drawn_triplets(matrix: Matrix, budget: float, key: Key) -> tuple[Tensor, Tensor]:
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


def _sum_of_triplets(lefts: Tensor, rights: Tensor, sides: tuple[int, int]) -> Tensor:
    rows, columns = sides
    return (lefts.view(-1, rows).T @ rights.view(-1, columns)).reshape(-1)

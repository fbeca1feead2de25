"""Low-rank systems: in place of a gradient matrix its thin factors travel, and all ranks average them.

PowerSGD and GradZip are no compressors: what travels is a mean over all ranks already, and what one rank computes next
depends on it. They have the residuals (`binsgdm.compressors.error_feedback`) and the factors by parameter.

A gradient with an infinity or a NaN is not finite on any rank, at least in the row or the column of its matrix.
Residuals stay what they were; a factor that is not finite starts anew at random.

Shape letters: N values of a bucket; n rows, m columns, rank r of a matrix.
"""

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch

from binsgdm.comm import Message, Protocol, RankContext
from binsgdm.compressors.aggregation import all_reduce_mean
from binsgdm.compressors.base import (
    REPAIR,
    GradientBucket,
    ParameterId,
    ProtocolSystem,
    Shapes,
    check_choice,
    check_state,
    check_whole,
    numel_of,
)
from binsgdm.compressors.matrices import Matrix, is_factored, matrix_shape, orthonormalized, split_matrices
from binsgdm.compressors.residuals import Residuals, is_parameter, tensors_of
from binsgdm.errors import BinsgdmError
from binsgdm.kernels import streams

_BYTES = 4

Tensors = list[torch.Tensor]
Averaged = Generator[Message, torch.Tensor, Tensors]
Products = list[Callable[[], torch.Tensor]]  # one at a time, so that no two are in memory
Means = Generator[Message, torch.Tensor, tuple[Products, Products, Tensors]]


class _LowRankSystem(ProtocolSystem):
    """Error feedback, the state by parameter, and the split of a bucket, which PowerSGD and GradZip share."""

    aggregation = "all_reduce"
    cut = "rows"
    needs_equal_threads = True
    has_feedback = True
    common_state = ("factors", "turns")
    _state_keys: tuple[str, ...] = ("residuals", "factors")

    def __init__(self, matrix_rank: int, *, rank: int, world_size: int) -> None:
        check_whole(f"{self.name}: matrix_rank", matrix_rank, low=1)
        self.matrix_rank = matrix_rank
        self.residuals = Residuals(rank=rank, world_size=world_size)
        self._factors: dict[ParameterId, torch.Tensor] = {}

    def mean(self, bucket: GradientBucket, context: RankContext) -> Protocol:
        """Average a low-rank approximation over all ranks, keep what it lost; see `binsgdm.compressors.base.Averager`.

        The result is the same on every rank to the bit where all ranks compute alike (the same device, library and
        number of threads): the last product of factors is each rank's own.
        """
        corrected = self.residuals.corrected(bucket, context)
        split = split_matrices(corrected, bucket.parameters, bucket.shapes, self.matrix_rank)
        matrices = list(split.matrices.values())
        own, mean, whole_mean = yield from self._means(matrices, split.whole, context)
        delivered = torch.empty_like(corrected)
        split.write(mean, whole_mean, delivered)
        # The residual is of this rank's approximation of its own matrix. Vectors travel whole and lose nothing.
        for matrix, product in zip(matrices, own, strict=True):
            matrix.values.sub_(product())
        for vector in split.whole:
            vector.sub_(vector)
        self.residuals.store(corrected, bucket, mean=delivered)
        return delivered

    @abstractmethod
    def _means(self, matrices: Sequence[Matrix], whole: Sequence[torch.Tensor], context: RankContext) -> Means:
        """Return what makes this rank's approximation of each matrix, that of all ranks, and the mean of `whole`."""

    def num_bytes(self, shapes: Shapes) -> int:
        """Return the bytes of what is averaged over all ranks, in fp32, for tensors of these shapes."""
        return _BYTES * sum(
            self._num_sent(*matrix_shape(shape)) if is_factored(shape, self.matrix_rank) else numel_of((shape,))
            for shape in shapes
        )

    @abstractmethod
    def _num_sent(self, rows: int, columns: int) -> int:
        """Return how many elements are averaged for a matrix."""

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
        self._check_factors(factors)
        self.residuals.load_state_dict(state["residuals"])
        self._factors = factors

    def _check_factors(self, factors: Mapping[ParameterId, torch.Tensor]) -> None:
        for parameter, factor in factors.items():
            if factor.shape[1] != self.matrix_rank:
                raise BinsgdmError(
                    f"{self.name}: parameter {parameter!r}: a factor of shape {tuple(factor.shape)}: must have "
                    f"{self.matrix_rank} columns (matrix_rank); load the state of the same settings"
                )

    def _orthonormal(self, matrix: Matrix, rows: int, context: RankContext, *, warm: bool = True) -> torch.Tensor:
        """Return orthonormal columns (rows, r): of the factor from before, or at random."""
        # Drawn alike on all ranks, since all ranks must start from the same factor.
        fill = cache(partial(matrix.gaussian, context, rows, self.matrix_rank))
        kept = self._kept_factor(matrix, rows) if warm else None
        return orthonormalized(fill() if kept is None else kept, fill)

    def _kept_factor(self, matrix: Matrix, rows: int) -> torch.Tensor | None:
        """Return the factor of a matrix from before, (rows, r)."""
        factor = self._factors.get(matrix.parameter)
        if factor is None:
            return None
        if tuple(factor.shape) != (rows, self.matrix_rank):
            raise BinsgdmError(
                f"{self.name}: parameter {matrix.parameter!r}: a factor of shape {tuple(factor.shape)} for a matrix of "
                f"shape {tuple(matrix.values.shape)} and matrix_rank {self.matrix_rank}: must fit; load the state of "
                "the same model and matrix_rank"
            )
        # As residuals: one that was loaded was made on another stream.
        on_device = streams.of(matrix.values.device)
        on_device.keep(on_device.current(), factor)
        return factor.to(matrix.values.device)


class PowerSGD(_LowRankSystem):
    """Approximate each gradient matrix by one step of power iteration, with error feedback.

        P = mean(M Q);  P = orthonormalize(P);  Q = mean(M^T P);  M is delivered as P Q^T

    Two all-reduces a bucket: all P with all tensors that are not factored, then all Q. Rank 4 of a 4096 x 4096 matrix
    is 0.0625 bits per element, 1/512 of fp32. What a rank delivers, P P^T M, is a projection of its M, so
    ||M - C(M)|| <= ||M||, and never less than the best approximation of rank r leaves.

    Args:
        matrix_rank: r, columns of each factor, >= 1.
        warm_start: start each power iteration from the last Q of the parameter instead of a random one.
        rank: this rank.
        world_size: all ranks.

    Attributes:
        residuals: what was lost, by parameter.

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

    def __init__(self, *, matrix_rank: int = 4, warm_start: bool = True, rank: int, world_size: int) -> None:
        super().__init__(matrix_rank, rank=rank, world_size=world_size)
        check_choice("power_sgd: warm_start", warm_start, (True, False))
        self._warm_start = warm_start

    def _means(self, matrices: Sequence[Matrix], whole: Sequence[torch.Tensor], context: RankContext) -> Means:
        # All P of a bucket travel in one all-reduce, with the vectors: few large messages in place of many small ones.
        lefts = [matrix.values @ self._right(matrix, context) for matrix in matrices]
        averaged = yield from _averaged([*lefts, *whole], context)
        lefts = [self._left(matrix, left, context) for matrix, left in zip(matrices, averaged, strict=False)]
        # The second all-reduce needs the mean of the first: P is common to all ranks from here on, and Q is linear in
        # M.
        own = [matrix.values.T @ left for matrix, left in zip(matrices, lefts, strict=True)]
        rights = yield from _averaged(own, context)
        self._factors.update((matrix.parameter, right) for matrix, right in zip(matrices, rights, strict=True))
        local: Products = [partial(torch.matmul, left, right.T) for left, right in zip(lefts, own, strict=True)]
        mean: Products = [partial(torch.matmul, left, right.T) for left, right in zip(lefts, rights, strict=True)]
        return local, mean, averaged[len(matrices) :]

    def _right(self, matrix: Matrix, context: RankContext) -> torch.Tensor:
        """Return the orthonormal Q of shape (m, r) that the power iteration starts from."""
        return self._orthonormal(matrix, matrix.values.shape[1], context, warm=self._warm_start)

    def _left(self, matrix: Matrix, averaged: torch.Tensor, context: RankContext) -> torch.Tensor:
        """Return the orthonormal P of shape (n, r)."""
        rows, columns = matrix.values.shape
        fill = partial(matrix.gaussian, context, rows, self.matrix_rank, skip=columns * self.matrix_rank)
        return orthonormalized(averaged, fill)

    def _num_sent(self, rows: int, columns: int) -> int:
        return self.matrix_rank * (rows + columns)


class GradZip(_LowRankSystem):
    """Factor each gradient matrix alternately: one factor is shared by all ranks, the other is fitted and averaged.

        even turns, V shared:  U = mean(argmin ||M - U V^T||) = mean(M V);      next, U is orthonormalized and shared
        odd turns, U shared:   V = mean(argmin ||M - U V^T||) = mean(M^T U);    next, V is orthonormalized and shared

    One all-reduce a bucket, of one thin factor for each matrix with all tensors that are not factored: half the bytes
    and half the messages of PowerSGD, and half its power iteration a step. With error feedback.

    Args:
        matrix_rank: r, columns of each factor, >= 1.
        rank: this rank.
        world_size: all ranks.

    Attributes:
        residuals: what was lost, by parameter.

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
    _state_keys = ("residuals", "factors", "turns")

    def __init__(self, *, matrix_rank: int = 4, rank: int, world_size: int) -> None:
        super().__init__(matrix_rank, rank=rank, world_size=world_size)
        self._turns: dict[ParameterId, int] = {}

    def _means(self, matrices: Sequence[Matrix], whole: Sequence[torch.Tensor], context: RankContext) -> Means:
        # A turn on the transpose fits the other factor with the same code.
        sides = [matrix.values.T if self._is_odd(matrix) else matrix.values for matrix in matrices]
        shared = [self._orthonormal(m, side.shape[1], context) for m, side in zip(matrices, sides, strict=True)]
        # For an orthonormal V the least-squares U of ||M - U V^T|| is M V: no inverse. It is linear in M, so the mean
        # of the ranks' U is the U of the mean gradient.
        own = [side @ factor for side, factor in zip(sides, shared, strict=True)]
        averaged = yield from _averaged([*own, *whole], context)
        fitted, rest = averaged[: len(matrices)], averaged[len(matrices) :]
        is_odd = [self._is_odd(matrix) for matrix in matrices]
        local: Products = [partial(_product, *three) for three in zip(own, shared, is_odd, strict=True)]
        mean: Products = [partial(_product, *three) for three in zip(fitted, shared, is_odd, strict=True)]
        for matrix, factor in zip(matrices, fitted, strict=True):
            self._factors[matrix.parameter] = factor
            self._turns[matrix.parameter] = 1 - self._turns.get(matrix.parameter, 0)
        return local, mean, rest

    def _is_odd(self, matrix: Matrix) -> bool:
        """Tell whether the left factor is the shared one."""
        return self._turns.get(matrix.parameter, 0) == 1

    def state_dict(self) -> dict[str, Any]:
        """Return a copy for a checkpoint; every rank saves its own, since residuals differ (factors do not)."""
        return {**super().state_dict(), "turns": dict(self._turns)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a copy of what `state_dict` returned; all ranks must, since factors are equal on all."""
        check_state(self.name, state, self._state_keys)
        turns = state["turns"]
        if not isinstance(turns, Mapping) or not all(map(is_turn, turns.items())):
            raise BinsgdmError(f"{self.name}: turns of the state: must be 0 or 1 by parameter; {REPAIR}")
        if isinstance(state["factors"], Mapping) and turns.keys() != state["factors"].keys():
            raise BinsgdmError(f"{self.name}: turns of the state: must be of the parameters with factors; {REPAIR}")
        super().load_state_dict(state)
        self._turns = dict(turns)

    def num_bytes(self, shapes: Shapes, *, is_odd_turn: bool = False) -> int:
        """Return the bytes of what is averaged over all ranks in a turn, in fp32, for tensors of these shapes."""
        numel = super().num_bytes(shapes) // _BYTES
        if is_odd_turn:
            sides = [matrix_shape(shape) for shape in shapes if is_factored(shape, self.matrix_rank)]
            numel += self.matrix_rank * sum(columns - rows for rows, columns in sides)
        return _BYTES * numel

    def _num_sent(self, rows: int, columns: int) -> int:  # noqa: ARG002
        return self.matrix_rank * rows


def _product(fitted: torch.Tensor, shared: torch.Tensor, is_odd: bool) -> torch.Tensor:
    product = fitted @ shared.T
    return product.T if is_odd else product


def is_turn(item: tuple[object, object]) -> bool:
    """Tell whether something is a parameter and which of its factors comes next."""
    parameter, turn = item
    return is_parameter(parameter) and isinstance(turn, int) and not isinstance(turn, bool) and turn in (0, 1)


def _averaged(tensors: Sequence[torch.Tensor], context: RankContext) -> Averaged:
    """Return the means of these tensors over all ranks, by one all-reduce, or none if there is nothing to average."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors]) if tensors else torch.empty(0)
    if flat.numel():
        flat = yield from all_reduce_mean(flat, context)
    means = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [mean.view(tensor.shape) for mean, tensor in zip(means, tensors, strict=True)]

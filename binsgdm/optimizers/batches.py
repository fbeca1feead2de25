"""The parameters of a bucket as the lists that kernels take, kept from step to step.

A model has hundreds of small tensors, and on a GPU a step may take less time than the host needs for a few calls for
each of them.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch

from binsgdm.comm.flat_buckets import BITS_PER_BYTE, Segment
from binsgdm.kernels import TensorColumn
from binsgdm.kernels.bits import packed_numel
from binsgdm.optimizers.base import ParamState


class BucketParam(NamedTuple):
    """A parameter as a segment of a bucket; m and b are flat views of its state."""

    segment: Segment
    param_state: ParamState
    m: torch.Tensor
    b: torch.Tensor

    @classmethod
    def of(cls, segment: Segment, param_state: ParamState) -> "BucketParam":
        """Take the state that a parameter has now."""
        m, b = param_state.state["m"].view(-1), param_state.state["b"].view(-1)
        return cls(segment, param_state, m, b)


class StateViews:
    """What m and b were when views were taken of them."""

    def __init__(self, params: Sequence[BucketParam]) -> None:
        self._states = [param.param_state.state for param in params]
        self._addresses = self._found()

    def are_outdated(self) -> bool:
        """Tell whether somebody has put another tensor into a state."""
        return self._found() != self._addresses

    def _found(self) -> list[int]:
        # Of every parameter, in every step.
        averages = [*map(itemgetter("m"), self._states), *map(itemgetter("b"), self._states)]
        return list(map(torch.Tensor.data_ptr, averages))


class _Piece(NamedTuple):
    """What a stretch of a bucket has of a parameter: first element and end in the flat order, m and b of these."""

    parameter: torch.Tensor
    group: dict[str, Any]
    number: int
    start: int
    end: int
    m: torch.Tensor
    b: torch.Tensor


class Batch:
    """Parameters with the same settings, or what a stretch of a bucket has of them.

    Args:
        group: the settings.
        pieces: in the flat order, none empty.
        first: first element of the stretch in the flat order.
        end: its end.
        residual: of the stretch, if rounding keeps what it loses.

    Attributes:
        numbers: of the parameters in their bucket.
        parameters: whose pieces these are.
        ms: of the pieces, flat.
        bs: of the pieces, flat.
        starts: first element of each piece in the flat order.
        residuals: of the pieces, if rounding keeps what it loses.
    """

    def __init__(
        self, group: dict[str, Any], pieces: Sequence[_Piece], first: int, end: int, residual: torch.Tensor | None
    ) -> None:
        self.group = group
        self.numbers = [piece.number for piece in pieces]
        self.parameters = [piece.parameter for piece in pieces]
        self.ms, self.bs = TensorColumn(piece.m for piece in pieces), TensorColumn(piece.b for piece in pieces)
        self.starts = [piece.start for piece in pieces]
        bounds = [(piece.start - first, piece.end - piece.start) for piece in pieces]
        self._elements = _gaps_and_sizes(bounds, end - first)
        self.residuals = TensorColumn(() if residual is None else torch.split(residual, self._elements)[1::2])
        in_bytes = [(offset // BITS_PER_BYTE, packed_numel(numel)) for offset, numel in bounds]
        self._bytes = _gaps_and_sizes(in_bytes, (end - first) // BITS_PER_BYTE)
        self._values: tuple[int, TensorColumn] | None = None
        self._packed: tuple[int, TensorColumn] | None = None

    def elements_of(self, values: torch.Tensor) -> TensorColumn:
        """Return views of the pieces in values of the whole stretch, which lie at the same place in every step."""
        if self._values is None or self._values[0] != values.data_ptr():
            self._values = values.data_ptr(), TensorColumn(torch.split(values, self._elements)[1::2])
        return self._values[1]

    def packed_of(self, packed: torch.Tensor, *, is_kept: bool) -> TensorColumn:
        """Return views of the pieces in packed signs of the whole stretch; kept ones lie at the same place."""
        # TensorColumn hold their memory, so where one begins no other begins as long as they are here.
        if self._packed is not None and self._packed[0] == packed.data_ptr():
            return self._packed[1]
        views = TensorColumn(torch.split(packed, self._bytes)[1::2])
        self._packed = (packed.data_ptr(), views) if is_kept else None
        return views


class Batches:
    """A stretch of a bucket, by settings.

    Args:
        params: of the bucket.
        first: first element of the stretch in the flat order.
        end: its end.
        residual: of the stretch, if rounding keeps what it loses.
    """

    def __init__(
        self, params: Sequence[BucketParam], first: int, end: int, residual: torch.Tensor | None = None
    ) -> None:
        self._first, self._end, self._residual = first, end, residual
        self._pieces = [_piece(number, param, first, end) for number, param in enumerate(params)]
        self._chosen: tuple[bool, ...] | None = None
        self._batches: list[Batch] = []

    def of(self, chosen: Sequence[bool]) -> list[Batch]:
        """Return the batches of some of the parameters; none is without a piece."""
        # In most steps they are those of the step before.
        if (wanted := tuple(chosen)) != self._chosen:
            self._chosen, self._batches = wanted, self._made(wanted)
        return self._batches

    def _made(self, chosen: Sequence[bool]) -> list[Batch]:
        found: dict[int, list[_Piece]] = {}
        for piece, is_chosen in zip(self._pieces, chosen, strict=True):
            if is_chosen and piece is not None:
                found.setdefault(id(piece.group), []).append(piece)
        return [Batch(pieces[0].group, pieces, self._first, self._end, self._residual) for pieces in found.values()]


def _piece(number: int, param: BucketParam, first: int, end: int) -> _Piece | None:
    """Return what a stretch has of a parameter, if anything."""
    origin = param.segment.start
    start, end = max(origin, first), min(origin + param.segment.numel, end)
    if start >= end:
        return None
    m, b = param.m[start - origin : end - origin], param.b[start - origin : end - origin]
    return _Piece(param.param_state.parameter, param.param_state.group, number, start, end, m, b)


def _gaps_and_sizes(bounds: Sequence[tuple[int, int]], total: int) -> list[int]:
    """Return in turns the sizes of a gap and of a piece, and last that of what is behind them."""
    sizes, end = [], 0
    for offset, size in bounds:
        sizes += [offset - end, size]
        end = offset + size
    return [*sizes, total - end]


def in_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose elements lie in memory in their logical order: itself where they do, else a copy."""
    # Draws are numbered by the logical order, in which replicas agree whatever memory format each has. So one in
    # channels_last is copied in each step: 8 bytes an element of memory traffic for an fp32 gradient, 16 for a
    # parameter.
    return tensor.resolve_neg().contiguous()


def all_in_order(tensors: Sequence[torch.Tensor]) -> TensorColumn:
    """Return tensors `in_order`, as kernels take them."""
    found = TensorColumn(tensors)
    if found.is_contiguous and not any(map(torch.Tensor.is_neg, found)):
        return found
    return TensorColumn(map(in_order, tensors))


def elements_of(u: torch.Tensor, segment: Segment) -> torch.Tensor:
    """Return the elements of a bucket's updates that belong to one parameter."""
    return u[segment.offset : segment.offset + segment.numel]


def packed_of(packed: torch.Tensor, segment: Segment) -> torch.Tensor:
    """Return the bytes of a bucket's packed signs that hold one parameter."""
    first = segment.offset // BITS_PER_BYTE
    return packed[first : first + packed_numel(segment.numel)]

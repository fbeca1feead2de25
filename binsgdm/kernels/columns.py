"""Tensors as kernels take them, and what their implementations share."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from operator import attrgetter

import torch
from torch import Tensor

from binsgdm.errors import BinsgdmError

Columns = Sequence["TensorColumn"]

_dtype, _device, _is_cpu = attrgetter("dtype"), attrgetter("device"), attrgetter("is_cpu")


class TensorColumn(tuple[Tensor, ...]):
    """Tensors with what kernels ask of each, read once: sizes, addresses, dtypes.

    A model has hundreds of tensors, of which most stay where they are from step to step; asking each of them anew in
    every step would cost as much as the work on a small model. Whoever keeps a column keeps its tensors as they are:
    none may be resized or get other memory.

    Attributes:
        numels: elements of each tensor.
        dtypes: all that they have.
        devices: all that they are on.
        is_contiguous: whether all are.
    """

    numels: tuple[int, ...]
    dtypes: frozenset[torch.dtype]
    devices: frozenset[torch.device]
    is_contiguous: bool

    def __new__(cls, tensors: Iterable[Tensor]) -> "TensorColumn":
        """Read what tensors are."""
        self = super().__new__(cls, tensors)
        self.numels = tuple(map(Tensor.numel, self))
        self.dtypes = frozenset(map(_dtype, self))
        # Of most tensors a look at each is enough, a third of the time of comparing what it says.
        some = self[:1] if all(map(_is_cpu, self)) else self
        self.devices = frozenset(map(_device, some))
        self.is_contiguous = all(map(Tensor.is_contiguous, self))
        return self

    @cached_property
    def addresses(self) -> tuple[int, ...]:
        """Where each begins; those of tensors without memory are never asked for."""
        return tuple(map(Tensor.data_ptr, self))


def by_dtype(columns: Columns, *others: Sequence[int]) -> list[tuple[torch.dtype, Columns, Sequence[Sequence[int]]]]:
    """Return columns, and numbers that belong to their tensors, cut by the dtype of the first one's tensors."""
    first = columns[0]
    if len(first.dtypes) == 1:
        return [(first[0].dtype, columns, others)]
    dtypes = [tensor.dtype for tensor in first]
    made: list[tuple[torch.dtype, Columns, Sequence[Sequence[int]]]] = []
    for dtype in dict.fromkeys(dtypes):
        chosen = [number for number, its in enumerate(dtypes) if its == dtype]
        some = [TensorColumn(column[n] for n in chosen) for column in columns]
        made.append((dtype, some, [[numbers[n] for n in chosen] for numbers in others]))
    return made


def sign_factors(lr: float, weight_decay: float, maximize: bool) -> tuple[float, float]:
    """Return the factors of a sign and of x, computed in double precision: a kernel rounds each to fp32 once."""
    return -lr if maximize else lr, 1.0 - lr * weight_decay


def check_count(packed_rows: Tensor, most: int, repair: str) -> None:
    """Check that a kernel, or a residual, can count this many vectors."""
    if packed_rows.shape[0] > most:
        raise BinsgdmError(f"packed_rows: {packed_rows.shape[0]} vectors: must be at most {most}; take {repair}")

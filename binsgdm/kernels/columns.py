"""Lists of tensors with what kernels ask of each: sizes, addresses, dtypes.

A model has hundreds of tensors, of which most stay where they are from step to step; asking each of them anew in every
step would cost as much as the work on a small model.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from operator import attrgetter

import torch
from torch import Tensor

from binsgdm.kernels.bits import packed_numel

_dtype, _device, _is_cpu = attrgetter("dtype"), attrgetter("device"), attrgetter("is_cpu")


class TensorColumn(tuple[Tensor, ...]):
    """Tensors whose sizes, addresses and dtypes are read once.

    Whoever keeps one keeps its tensors as they are: none may be resized or get other memory.

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


def column(tensors: Sequence[Tensor]) -> TensorColumn:
    """Return tensors as a column: themselves, if they are one."""
    return tensors if isinstance(tensors, TensorColumn) else TensorColumn(tensors)


@lru_cache(maxsize=256)
def packed_numels(numels: tuple[int, ...]) -> tuple[int, ...]:
    """Return how many bytes the signs of each of many tensors take."""
    return tuple(map(packed_numel, numels))


def by_dtype(
    columns: Sequence[TensorColumn], *others: Sequence[int]
) -> list[tuple[torch.dtype, Sequence[TensorColumn], Sequence[Sequence[int]]]]:
    """Return columns, and numbers that belong to their tensors, cut by the dtype of the first one's tensors."""
    first = columns[0]
    if len(first.dtypes) == 1:
        return [(first[0].dtype, columns, others)]
    dtypes = [tensor.dtype for tensor in first]
    made: list[tuple[torch.dtype, Sequence[TensorColumn], Sequence[Sequence[int]]]] = []
    for dtype in dict.fromkeys(dtypes):
        chosen = [number for number, its in enumerate(dtypes) if its == dtype]
        some = [TensorColumn(one[n] for n in chosen) for one in columns]
        made.append((dtype, some, [[numbers[n] for n in chosen] for numbers in others]))
    return made

"""Count comparisons to the bit by name, and keep what the first that failed found."""

import torch
from torch import Tensor

from binsgdm.bench.record import Record

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Comparisons:
    """Comparisons by name."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._details: dict[str, str] = {}

    def compare(self, name: str, wanted: Tensor, got: Tensor, where: str) -> bool:
        """Count a comparison; return whether the tensors are equal.

        Args:
            name: of what is compared.
            wanted: on any device.
            got: what must equal it; NaNs are equal whatever their payload.
            where: the case, for people.
        """
        return self.count(name, difference(wanted, got), where)

    def count(self, name: str, difference: str, where: str) -> bool:
        """Count a comparison that found a difference, or none: ""; return whether it found none."""
        self._counts[name] = self._counts.get(name, 0) + 1
        if difference:
            self._details.setdefault(name, f"{where}: {difference}")
        return not difference

    def write(self, record: Record) -> None:
        """Add a check for every name."""
        for name, count in self._counts.items():
            record.check(name, passed=name not in self._details, count=count, detail=self._details.get(name, ""))


def difference(wanted: Tensor, got: Tensor) -> str:
    """Say how two tensors differ to the bit, or return an empty string."""
    if wanted.dtype != got.dtype or wanted.shape != got.shape:
        return f"{got.dtype} {tuple(got.shape)} for {wanted.dtype} {tuple(wanted.shape)}"
    wanted = wanted.to(got.device)
    unequal = _bits(wanted) != _bits(got)
    if wanted.is_floating_point():
        unequal &= ~(wanted.isnan() & got.isnan()).reshape(-1)
    if not bool(unequal.any()):
        return ""
    first = int(unequal.nonzero()[0])
    pair = (hex(int(_bits(one)[first]) & (256 ** one.element_size() - 1)) for one in (got, wanted))
    return f"{int(unequal.sum())} of {unequal.numel()} differ, the first at {first}: {' for '.join(pair)}"


def _bits(tensor: Tensor) -> Tensor:
    if tensor.dtype == torch.bool:
        return tensor.reshape(-1).to(torch.uint8)
    return tensor.contiguous().view(-1).view(_INTEGERS[tensor.element_size()])

"""Values that are read of tensors without memory: zeros, so that a script which logs its loss can go on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from binsgdm.replaced import replaced

_READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda tensor: 0.0 if tensor.is_floating_point() else 0,
    "tolist": lambda tensor: torch.Tensor.item(tensor) if not tensor.dim() else [one.tolist() for one in tensor],
    "__bool__": lambda _: False,  # which ends loops that wait for a value
    "__float__": lambda _: 0.0,
    "__int__": lambda _: 0,
}


@contextmanager
def zeros_for_values() -> Iterator[None]:
    """Let what reads the value of a fake tensor return zero, or False, where the value is not known."""
    with replaced(torch.Tensor, **{name: _known(name, zero) for name, zero in _READS.items()}):
        yield


def _known(name: str, zero: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
    read = getattr(torch.Tensor, name)

    def value(self: torch.Tensor) -> Any:
        try:
            return read(self)
        except (DataDependentOutputException, NotImplementedError):
            return zero(self)

    return value

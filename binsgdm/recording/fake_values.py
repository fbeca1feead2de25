"""Values that are read of tensors without memory: zeros, so that a script which logs its loss can go on."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from binsgdm.recording.patching import replaced

_READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda tensor: 0.0 if tensor.is_floating_point() else 0,
    "tolist": lambda tensor: torch.Tensor.item(tensor) if not tensor.dim() else [one.tolist() for one in tensor],
    "__bool__": lambda _: False,  # which ends loops that wait for a value
    "__float__": lambda _: 0.0,
    "__int__": lambda _: 0,
}


@contextmanager
def zeros_for_values() -> Iterator[list[str]]:
    """Let what reads the value of a fake tensor return zero, or False, where the value is not known.

    Yields:
        Where that was, "model.py:12", each place once.
    """
    places: list[str] = []
    with replaced(torch.Tensor, **{name: _known(name, zero, places) for name, zero in _READS.items()}):
        yield places


def _known(name: str, zero: Callable[[torch.Tensor], Any], places: list[str]) -> Callable[..., Any]:
    read = getattr(torch.Tensor, name)

    def value(self: torch.Tensor) -> Any:
        try:
            return read(self)
        except (DataDependentOutputException, NotImplementedError):
            _note(sys._getframe(1), places)
            return zero(self)

    return value


def _note(reader: FrameType, places: list[str]) -> None:
    place = f"{Path(reader.f_code.co_filename).name}:{reader.f_lineno}"
    if place not in places:
        places.append(place)

"""Count FLOPs and bytes of every operator that a script runs."""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from binsgdm.recording.operator_work import work_of
from binsgdm.recording.recorder import Recorder
from binsgdm.recording.recording_group import FUNCTIONAL, FunctionalCollectives


class OperatorCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what runs below it.

    Args:
        recorder: is told.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self._without_memory = FunctionalCollectives()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count it; one of a DTensor comes again as what it does on this rank."""
        if any(_is_made_of_others(one) for one in types):
            return NotImplemented
        if func.namespace in FUNCTIONAL and any(issubclass(one, FakeTensor) for one in types):
            return self._without_memory.answer(func, args, kwargs or {})
        found = func(*args, **(kwargs or {}))
        self._recorder.count(*work_of(func, args, kwargs or {}, found))
        return found


def _is_made_of_others(kind: type) -> bool:
    """Tell whether tensors of a class run operators on tensors that they hold."""
    return kind not in (torch.Tensor, torch.nn.Parameter, FakeTensor) and hasattr(kind, "__torch_dispatch__")

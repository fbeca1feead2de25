"""Count FLOPs and bytes of every operator that a script runs."""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from binsgdm.recording.recorder import Recorder


class OperatorCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what runs below it: FLOPs of matrix products and convolutions, bytes of everything else.

    Args:
        recorder: is told.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count it; one of a DTensor comes again as what it does on this rank."""
        if any(_is_made_of_others(one) for one in types):
            return NotImplemented
        found = func(*args, **(kwargs or {}))
        packet = getattr(func, "_overloadpacket", None)
        if packet in flop_registry:
            self._recorder.count(float(flop_registry[packet](*args, **(kwargs or {}), out_val=found)), 0.0)
        elif not func.is_view and func.namespace in ("aten", "fsdp", "prims"):
            self._recorder.count(0.0, float(_bytes_moved(func, args, kwargs, found)))
        return found


def _is_made_of_others(kind: type) -> bool:
    """Tell whether tensors of a class run operators on tensors that they hold."""
    return kind not in (torch.Tensor, torch.nn.Parameter, FakeTensor) and hasattr(kind, "__torch_dispatch__")


_MAKE_ONLY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias", "resize_")


def _bytes_moved(func: Any, args: Any, kwargs: Any, found: Any) -> int:
    """Return bytes of all tensors read and of those written that are not read as well."""
    if func._overloadpacket.__name__ in _MAKE_ONLY:
        return 0
    read = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    made = [one for one in tree_leaves(found) if isinstance(one, torch.Tensor)]
    return sum(one.numel() * one.element_size() for one in (*read, *made))

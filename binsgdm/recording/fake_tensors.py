"""Let a script run on tensors without memory: DDP, whose reducer copies real data, is a module in Python there."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import fsdp  # noqa: F401 - which has the name, too
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import parallel
from torch.utils._python_dispatch import _disable_current_modes

from binsgdm.recording.fake_ddp import FakeDdp
from binsgdm.recording.fake_values import zeros_for_values
from binsgdm.recording.patching import replaced


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Make all tensors of a script fake; what it reads of them is zero."""
    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(zeros_for_values())
        stack.enter_context(replaced(parallel, DistributedDataParallel=FakeDdp))
        stack.enter_context(replaced(parallel.distributed, DistributedDataParallel=FakeDdp))
        stack.enter_context(replaced(nn.Module, _apply=_with_new_parameters))
        stack.enter_context(replaced(DeviceMesh, **_real_methods()))
        for home in [one for one in list(sys.modules.values()) if vars(one).get(_MAKES) is init_device_mesh]:
            stack.enter_context(replaced(home, **{_MAKES: _on_real_numbers(init_device_mesh)}))
        yield


def _with_new_parameters(self: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Convert a module, as `module.to(dtype)` asks for; torch changes parameters in place, which fake ones refuse."""
    new: dict[int, nn.Parameter] = {}  # of a parameter that two modules share
    for module in self.modules() if recurse else (self,):
        for name, one in module._parameters.items():
            if one is not None:
                if id(one) not in new:
                    with torch.no_grad():
                        new[id(one)] = nn.Parameter(change(one), one.requires_grad)
                module._parameters[name] = new[id(one)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = change(buffer)
    return self


_MAKES = "init_device_mesh"


def _real_methods() -> dict[str, Any]:
    """Return the methods of a mesh, whose ranks are read."""
    return {name: _on_real_numbers(one) for name, one in vars(DeviceMesh).items() if inspect.isfunction(one)}


def _on_real_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def with_memory(*given: Any, **named: Any) -> Any:
        with _disable_current_modes():
            return function(*given, **named)

    return with_memory

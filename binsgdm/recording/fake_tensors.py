"""Let a script run on tensors without memory.

What it reads of them is zero; DDP, whose reducer copies real data, is a module in Python there: its buckets, its hook
and its waits.
"""

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.compiler import is_dynamo_compiling
from torch.distributed import fsdp  # noqa: F401 - which has the name, too
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import functional, parallel
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from binsgdm.recording.operator_work import grouped_shape

FIRST_BUCKET_BYTES = 1 << 20
DEFAULT_CAP_MB = 25
_TRACES = "_are_we_tracing"
"""What DTensor takes fake tensors for: it would keep no plan of an operator, and wait at once for what it sends."""
Hook = Callable[[Any, Any], "torch.futures.Future[Any]"]


class _FakeBucket:
    """What a hook asks of `dist.GradBucket`."""

    def __init__(self, index: int, parameters: list[nn.Parameter], *, is_last: bool) -> None:
        self._index, self._parameters, self._is_last = index, parameters, is_last
        self._buffer = torch.cat([_gradient(parameter).reshape(-1) for parameter in parameters])

    def index(self) -> int:
        return self._index

    def buffer(self) -> Tensor:
        return self._buffer

    def set_buffer(self, buffer: Tensor) -> None:
        self._buffer = buffer

    def gradients(self) -> list[Tensor]:
        parts = torch.split(self._buffer, [parameter.numel() for parameter in self._parameters])
        return [part.view(parameter.shape) for part, parameter in zip(parts, self._parameters, strict=True)]

    def parameters(self) -> list[nn.Parameter]:
        return self._parameters

    def is_last(self) -> bool:
        return self._is_last


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


class FakeDdp(nn.Module):
    """A module whose gradients leave in DDP's buckets.

    Buckets are cut as DDP cuts them from the second step on: in the order in which gradients were ready in the first
    backward, by `torch.distributed._compute_bucket_assignment_by_size`.

    Args:
        module: to wrap.
        options: arguments of DDP, of which the group and the bucket's size matter.
    """

    def __init__(self, module: nn.Module, *_: Any, **options: Any) -> None:
        super().__init__()
        self.module = module
        self.process_group = options.get("process_group") or dist.group.WORLD
        cap_mb = options.get("bucket_cap_mb")
        cap = int((cap_mb or DEFAULT_CAP_MB) * 2**20)
        # Unless a size is asked for, DDP's first bucket is small, so that sending begins early.
        self._caps = [cap if cap_mb else FIRST_BUCKET_BYTES, cap]
        self.require_backward_grad_sync = True
        self._hook: Hook = _mean
        self._state: object = None
        self._trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._order: list[nn.Parameter] = []  # in which gradients were ready in this backward
        self._buckets: list[list[nn.Parameter]] = [self._trained]
        self._futures: list[tuple[_FakeBucket, Any]] = []
        self._num_steps = 0
        for parameter in self._trained:
            parameter.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
        # As DDP does, ranks start from the parameters of rank 0.
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, 0, group=self.process_group)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the module."""
        return self.module(*inputs, **named)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients accumulate."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def register_comm_hook(self, state: object, hook: Hook) -> None:
        """Let a hook reduce the buckets."""
        self._state, self._hook = state, hook

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        if not self.require_backward_grad_sync:
            return
        if not self._order:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._order.append(parameter)
        ready = {id(done) for done in self._order}
        # Buckets leave in order, each when all of its gradients are there.
        while len(self._futures) < len(self._buckets):
            number = len(self._futures)
            if not all(id(needed) in ready for needed in self._buckets[number]):
                return
            bucket = _FakeBucket(number, self._buckets[number], is_last=number == len(self._buckets) - 1)
            self._futures.append((bucket, self._hook(self._state or self.process_group, bucket)))

    def _finish(self) -> None:
        """Wait for all buckets, and copy them back, as DDP's reducer does at the end of backward."""
        for bucket, future in self._futures:
            reduced = future.wait()
            bucket.set_buffer(reduced[0] if isinstance(reduced, list) else reduced)
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                _gradient(parameter).copy_(gradient)
        # The order is known from now on; DDP, too, cuts once, after its first backward.
        if not self._num_steps:
            cut = dist._compute_bucket_assignment_by_size  # type: ignore[attr-defined]
            sizes = cut([parameter.detach() for parameter in self._order], self._caps)[0]
            self._buckets = [[self._order[index] for index in bucket] for bucket in sizes]
        self._num_steps += 1
        self._order, self._futures = [], []


def _mean(group: Any, bucket: _FakeBucket) -> Any:
    """Average as DDP does without a hook: the division comes first."""
    buffer = bucket.buffer().div_(group.size())
    return dist.all_reduce(buffer, group=group, async_op=True).get_future()


_READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda tensor: 0.0 if tensor.is_floating_point() else 0,
    "tolist": lambda tensor: torch.Tensor.item(tensor) if not tensor.dim() else [row.tolist() for row in tensor],
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
    with ExitStack() as stack:
        for name, zero in _READS.items():
            stack.enter_context(patch.object(torch.Tensor, name, _known(name, zero, places)))
        yield places


def _known(name: str, zero: Callable[[torch.Tensor], Any], places: list[str]) -> Callable[..., Any]:
    read = getattr(torch.Tensor, name)

    def value(self: torch.Tensor) -> Any:
        try:
            return read(self)  # a constant has a value also there
        except (DataDependentOutputException, NotImplementedError):
            reader = sys._getframe(1)  # the script's line, which has to be named
            place = f"{Path(reader.f_code.co_filename).name}:{reader.f_lineno}"
            if place not in places:
                places.append(place)
            return zero(self)

    return value


class GroupedProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes grouped products of tensors without memory, as experts need them.

    torch's own refuse all but bf16 there, which they compute in every format where there is memory.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return a tensor of the right shape for a grouped product, and run all else."""
        del types
        if func is not torch.ops.aten._grouped_mm.default:
            return func(*args, **(kwargs or {}))
        named = {"offs": None, "out_dtype": None} | dict(zip(("offs", "bias", "out_dtype"), args[2:], strict=False))
        named |= kwargs or {}
        return args[0].new_empty(
            grouped_shape(args[0], args[1], named["offs"]), dtype=named["out_dtype"] or args[0].dtype
        )


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Make all tensors of a script fake; what it reads of them is zero."""
    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(GroupedProducts())  # type: ignore[no-untyped-call]
        stack.enter_context(zeros_for_values())
        # Under both names: scripts import it from either.
        for home in (parallel, parallel.distributed):
            stack.enter_context(patch.object(home, "DistributedDataParallel", FakeDdp))
        stack.enter_context(patch.object(nn.Module, "_apply", _with_new_parameters))
        for name, method in list(vars(DeviceMesh).items()):  # which read its ranks
            if inspect.isfunction(method):
                stack.enter_context(patch.object(DeviceMesh, name, _on_real_numbers(method)))
        for home in list(sys.modules.values()):
            if vars(home).get("init_device_mesh") is init_device_mesh:
                stack.enter_context(patch.object(home, "init_device_mesh", _on_real_numbers(init_device_mesh)))
            if _TRACES in vars(home):
                stack.enter_context(patch.object(home, _TRACES, is_dynamo_compiling))
        yield


def storage_of(tensor: Tensor) -> int:
    """Return the number of a tensor's storage, which its views share."""
    return int(tensor.untyped_storage()._cdata)


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Fuse attention as a GPU does, and let tensors without memory be copied."""
    fused = patch.multiple(functional, scaled_dot_product_attention=_with_dropout_inside)
    with warnings.catch_warnings(), fused:
        # Who copies a module looks whether its tensors have a place in memory.
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        yield


_ATTENTION = functional.scaled_dot_product_attention


def _with_dropout_inside(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    *settings: Any,
    **named: Any,
) -> Tensor:
    """Return fused attention: a CPU has none with dropout, and a GPU's drops scores without writing them down."""
    return _ATTENTION(query, key, value, attn_mask, 0.0 * dropout_p, *settings, **named)


def _with_new_parameters(self: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Convert a module, as `module.to(dtype)` asks for; torch changes parameters in place, which fake ones refuse."""
    new: dict[int, nn.Parameter] = {}  # of a parameter that two modules share
    for module in self.modules() if recurse else (self,):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in new:
                    with torch.no_grad():
                        new[id(parameter)] = nn.Parameter(change(parameter), parameter.requires_grad)
                module._parameters[name] = new[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = change(buffer)
    return self


def _on_real_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def with_memory(*arguments: Any, **named: Any) -> Any:
        with _disable_current_modes():
            return function(*arguments, **named)

    return with_memory

"""Tensors that say they are on a GPU and compute on the CPU, so that waits for a GPU can be counted without one.

`PretendDevice` is on while a test runs: what is made on "cuda" is a `PretendTensor`, which knows its device (as many as
are named) and holds its values in a CPU tensor. Every operation is seen, also those inside others. What would make the
host wait for a GPU is counted, and a CPU tensor beside one on "cuda" is refused, as torch refuses it on a real one.

Triton's programs run in its interpreter, on the values. What it does not have: streams, and autograd's graph (give
gradients by hand)."""

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from binsgdm.bench import timing
from binsgdm.kernels import host_tensors, streams, tables, triton_support

aten = torch.ops.aten
_LAUNCH = triton_support.launch
# Operations whose answer the host, or the size of the result, depends on: torch waits for the GPU in each of them.
READS = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.bincount.default,
    aten._linalg_svd.default,
    aten._linalg_eigh.default,
    aten._linalg_check_errors.default,
}
INDEXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}
# A CPU tensor without dimensions counts as a number in arithmetic, and nowhere else.
STRICT = {aten.cat.default, aten.stack.default, aten.index_select.default, aten.gather.default, aten.scatter_.src}
COPIES = {aten.copy_.default, aten._to_copy.default}


class PretendTensor(torch.Tensor):
    """A tensor that says it is on a GPU; `values` has what it holds, on the CPU, in the same layout."""

    values: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: torch.Tensor, device: torch.device) -> "PretendTensor":
        """Wrap a CPU tensor, whose memory it shares."""
        made: PretendTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=device,
        )
        made.values = values
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, _types: Any, _args: Any = (), _kwargs: Any = None) -> Any:
        """Refuse: outside of a `PretendDevice` nobody counts."""
        raise AssertionError(f"{func}: a pretended tensor outside of PretendDevice")

    def __repr__(self, *_: Any, **__: Any) -> str:
        return f"PretendTensor({self.values}, device={self.device})"


class PretendDevice(TorchDispatchMode):
    """Counts, while it is entered, what would make the host wait for a GPU.

    Attributes:
        reads: operations by which the host learns a value on a GPU.
        blocking_uploads: copies from pageable memory to a GPU, for which torch waits, too.
        uploads: copies from pinned memory, for which it does not.
        storages: how many tensors with memory of their own were made on a GPU.
        operations: of a GPU, by name; views included.
        is_capturing: what `torch.cuda.is_current_stream_capturing` says.
        current: number of the current device, which `torch.cuda.device` sets.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pinned: dict[int, torch.Tensor] = {}
        self.is_capturing = False
        self.current = 0
        self.reset()

    def reset(self) -> None:
        """Count from 0 on."""
        self.reads: Counter[str] = Counter()
        self.blocking_uploads: Counter[str] = Counter()
        self.uploads: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self.storages = 0

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation on the CPU, and count."""
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        on_gpu = [leaf for leaf in given if isinstance(leaf, PretendTensor)]
        device = kwargs.get("device") or (on_gpu[0].device if on_gpu else torch.device("cpu"))
        if not on_gpu and device.type == "cpu":
            return func(*args, **kwargs)
        self._count(func, args, kwargs, on_gpu, device)
        on_cpu = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory")}
        if "device" in kwargs:
            on_cpu["device"] = torch.device("cpu")
        run = _exact_roots if func is aten._foreach_sqrt_.default else func
        out = run(*tree_map(_values, args), **tree_map(_values, on_cpu))
        if func in COPIES and on_gpu and device.type == "cpu":
            return out
        return tree_map(lambda leaf: self._wrapped(leaf, on_gpu, device), out)

    def launch(self, program: Any, num_programs: int, *arguments: Any, **constants: Any) -> None:
        """Interpret a Triton program."""
        self.operations[f"triton.{program.fn.__name__}"] += 1
        _LAUNCH(program, num_programs, *map(_values, arguments), **constants)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy in what would be pinned memory, which a build of torch without CUDA does not have."""
        pinned = tensor.clone()
        self._pinned[pinned.data_ptr()] = pinned
        return pinned

    def _count(self, func: Any, args: Any, kwargs: Any, on_gpu: list[PretendTensor], device: torch.device) -> None:
        name = str(func)
        self.operations[name] += 1
        if func is aten._foreach_copy_.default and any(len({one.dtype for one in some}) > 1 for some in args[:2]):
            raise AssertionError(f"{func}: tensors of several dtypes: PyTorch before 2.11 copies them wrongly on a GPU")
        if func in COPIES:
            self._count_copy(func, args, kwargs, device)
            return
        needs_size = func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None
        if func in READS or needs_size:
            self.reads[name] += 1
        if func in INDEXED:
            for index in (leaf for leaf in tree_leaves(args[1]) if isinstance(leaf, torch.Tensor)):
                if index.dtype in (torch.bool, torch.uint8):
                    self.reads[name] += 1
                elif not isinstance(index, PretendTensor):
                    self.blocking_uploads[name] += 1
        _refuse_mixed(func, args[:1] if func in INDEXED else (args, kwargs), on_gpu)

    def _count_copy(self, func: Any, args: Any, kwargs: Any, device: torch.device) -> None:
        source = args[1] if func is aten.copy_.default else args[0]
        target = args[0].device if func is aten.copy_.default else device
        non_blocking = kwargs.get("non_blocking") or (args[2] if len(args) > 2 else False)
        if source.device.type == "cpu" and target.type == "cuda":
            is_pinned = non_blocking and source.data_ptr() in self._pinned
            (self.uploads if is_pinned else self.blocking_uploads)[str(func)] += 1
        elif source.device.type == "cuda" and target.type == "cpu":
            self.reads[str(func)] += 1

    def _wrapped(self, leaf: Any, on_gpu: list[PretendTensor], device: torch.device) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        for one in on_gpu:  # changed in place: the same tensor comes back
            if one.values is leaf:
                return one
        storages = {one.values.untyped_storage().data_ptr() for one in on_gpu}
        self.storages += leaf.untyped_storage().data_ptr() not in storages
        return PretendTensor(leaf, device)


class _Devices(TorchFunctionMode):
    """Gives every device a number, and does in pieces what torch's Python side asks a GPU for."""

    def __init__(self, counts: PretendDevice) -> None:
        super().__init__()
        self._counts = counts

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(self._numbered, (args, kwargs or {}))
        if func is torch.Tensor.pin_memory:
            return self._counts.pinned(args[0])
        if args and isinstance(args[0], PretendTensor) and func in _IN_PIECES:
            return _IN_PIECES[func](*args, **kwargs)
        if func in (torch.tensor, torch.as_tensor, torch.Tensor.new_tensor):
            default = args[0].device if func is torch.Tensor.new_tensor else None
            device = kwargs.pop("device", default)
            if device is not None and torch.device(device).type == "cuda":
                data, *more = args[1:] if func is torch.Tensor.new_tensor else args
                return torch.tensor(data, *more, **kwargs).to(device)
        return func(*args, **kwargs)

    def _numbered(self, leaf: Any) -> Any:
        is_current = isinstance(leaf, str | torch.device) and str(leaf) == "cuda"
        return torch.device("cuda", self._counts.current) if is_current else leaf


@contextmanager
def pretended_device(*, uses_triton: bool = False) -> Iterator[PretendDevice]:
    """Let "cuda" be what a GPU would be, on the CPU; at first the current device is number 0.

    Args:
        uses_triton: as on a GPU, if Triton's interpreter is on; it is slow. Else plain torch does the same.
    """
    counts = PretendDevice()

    @contextmanager
    def entered(device: Any) -> Iterator[None]:
        before, index = counts.current, device if isinstance(device, int) else torch.device(device).index
        counts.current = before if index is None or index < 0 else index
        yield
        counts.current = before

    with ExitStack() as stack:
        for owner, name, value in (
            (torch.cuda, "_lazy_init", lambda: None),
            (torch.cuda, "is_current_stream_capturing", lambda: counts.is_capturing),
            (torch.cuda, "device", entered),
            (tables, "stream_of", lambda _device: 0),
            (streams, "of", lambda _device: streams.CpuStreams()),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        for kept in (host_tensors.constant, tables._rows, tables._owners):
            stack.callback(kept.cache_clear)  # no pretended tensor must meet a real GPU
        if not uses_triton or os.environ.get("TRITON_INTERPRET") != "1":
            stack.enter_context(mock.patch.dict(os.environ, {triton_support.ENVIRONMENT_VARIABLE: "reference"}))
        else:
            triton_kernels = import_module("binsgdm.kernels.triton_kernels")
            stack.callback(triton_kernels._limits.cache_clear)
            for owner in (triton_support, triton_kernels):
                stack.enter_context(mock.patch.object(owner, "launch", counts.launch))
        for mode in (torch.no_grad(), _Devices(counts), counts):
            stack.enter_context(mode)
        yield counts


def _exact_roots(tensors: list[torch.Tensor]) -> None:
    """Replace values by their roots, rounded as on a GPU; those of torch on some CPUs are off by a last bit."""
    for tensor in tensors:
        np.sqrt(tensor.numpy(), out=tensor.numpy())


def _indexed(tensor: torch.Tensor, given: Any) -> torch.Tensor:
    """Do what `tensor[given]` does, operation by operation."""
    parts = list(given) if isinstance(given, tuple) else [given]
    if Ellipsis in [part for part in parts if not isinstance(part, torch.Tensor)]:
        where = next(number for number, part in enumerate(parts) if part is Ellipsis)
        parts[where : where + 1] = [slice(None)] * (tensor.dim() - sum(part is not None for part in parts) + 1)
    indices: list[torch.Tensor | None] = []
    for part in parts:
        dim = len(indices)
        if isinstance(part, torch.Tensor) and part.dim() == 0 and part.dtype not in (torch.bool, torch.uint8):
            part = part.item()  # as torch does  # noqa: PLW2901
        if isinstance(part, int) and not isinstance(part, bool):
            tensor = aten.select.int(tensor, dim, part)
            continue
        if part is None:
            tensor = aten.unsqueeze.default(tensor, dim)
        elif isinstance(part, slice) and part != slice(None):
            step = 1 if part.step is None else part.step
            tensor = aten.slice.Tensor(tensor, dim, part.start, part.stop, step)
        indices.append(part if isinstance(part, torch.Tensor) else None)
    if any(index is not None for index in indices):
        tensor = aten.index.Tensor(tensor, indices)
    return tensor


def _set(tensor: torch.Tensor, given: Any, value: Any) -> None:
    """Do what `tensor[given] = value` does."""
    parts = given if isinstance(given, tuple) else (given,)
    if any(isinstance(part, torch.Tensor) for part in parts):
        aten.index_put_.default(tensor, list(parts), value)
        return
    view = _indexed(tensor, given)
    if isinstance(value, torch.Tensor):
        aten.copy_.default(view, value)
    else:
        view.fill_(value)


def _nonzero(tensor: torch.Tensor, *, as_tuple: bool = False) -> Any:
    indices = aten.nonzero.default(tensor)
    return aten.unbind.int(indices, 1) if as_tuple else indices


_IN_PIECES: dict[Any, Any] = {
    torch.Tensor.__getitem__: _indexed,
    torch.Tensor.__setitem__: _set,
    torch.Tensor.copy_: aten.copy_.default,
    torch.Tensor.nonzero: _nonzero,
    torch.Tensor.data_ptr: lambda tensor: tensor.values.data_ptr(),
    torch.Tensor.__invert__: aten.bitwise_not.default,
    torch.Tensor.tolist: lambda tensor: tensor.cpu().tolist(),
    torch.Tensor.__index__: lambda tensor: tensor.item(),
    torch.Tensor.__float__: lambda tensor: float(tensor.item()),
}


def _values(leaf: Any) -> Any:
    return leaf.values if isinstance(leaf, PretendTensor) else leaf


def _refuse_mixed(func: Any, given: Any, on_gpu: list[PretendTensor]) -> None:
    leaves = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
    foreign = [leaf for leaf in leaves if not isinstance(leaf, PretendTensor) and (leaf.dim() or func in STRICT)]
    devices = {str(leaf.device) for leaf in [*on_gpu, *foreign]}
    if len(devices) > 1:
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, found {sorted(devices)}")


L2_BYTES = 2**10
MEMORY_BYTES = 2**34


class PretendEvent:
    """An event that the device reaches when it is recorded; `device` is that of its stream."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.device: torch.device | None = None

    def record(self, stream: Any = None) -> None:
        self.device, self._at_s = stream.device, time.perf_counter()

    def query(self) -> bool:
        return False  # the device is still held: the host is never too slow

    def elapsed_time(self, other: "PretendEvent") -> float:
        assert self.device == other.device
        return (other._at_s - self._at_s) * 1e3


@contextmanager
def pretended_card(monkeypatch: pytest.MonkeyPatch, free_bytes: int = MEMORY_BYTES) -> Iterator[PretendDevice]:
    """Let "cuda" be a card that can be timed and has so much memory."""
    monkeypatch.setenv("BINSGDM_KERNELS", "reference")  # Triton would look for a real driver
    properties = SimpleNamespace(L2_cache_size=L2_BYTES, name="pretended", major=9, minor=0)
    for name, made in {
        "Event": PretendEvent,
        "current_stream": lambda device=None: SimpleNamespace(device=torch.device(device or "cuda:0")),
        "synchronize": lambda device=None: None,
        "device": lambda device: nullcontext(),
        "get_device_properties": lambda device: properties,
        "get_device_capability": lambda device=None: (9, 0),
        "mem_get_info": lambda device=None: (free_bytes, MEMORY_BYTES),
        "_sleep": lambda cycles: None,
        "empty_cache": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, made)
    monkeypatch.setattr(timing, "WARM_S", 0.0)
    with pretended_device() as counts:
        yield counts

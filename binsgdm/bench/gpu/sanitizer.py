"""PyTorch's CUDA sanitizer, which judges the order of operations on streams, with all threads in its sight."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch.utils._python_dispatch import TorchDispatchMode

from binsgdm.kernels.streams import CudaStreams


def found_by_sanitizer(work: Callable[[], object]) -> str:
    """Return what the sanitizer says of some work with CUDA, in one line; empty where it finds nothing.

    It does not see kernels of Triton and collectives of NCCL, and takes views that begin elsewhere for other memory.
    """
    # Its import begins to watch events and memory.
    from torch.cuda import _sanitizer

    try:
        with _watched(_sanitizer.cuda_sanitizer.dispatch):
            work()
    except _sanitizer.CUDASanitizerErrors as errors:
        return " ".join(str(errors.errors[0]).split())[:300]
    return ""


@contextmanager
def _watched(judge: Any) -> Iterator[None]:
    """Show a sanitizer the operations of this thread, of its backwards, and of every communication thread."""
    # The sanitizer watches the thread that turns it on, and autograd's. A communication thread turns to its stream
    # first of all.
    use, lock = CudaStreams.use, threading.RLock()

    @contextmanager
    def use_watched(self: CudaStreams, stream: Any) -> Iterator[None]:
        with use(self, stream), _Shown(judge, lock):
            yield

    with mock.patch.object(CudaStreams, "use", use_watched), _Shown(judge, lock):
        yield


class _Shown(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands the operations of one thread to a judge, one at a time."""

    def __init__(self, judge: Any, lock: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._judge, self._lock = judge, lock

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self._lock:
            return self._judge.__torch_dispatch__(func, types, args, kwargs)

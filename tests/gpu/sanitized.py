"""Let PyTorch's CUDA sanitizer judge exchanges beside backward: `python -m tests.gpu.sanitized cuda:0`.

What it finds is printed, in one line; nothing if that is nothing. A process of its own: the sanitizer calls Python from
inside CUDA's calls, and might end or block its own.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from binsgdm.comm import groups
from binsgdm.kernels.streams import CudaStreams
from binsgdm.optimizers.settings import SCHEMES
from tests.gpu.late_training import LateTraining


def found_by_sanitizer(work: Callable[[], object]) -> str:
    """Return what the sanitizer says of some work with CUDA, in one line; empty where it finds nothing.

    It does not see kernels of Triton and collectives of NCCL, and takes views that begin elsewhere for other memory.
    """
    # Its import begins to watch events and memory.
    from torch.cuda import _sanitizer

    try:
        with watched(_sanitizer.cuda_sanitizer.dispatch):
            work()
    except _sanitizer.CUDASanitizerErrors as errors:
        return " ".join(str(errors.errors[0]).split())[:300]
    return ""


@contextmanager
def watched(judge: Any) -> Iterator[None]:
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


def main(device_name: str) -> None:
    """Train with exchanges in BinSGDM and in DDP's hook, as one rank."""
    device = torch.device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    training = LateTraining(groups=groups.make(1), device=device, side=16)

    def work() -> None:
        for scheme in SCHEMES:
            # The sanitizer does not see kernels of Triton.
            training.with_binsgdm(scheme, overlap=True, kernels="reference")
        training.with_system("dense")

    found = found_by_sanitizer(work) if device.type == "cuda" else work()  # which has no race on a CPU
    sys.stdout.write(f"{found or ''}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])

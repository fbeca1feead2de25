"""Streams and events of a device: the one place that knows CUDA's.

Work on a GPU is enqueued to a stream and runs later. Work of two streams has no order unless one waits for an event of
the other, and memory of a tensor goes back to the stream that it was made on, whoever else still reads it. On a CPU all
work is done when its call returns, and nothing here has an effect.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import torch

from binsgdm.errors import BinsgdmError

Stream = Any  # a torch.cuda.Stream; None on a CPU
Event = Any


class CpuStreams:
    """A CPU's, where calls return when their work is done: torch's stand-ins, which do nothing but for a recorder."""

    def current(self) -> Stream:
        """Return the stream that this thread enqueues to."""
        return torch.cpu.current_stream()

    def make(self) -> Stream:
        """Return a new stream, for one that uses it in all steps.

        PyTorch keeps freed memory by stream: a new stream allocates anew, and state that is replaced must be freed on
        the stream that it was made on.
        """
        return torch.cpu.Stream()

    def use(self, stream: Stream) -> AbstractContextManager[object]:
        """Let this thread enqueue to a stream, with its device as the current one."""
        return torch.cpu.stream(stream)

    def record(self, stream: Stream) -> Event:
        """Return an event that is over when all is done that has been enqueued to a stream so far."""
        return stream.record_event()

    def wait(self, stream: Stream, event: Event) -> None:
        """Let what is enqueued to a stream from now on begin when an event is over; the caller goes on."""
        stream.wait_event(event)

    def keep(self, stream: Stream, *tensors: torch.Tensor) -> None:
        """Keep the memory of tensors, when they are freed, until a stream has done what it has by then."""

    def future(self) -> "torch.futures.Future[torch.Tensor]":
        """Return a future for a tensor; whose stream waits for it also keeps the tensor."""
        return torch.futures.Future()


class CudaStreams(CpuStreams):
    """A GPU's (CUDA, or ROCm under its name)."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def current(self) -> Stream:  # noqa: D102
        return torch.cuda.current_stream(self._device)

    def make(self) -> Stream:  # noqa: D102
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    @contextmanager
    def use(self, stream: Stream) -> Iterator[None]:  # noqa: D102
        # A new thread starts on device 0, whatever its maker's is, and NCCL and Triton look at the current one.
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            yield

    def keep(self, stream: Stream, *tensors: torch.Tensor) -> None:  # noqa: D102
        for tensor in tensors:
            if tensor.device == self._device:
                tensor.record_stream(stream)

    def future(self) -> "torch.futures.Future[torch.Tensor]":  # noqa: D102
        # With its devices named, the future makes the stream that waits for it wait for the one that set its result.
        return torch.futures.Future(devices=[self._device])


def check_not_captured(where: str, device: torch.device, reason: str) -> None:
    """Refuse a step while a CUDA graph is captured."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise BinsgdmError(
            f"{where}: step() while a CUDA graph is captured: {reason}; capture forward and backward, and call step() "
            "after the graph"
        )


@cache
def of(device: torch.device) -> CpuStreams:
    """Return the streams of the device of some tensor."""
    return CudaStreams(device) if device.type == "cuda" else CpuStreams()

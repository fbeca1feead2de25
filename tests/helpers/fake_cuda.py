"""What `binsgdm.kernels.streams` asks of `torch.cuda`, without a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from binsgdm.kernels import streams


class FakeCuda:
    """Notes what is asked of CUDA, in order; the rest is PyTorch's."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._real = torch.cuda

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        self.asked.append(f"on {device}")
        yield

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.asked.append(f"to {stream}")
        yield

    def current_stream(self, device: Any) -> "FakeCudaStream":
        return FakeCudaStream(self, f"current stream of {device}")

    def Stream(self, device: Any) -> "FakeCudaStream":  # noqa: N802 - as torch.cuda calls it
        return FakeCudaStream(self, f"own stream of {device}")


class FakeCudaStream:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self._cuda, self._name = cuda, name

    def __repr__(self) -> str:
        return self._name

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(self._name)

    def record_event(self) -> str:
        self._cuda.asked.append(f"record {self}")
        return f"event of {self}"

    def wait_event(self, event: str) -> None:
        self._cuda.asked.append(f"{self} waits for {event}")


def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Put a fake in the place of `torch.cuda`."""
    cuda = FakeCuda()
    monkeypatch.setattr(torch, "cuda", cuda)
    # Streams that are made with a fake are not kept.
    monkeypatch.setattr(streams, "of", streams.CudaStreams)
    return cuda

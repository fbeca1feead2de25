"""The parts of torch.cuda that measurements call, for the tensors of `pretend_device`: events on the CPU's clock."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from binsgdm.bench import timing
from tests.helpers.pretend_device import PretendDevice, pretended_device

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

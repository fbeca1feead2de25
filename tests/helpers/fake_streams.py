"""What is run under the race detector: a system's hook in DDP on a fake process group, and its communication thread."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from binsgdm.comm import groups
from binsgdm.comm.thread import CommunicationThread
from binsgdm.compressors.registry import SYSTEMS, make
from binsgdm.kernels import streams
from binsgdm.parallel.ddp_hook import GradientExchange, exchange_bucket
from tests.helpers.race_detector import FakeStream, RaceDetector

SYSTEM_CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in SYSTEMS if name not in ("top_k", "ms_top_k", "random_k", "marsit")),
    ("marsit", {"sync_period": 2}),
    ("qsgd", {"coding": "elias", "bits": 2}),
    ("top_k", {"ratio": 0.1}),
    ("ms_top_k", {"k": 5}),
    ("random_k", {"ratio": 0.2}),
]


@contextmanager
def fake_ranks(world_size: int) -> Iterator[groups.Groups]:
    """Be rank 0 of several, two a node."""
    dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    try:
        yield groups.make(2)
    finally:
        dist.destroy_process_group()


def watched(detector: RaceDetector, monkeypatch: pytest.MonkeyPatch, *, behind: int = 0) -> RaceDetector:
    """Put the detector in place, with communication threads that enqueue what they were given so many items before."""
    thread_type = CommunicationThread
    run_item, submit, finish = thread_type._run_item, thread_type.submit, thread_type.finish
    turns: dict[Any, Turns] = defaultdict(Turns)

    def run_in_turn(thread: Any, item: Any) -> None:
        turns[thread].may_run.acquire()
        run_item(thread, item)
        turns[thread].has_run.release()

    def submit_and_let_run(thread: Any, *args: Any) -> None:
        submit(thread, *args)
        turns[thread].waiting += 1
        turns[thread].let_run(leave=behind)

    def let_run_and_finish(thread: Any) -> None:
        turns[thread].let_run(leave=0)
        finish(thread)

    monkeypatch.setattr(thread_type, "_run_item", run_in_turn)
    monkeypatch.setattr(thread_type, "submit", submit_and_let_run)
    monkeypatch.setattr(thread_type, "finish", let_run_and_finish)
    to_list = torch.Tensor.tolist

    def note_and_list(tensor: Any) -> Any:  # which PyTorch reads past its operations
        detector.note("tolist", [tensor], [])
        return to_list(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", note_and_list)
    monkeypatch.setattr(streams, "of", lambda _: detector)
    return detector


class Turns:
    """Which items of a thread may run."""

    def __init__(self) -> None:
        self.waiting = 0
        self.may_run, self.has_run = threading.Semaphore(0), threading.Semaphore(0)

    def let_run(self, *, leave: int) -> None:
        while self.waiting > leave:
            self.waiting -= 1
            self.may_run.release()
            self.has_run.acquire()


class Net(nn.Module):
    """Three layers and one beside them, which may be computed on another stream."""

    def __init__(self, detector: RaceDetector, other: FakeStream | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(6, 9), nn.Linear(9, 20), nn.Linear(20, 3), nn.Linear(6, 4)])
        self._detector, self._other = detector, other

    def forward(self, inputs: Any) -> Any:
        first, second, third, beside = self.layers
        detector, current = self._detector, self._detector.current()
        stream = self._other or current
        # In this order backward computes the side first, all of it.
        result = detector.on_stream(third(second(first(inputs).tanh()).tanh()).square().mean(), current)
        detector.wait(stream, detector.record(current))
        detector.keep(stream, inputs)
        with detector.use(stream):
            side = beside(inputs).square().mean()
        detector.wait(current, detector.record(stream))
        detector.keep(current, side)
        return result + detector.on_stream(side, stream)


class Hooked:
    """A model in DDP whose gradients a system averages, with an optimizer."""

    def __init__(
        self, detector: RaceDetector, made: groups.Groups, system: str, options: dict[str, Any], **ddp: Any
    ) -> None:
        self._detector = detector
        self._model = DistributedDataParallel(Net(detector), bucket_cap_mb=0.0001, **ddp)
        end = make(system, rank=made.rank, world_size=made.world_size, ranks_per_node=made.ranks_per_node, **options)
        self.exchange = GradientExchange(self._model, end, made, seed=0, on_sent=None)
        self._model.register_comm_hook(self.exchange, exchange_bucket)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.1)

    def steps(self, count: int) -> None:
        self.exchange._is_state_checked = True  # rank 0 is all ranks here
        for _ in range(count):
            self._detector.backward(self._model(torch.ones(5, 6)))
            self._optimizer.step()
            self._optimizer.zero_grad()

"""The sanitizer of PyTorch is shown what a communication thread does."""

import threading

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench.gpu import sanitizer
from binsgdm.comm.thread import CommunicationThread
from tests.helpers.fake_cuda import fake_cuda


class Judge:
    def __init__(self):
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append((threading.current_thread().name, str(func)))
        return func(*args, **(kwargs or {}))


def test_operations_of_every_thread_are_shown(monkeypatch):
    fake_cuda(monkeypatch)
    judge = Judge()
    with sanitizer._watched(judge):
        values = torch.ones(2, requires_grad=True)
        values.sum().backward()
        thread = CommunicationThread("test-thread", torch.device("cuda", 1), lambda one: one + 1)
        thread.submit(values)
        thread.finish()
    assert ("MainThread", "aten.sum.default") in judge.seen
    assert ("MainThread", "aten.expand.default") in judge.seen  # backward
    assert [one for one in judge.seen if one[0] == "test-thread"] == [("test-thread", "aten.add.Tensor")]


def test_what_the_sanitizer_of_this_pytorch_finds_is_told_in_one_line():
    from torch.cuda import _sanitizer

    def fail():
        raise _sanitizer.CUDASanitizerErrors([ValueError("a race")])

    assert "a race" in sanitizer.found_by_sanitizer(fail)
    assert sanitizer.found_by_sanitizer(lambda: None) == ""

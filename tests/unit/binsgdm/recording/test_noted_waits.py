"""Threads and streams of a recorded step: what they compute is timed, what they wait for each other is not."""

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.recording import recorder as recorders
from binsgdm.recording.noted_waits import noted_cuda_streams, noted_threads
from binsgdm.recording.recorder import Recorder
from binsgdm.recording.tape import COMPUTE, Computed

WAIT_S = 100.0


class Passed(threading.local):
    """A clock of each thread's own, which goes on when it is told to."""

    now_s = 0.0


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> Passed:
    """Let every wait of a thread take `WAIT_S` of its time, and nothing else any."""
    clock = Passed()
    monkeypatch.setattr(recorders.time, "perf_counter", lambda: clock.now_s)

    def slow(wait: Callable[..., object]) -> Callable[..., object]:
        def slow_wait(*given: object, **named: object) -> object:
            clock.now_s += WAIT_S
            return wait(*given, **named)

        return slow_wait

    class SlowQueue(queue.SimpleQueue):  # type: ignore[type-arg]
        get = slow(queue.SimpleQueue.get)

    monkeypatch.setattr(queue, "SimpleQueue", SlowQueue)
    monkeypatch.setattr(threading.Thread, "join", slow(threading.Thread.join))
    monkeypatch.setattr(threading.Condition, "wait", slow(threading.Condition.wait))
    monkeypatch.setattr(torch.futures.Future, "wait", slow(torch.futures.Future.wait))
    return clock


def seconds(recorder: Recorder, stream: int) -> float:
    return sum(operation.seconds for operation in recorder.tape.operations(stream) if isinstance(operation, Computed))


@pytest.mark.parametrize("kind", [queue.SimpleQueue, queue.Queue])
def test_only_what_a_thread_computes_is_timed(passed: Passed, kind: type) -> None:
    recorder = Recorder("timed")
    waits = 0.0
    with noted_threads(recorder):
        # By its name in the module, as who is recorded does.
        items, answer, ended = getattr(queue, kind.__name__)(), torch.futures.Future(), threading.Event()

        def work() -> None:
            nonlocal waits
            passed.now_s += 1.0
            items.get()
            passed.now_s += 2.0
            answer.set_result(torch.zeros(1))
            ended.set()
            waits = passed.now_s - 3.0

        recorder.lap()
        thread = threading.Thread(target=work, name="exchange")
        thread.start()
        passed.now_s += 4.0
        items.put(1)
        answer.wait()
        passed.now_s += 8.0
        thread.join()
        ended.wait()
        recorder.lap()
    assert waits >= WAIT_S or kind is queue.Queue, "the item may be there before anybody waits for it"
    assert passed.now_s >= 12.0 + 2 * WAIT_S
    assert recorder.tape.names == ("compute", "thread exchange")
    assert seconds(recorder, COMPUTE) == 12.0
    assert seconds(recorder, 1) == 3.0


def test_threads_that_are_not_of_the_script_are_left_alone(passed: Passed) -> None:
    recorder = Recorder("timed")
    go_on, done = threading.Event(), threading.Event()

    def foreign() -> None:
        go_on.wait()
        done.set()
        go_on.wait()

    before = threading.Thread(target=foreign)
    before.start()
    with noted_threads(recorder):
        go_on.set()
        done.wait()
    before.join()
    assert recorder.tape.names == ("compute",)


def test_the_thread_that_runs_backward_for_another_is_not_timed_while_it_waits(
    passed: Passed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a GPU; it is not started by Python, so that nobody has noted it."""
    recorder = Recorder("timed")
    monkeypatch.setattr(recorders, "in_graph_task", lambda: True)

    def backward() -> None:
        recorder.lap()
        passed.now_s += 2.0
        with recorder.idle():
            passed.now_s += WAIT_S
        recorder.lap()

    engine = threading.Thread(target=backward)
    engine.start()
    engine.join()
    assert seconds(recorder, COMPUTE) == 2.0


class PretendGpu:
    """Streams with times of their own [s], and events that know when they happened."""

    def __init__(self) -> None:
        self.now_s: dict[int, float] = {}
        self.current = PretendStream(self, 0)


class PretendStream:
    def __init__(self, gpu: PretendGpu, handle: int) -> None:
        self.gpu, self.cuda_stream = gpu, handle
        gpu.now_s[handle] = 0.0

    def work(self, seconds_of_each: float) -> None:
        self.gpu.now_s[self.cuda_stream] += seconds_of_each


class PretendEvent:
    at_s = 0.0

    def __init__(self, enable_timing: bool = False) -> None:
        self.is_timed = enable_timing

    def record(self, stream: Any) -> None:
        self.at_s = stream.gpu.now_s[stream.cuda_stream]

    def wait(self, stream: Any) -> None:
        times = stream.gpu.now_s
        times[stream.cuda_stream] = max(times[stream.cuda_stream], self.at_s)

    def synchronize(self) -> None:
        """Do nothing."""

    def elapsed_time(self, other: "PretendEvent") -> float:
        assert self.is_timed
        assert other.is_timed
        return (other.at_s - self.at_s) * 1e3


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> PretendGpu:
    made = PretendGpu()
    default = made.current
    monkeypatch.setattr(torch.cuda, "Event", PretendEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: made.current)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda: default)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return made


def seconds_of_each(recorder: Recorder, stream: int) -> list[float]:
    return [
        round(operation.seconds, 6)
        for operation in recorder.tape.operations(stream)
        if isinstance(operation, Computed) and operation.seconds
    ]


def test_a_stream_that_waits_is_not_charged_for_it(gpu):
    recorder = Recorder("timed", "cuda")
    default, side = gpu.current, PretendStream(gpu, 7)
    with noted_cuda_streams(recorder):
        recorder.forget_time()
        default.work(1.0)
        ready = torch.cuda.Event()
        ready.record()
        gpu.current = side
        recorder.forget_time()
        ready.wait()
        side.work(5.0)
        done = torch.cuda.Event()
        done.record()
        gpu.current = default
        default.work(2.0)
        done.wait()
        default.work(0.25)
        recorder.lap()
        recorder.clock.settle()
    assert seconds_of_each(recorder, 0) == [1.0, 2.0, 0.25]
    assert seconds_of_each(recorder, 1) == [5.0]
    (work,) = [operation for operation in recorder.tape.operations(1) if operation.seconds]
    assert (0, 0) in work.after
    assert {stream for stream, _ in recorder.tape.operations(0)[-1].after} == {1}


def test_what_a_collective_copies_to_answer_is_no_work_of_the_step(gpu):
    recorder = Recorder("timed", "cuda")
    with noted_cuda_streams(recorder):
        recorder.forget_time()
        gpu.current.work(1.0)
        mark = recorder.collective("all_reduce", 0, "world", [torch.ones(2)], 8.0)
        gpu.current.work(100.0)  # as the answer does
        recorder.forget_time()
        recorder.wait(mark)
        gpu.current.work(3.0)
        recorder.lap()
        recorder.clock.settle()
    assert seconds_of_each(recorder, 0) == [1.0, 3.0]
    assert (1, 0) in recorder.tape.operations(0)[-1].after


def test_torchs_events_are_as_they_were_afterwards(gpu):
    record = torch.cuda.Event.record
    recorder = Recorder("timed", "cuda")
    with noted_cuda_streams(recorder):
        assert torch.cuda.Event.record is not record
    assert torch.cuda.Event.record is record
    assert recorder.current_side_stream() is None

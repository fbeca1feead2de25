"""On a pretended GPU: events order streams on the tape as on the device, and time each stream's own work alone."""

from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.recording.noted_waits import noted_cuda_streams
from binsgdm.recording.recorder import Recorder
from binsgdm.recording.tape import Computed


class PretendGpu:
    """Streams with times of their own [s], and events that know when they happened."""

    def __init__(self) -> None:
        self.now_s: dict[int, float] = {}
        self.current = PretendStream(self, 0)


class PretendStream:
    def __init__(self, gpu: PretendGpu, handle: int) -> None:
        self.gpu, self.cuda_stream = gpu, handle
        gpu.now_s[handle] = 0.0

    def work(self, seconds: float) -> None:
        self.gpu.now_s[self.cuda_stream] += seconds


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


def seconds(recorder: Recorder, stream: int) -> list[float]:
    return [
        round(one.seconds, 6) for one in recorder.tape.operations(stream) if isinstance(one, Computed) and one.seconds
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
    assert seconds(recorder, 0) == [1.0, 2.0, 0.25]
    assert seconds(recorder, 1) == [5.0]
    (work,) = [one for one in recorder.tape.operations(1) if one.seconds]
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
    assert seconds(recorder, 0) == [1.0, 3.0]
    assert (1, 0) in recorder.tape.operations(0)[-1].after


def test_torchs_events_are_as_they_were_afterwards(gpu):
    record = torch.cuda.Event.record
    recorder = Recorder("timed", "cuda")
    with noted_cuda_streams(recorder):
        assert torch.cuda.Event.record is not record
    assert torch.cuda.Event.record is record
    assert recorder.current_side_stream() is None

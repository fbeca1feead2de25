"""What threads compute, and who waits for whom beside collectives: streams and events, threads and futures.

No wait is work of the step.
"""

import queue
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from binsgdm.recording.operator_work import work_of
from binsgdm.recording.recorder import Recorder
from binsgdm.recording.single_process_world import FUNCTIONAL, FunctionalCollectives
from binsgdm.recording.tape import COMPUTE, NOTHING, Mark


class OperatorCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what runs below it."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self._without_memory = FunctionalCollectives()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count it; one of a DTensor comes again as what it does on this rank."""
        if any(_is_made_of_others(kind) for kind in types):
            return NotImplemented
        if func.namespace in FUNCTIONAL and any(issubclass(kind, FakeTensor) for kind in types):
            return self._without_memory.answer(func, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        self._recorder.count(*work_of(func, args, kwargs or {}, result))
        return result


def _is_made_of_others(kind: type) -> bool:
    """Tell whether tensors of a class run operators on tensors that they hold."""
    return kind not in (torch.Tensor, torch.nn.Parameter, FakeTensor) and hasattr(kind, "__torch_dispatch__")


@dataclass
class SideEvent:
    """What a stream has been given when the event is recorded."""

    recorder: Recorder
    recorded: Mark = NOTHING

    def record(self, stream: "SideStream | None" = None) -> "SideEvent":
        """Take what a stream, or that of this thread, has been given so far."""
        self.recorded = self.recorder.mark() if stream is None else stream.mark()
        return self

    def wait(self, stream: "SideStream | None" = None) -> None:
        """Let a stream, or that of this thread, wait."""
        self.recorder.wait(self.recorded, None if stream is None else stream.number)

    synchronize = wait

    def query(self) -> bool:
        """Return True: work is done when it is enqueued."""
        return True


@dataclass(frozen=True)
class SideStream:
    """A stream by its number on the tape."""

    recorder: Recorder
    number: int

    def mark(self) -> Mark:
        """Return what it has been given so far."""
        self.recorder.lap()
        return self.recorder.tape.mark(self.number)

    def record_event(self, event: SideEvent | None = None) -> SideEvent:
        """Return an event of what it has been given so far."""
        return (event or SideEvent(self.recorder)).record(self)

    def wait_event(self, event: SideEvent) -> None:
        """Wait for an event."""
        event.wait(self)

    def wait_stream(self, stream: "SideStream") -> None:
        """Wait for what another stream has been given so far."""
        self.recorder.wait(stream.mark(), self.number)

    def synchronize(self) -> None:
        """Let the stream of this thread wait for it."""
        self.recorder.wait(self.mark())


@contextmanager
def in_place_of_stand_ins(recorder: Recorder) -> Iterator[None]:
    """Let `torch.cpu` have streams that are recorded."""

    @contextmanager
    def stream(chosen: SideStream | None) -> Iterator[None]:
        with recorder.on_stream(recorder.stream if chosen is None else chosen.number):
            yield

    with patch.multiple(
        torch.cpu,
        Stream=lambda *_, **__: SideStream(recorder, recorder.tape.add_stream("side stream")),
        Event=lambda *_, **__: SideEvent(recorder),
        current_stream=lambda _device=None: SideStream(recorder, recorder.stream),
        stream=stream,
    ):
        yield


@contextmanager
def noted_cuda_streams(recorder: Recorder) -> Iterator[None]:
    """Note what events are recorded and waited for; torch's streams go through events for all that they wait for."""
    numbers = {torch.cuda.default_stream().cuda_stream: COMPUTE}  # of the streams of the tape, by handles of the GPU's

    def number_of(stream: Any) -> int:
        if stream.cuda_stream not in numbers:
            numbers[stream.cuda_stream] = recorder.tape.add_stream("side stream")
        return numbers[stream.cuda_stream]

    event_class = torch.cuda.Event
    record, wait, synchronize = event_class.record, event_class.wait, event_class.synchronize

    def noted_record(self: Any, stream: Any = None) -> None:
        # As torch takes it where none is given.
        on = torch.cuda.current_stream() if stream is None else stream
        recorder.clock.lap(number_of(on), recorder.part, on)
        self.recorded_mark = recorder.tape.mark(number_of(on))
        record(self, on)

    def noted_wait(self: Any, stream: Any = None) -> None:
        on = torch.cuda.current_stream() if stream is None else stream
        recorder.clock.lap(number_of(on), recorder.part, on)
        wait(self, on)
        recorder.clock.skip(on)  # the time of the wait is none of the stream's work
        recorder.tape.wait(number_of(on), getattr(self, "recorded_mark", NOTHING))

    def noted_synchronize(self: Any) -> None:
        recorder.wait(getattr(self, "recorded_mark", NOTHING))
        synchronize(self)

    recorder.current_side_stream = lambda: number_of(torch.cuda.current_stream()) or None  # None for COMPUTE, 0
    with patch.multiple(event_class, record=noted_record, wait=noted_wait, synchronize=noted_synchronize):
        yield
    recorder.current_side_stream = lambda: None


def counting(recorder: Recorder) -> AbstractContextManager[object]:
    """Count what this thread computes, if work is counted: modes of torch hold for one thread."""
    return OperatorCounter(recorder) if recorder.compute_form == "counted" else nullcontext()


@contextmanager
def noted_threads(recorder: Recorder) -> Iterator[None]:
    """Let threads that start inside be noted; that one waits for what another puts into a queue is no dependency."""
    thread = threading.Thread
    start, run, join = thread.start, thread.run, thread.join
    begun: dict[int, Mark] = {}
    ended: dict[int, Mark] = {}

    def noted_start(self: threading.Thread) -> None:
        begun[id(self)] = recorder.mark()
        start(self)

    def noted_run(self: threading.Thread) -> None:
        recorder.note_thread()
        # A thread follows what its maker had done when it started it.
        recorder.wait(begun.pop(id(self), NOTHING))
        with counting(recorder):
            run(self)
        ended[id(self)] = recorder.mark()

    def noted_join(self: threading.Thread, timeout: float | None = None) -> None:
        with recorder.idle():
            join(self, timeout)
        recorder.wait(ended.get(id(self), NOTHING))

    # The time that threads wait for events, conditions and queues is no work of theirs.
    wait = threading.Condition.wait  # of events, semaphores and `queue.Queue`, too

    def untimed_wait(self: threading.Condition, timeout: float | None = None) -> bool:
        with recorder.idle():
            return wait(self, timeout)

    # A class of C, whose methods cannot be patched: it is replaced as a whole.
    class UntimedQueue(queue.SimpleQueue[Any]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            with recorder.idle():
                return super().get(block, timeout)

    with (
        patch.multiple(thread, start=noted_start, run=noted_run, join=noted_join),
        patch.multiple(threading.Condition, wait=untimed_wait),
        patch.multiple(queue, SimpleQueue=UntimedQueue),
        _noted_futures(recorder),
    ):
        yield


@contextmanager
def _noted_futures(recorder: Recorder) -> Iterator[None]:
    """Let who waits for a future wait for what its setter had done."""
    future = torch.futures.Future
    set_result, wait = future.set_result, future.wait

    def noted_set_result(self: Any, result: object) -> None:
        if not isinstance(getattr(self, "mark", None), frozenset):  # a recorded one has its own
            self.mark = recorder.mark()
        set_result(self, result)

    def noted_wait(self: Any) -> Any:
        with recorder.idle():
            value = wait(self)
        recorder.wait(getattr(self, "mark", NOTHING))
        return value

    with patch.multiple(future, set_result=noted_set_result, wait=noted_wait):
        yield

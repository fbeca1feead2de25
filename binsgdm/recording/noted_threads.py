"""What threads wait for: what their starter has done, futures, and each other's end. No wait is work of the step."""

import queue
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from binsgdm.recording.operator_counter import OperatorCounter
from binsgdm.recording.patching import replaced
from binsgdm.recording.rank_streams import NOTHING, Mark
from binsgdm.recording.recorder import Recorder

Future = torch.futures.Future


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
        recorder.wait(begun.pop(id(self), NOTHING))
        with counting(recorder):
            run(self)
        ended[id(self)] = recorder.mark()

    def noted_join(self: threading.Thread, timeout: float | None = None) -> None:
        with recorder.idle():
            join(self, timeout)
        recorder.wait(ended.get(id(self), NOTHING))

    noted = replaced(thread, start=noted_start, run=noted_run, join=noted_join)
    with noted, _noted_futures(recorder), _untimed_waits(recorder):
        yield


@contextmanager
def _untimed_waits(recorder: Recorder) -> Iterator[None]:
    """Let the time that threads wait for events, conditions and queues be no work of theirs."""
    wait = threading.Condition.wait  # of events, semaphores and `queue.Queue`, too

    def untimed_wait(self: threading.Condition, timeout: float | None = None) -> bool:
        with recorder.idle():
            return wait(self, timeout)

    class UntimedQueue(queue.SimpleQueue[Any]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            with recorder.idle():
                return super().get(block, timeout)

    with replaced(threading.Condition, wait=untimed_wait), replaced(queue, SimpleQueue=UntimedQueue):
        yield


@contextmanager
def _noted_futures(recorder: Recorder) -> Iterator[None]:
    """Let who waits for a future wait for what its setter had done."""
    set_result, wait = Future.set_result, Future.wait

    def noted_set_result(self: Any, result: object) -> None:
        if not isinstance(getattr(self, "mark", None), frozenset):
            self.mark = recorder.mark()
        set_result(self, result)

    def noted_wait(self: Any) -> Any:
        with recorder.idle():
            found = wait(self)
        recorder.wait(getattr(self, "mark", NOTHING))
        return found

    with replaced(Future, set_result=noted_set_result, wait=noted_wait):
        yield

"""Note which streams of a GPU wait for which: torch's own events, looked over their shoulders."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from binsgdm.recording.patching import replaced
from binsgdm.recording.rank_streams import COMPUTE, NOTHING
from binsgdm.recording.recorder import Recorder


class CudaStreamNumbers:
    """The streams of the tape that stand for those of a GPU.

    Args:
        recorder: has the tape.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._tape = recorder.tape
        self._numbers = {torch.cuda.default_stream().cuda_stream: COMPUTE}

    def of(self, stream: Any) -> int:
        """Return the number of a stream."""
        handle = stream.cuda_stream
        if handle not in self._numbers:
            self._numbers[handle] = self._tape.add_stream("side stream")
        return self._numbers[handle]

    def current(self) -> int | None:
        """Return the number of the stream that this thread enqueues to; None for the default one."""
        number = self.of(torch.cuda.current_stream())
        return None if number == COMPUTE else number


@contextmanager
def noted_cuda_streams(recorder: Recorder) -> Iterator[None]:
    """Note what events are recorded and waited for; torch's streams go through events for all that they wait for."""
    numbers = CudaStreamNumbers(recorder)
    event_class = torch.cuda.Event
    record, wait, synchronize = event_class.record, event_class.wait, event_class.synchronize

    def noted_record(self: Any, stream: Any = None) -> None:
        on = torch.cuda.current_stream() if stream is None else stream
        recorder.clock.lap(numbers.of(on), recorder.part, on)
        self.recorded_mark = recorder.tape.mark(numbers.of(on))
        record(self, on)

    def noted_wait(self: Any, stream: Any = None) -> None:
        on = torch.cuda.current_stream() if stream is None else stream
        recorder.clock.lap(numbers.of(on), recorder.part, on)
        wait(self, on)
        recorder.clock.skip(on)  # the time of the wait is none of the stream's work
        recorder.tape.wait(numbers.of(on), getattr(self, "recorded_mark", NOTHING))

    def noted_synchronize(self: Any) -> None:
        recorder.wait(getattr(self, "recorded_mark", NOTHING))
        synchronize(self)

    recorder.current_side_stream = numbers.current
    with replaced(event_class, record=noted_record, wait=noted_wait, synchronize=noted_synchronize):
        yield
    recorder.current_side_stream = lambda: None

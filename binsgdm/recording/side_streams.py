"""Streams and events of a CPU that order work as a GPU's do, in the place of torch's stand-ins, which do nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from binsgdm.recording.patching import replaced
from binsgdm.recording.rank_streams import NOTHING, Mark
from binsgdm.recording.recorder import Recorder


class SideEvent:
    """What a stream has been given when the event is recorded."""

    def __init__(self, recorder: Recorder, *_: Any, **__: Any) -> None:
        self._recorder, self._mark = recorder, NOTHING

    def record(self, stream: "SideStream | None" = None) -> "SideEvent":
        """Take what a stream, or that of this thread, has been given so far."""
        self._mark = self._recorder.mark() if stream is None else stream.mark()
        return self

    def wait(self, stream: "SideStream | None" = None) -> None:
        """Let a stream, or that of this thread, wait."""
        self._recorder.wait(self._mark, None if stream is None else stream.number)

    def query(self) -> bool:
        """Return True: work is done when it is enqueued."""
        return True

    def synchronize(self) -> None:
        """Let the stream of this thread wait."""
        self.wait()


class SideStream:
    """A stream by its number on the tape."""

    def __init__(self, recorder: Recorder, *_: Any, number: int | None = None, **__: Any) -> None:
        self._recorder = recorder
        self.number = recorder.tape.add_stream("side stream") if number is None else number

    def mark(self) -> Mark:
        """Return what it has been given so far."""
        self._recorder.lap()
        return self._recorder.tape.mark(self.number)

    def record_event(self, event: SideEvent | None = None) -> SideEvent:
        """Return an event of what it has been given so far."""
        return (event or SideEvent(self._recorder)).record(self)

    def wait_event(self, event: SideEvent) -> None:
        """Wait for an event."""
        event.wait(self)

    def wait_stream(self, stream: "SideStream") -> None:
        """Wait for what another stream has been given so far."""
        self._recorder.wait(stream.mark(), self.number)

    def synchronize(self) -> None:
        """Let the stream of this thread wait for it."""
        self._recorder.wait(self.mark())

    def __eq__(self, other: object) -> bool:
        """Tell whether it is the same stream."""
        return isinstance(other, SideStream) and other.number == self.number

    def __hash__(self) -> int:
        """Hash its number."""
        return hash(self.number)


@contextmanager
def in_place_of_stand_ins(recorder: Recorder) -> Iterator[None]:
    """Let `torch.cpu` have streams that are recorded."""

    def current_stream(_device: Any = None) -> SideStream:
        return SideStream(recorder, number=recorder.stream)

    @contextmanager
    def stream(chosen: SideStream | None) -> Iterator[None]:
        with recorder.on_stream(recorder.stream if chosen is None else chosen.number):
            yield

    make_stream, make_event = partial(SideStream, recorder), partial(SideEvent, recorder)
    with replaced(torch.cpu, Stream=make_stream, Event=make_event, current_stream=current_stream, stream=stream):
        yield

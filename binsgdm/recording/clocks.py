"""Clocks that time the work of a step, or none where it is counted."""

import threading
import time
from typing import Any, Protocol

import torch

from binsgdm.recording.rank_streams import Part, Position, Tape


class Clock(Protocol):
    """Adds to a stream of the tape the time since it was asked last."""

    def lap(self, stream: int, part: Part, on: Any = None) -> None:
        """Add the time of a thread's work to a stream of the tape; `on` is its stream on the device."""

    def skip(self, on: Any = None) -> None:
        """Start anew: what was done since the last lap is no work of the step."""

    def settle(self) -> None:
        """Wait until all times are known."""


class NoClock:
    """The clock of a recording that counts."""

    def lap(self, stream: int, part: Part, on: Any = None) -> None:
        """Do nothing."""

    def skip(self, on: Any = None) -> None:
        """Do nothing."""

    def settle(self) -> None:
        """Do nothing."""


class HostClock:
    """Times each thread of a CPU.

    Args:
        tape: takes the times.
    """

    def __init__(self, tape: Tape) -> None:
        self._tape, self._of_thread = tape, threading.local()

    def lap(self, stream: int, part: Part, on: Any = None) -> None:  # noqa: ARG002 - a CPU has no streams
        """Add the time since the last lap of this thread."""
        now_s, since_s = time.perf_counter(), getattr(self._of_thread, "since_s", None)
        if since_s is not None:
            self._tape.compute(stream, part, seconds=now_s - since_s)
        self.skip()

    def skip(self, on: Any = None) -> None:  # noqa: ARG002
        """Start anew."""
        self._of_thread.since_s = time.perf_counter()

    def settle(self) -> None:
        """Do nothing: times are known."""


class CudaClock:
    """Times each stream of a GPU by events, which are read when all is done.

    Args:
        tape: takes the times.
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._last: dict[int, Any] = {}
        self._laps: list[tuple[Position, Any, Any]] = []
        self._record = torch.cuda.Event.record  # the one of torch, whatever is put in its place

    def lap(self, stream: int, part: Part, on: Any = None) -> None:
        """Add what the stream has done since its last event, once that is known."""
        on = torch.cuda.current_stream() if on is None else on
        before, now = self._last.get(on.cuda_stream), self._event(on)
        if before is not None:
            self._laps.append((self._tape.open(stream, part), before, now))

    def skip(self, on: Any = None) -> None:
        """Start anew."""
        self._event(torch.cuda.current_stream() if on is None else on)

    def settle(self) -> None:
        """Read all events."""
        torch.cuda.synchronize()
        for position, before, now in self._laps:
            self._tape.add_seconds(position, before.elapsed_time(now) / 1e3)
        self._laps.clear()

    def _event(self, on: Any) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._record(event, on)
        self._last[on.cuda_stream] = event
        return event

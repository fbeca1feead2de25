"""Where a script is: in which part of which step, on which stream of which thread; what it does goes to the tape."""

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch

from binsgdm.recording.tape import COMPUTE, NOTHING, Collective, Computed, Mark, Part, Tape

ComputeForm = Literal["counted", "timed"]
Device = Literal["cpu", "cuda"]
Place = tuple[int, int, int]
"""A stream, how many operations it has, and how many collectives its thread has started."""
FLOPS_PER_BYTE = 150.0
"""What a GPU computes while it moves a byte, about: as in `simnet.strategies.step_file`."""


class Clock:
    """Adds to a stream of the tape the time since it was asked last; this one, of a recording that counts, none."""

    def lap(self, stream: int, part: Part, on: Any = None) -> None:
        """Add the time of a thread's work to a stream of the tape; `on` is its stream on the device."""

    def skip(self, on: Any = None) -> None:
        """Start anew: what was done since the last lap is no work of the step."""

    def settle(self) -> None:
        """Wait until all times are known."""


class HostClock(Clock):
    """Times each thread of a CPU."""

    def __init__(self, tape: Tape) -> None:
        self._tape, self._of_thread = tape, threading.local()

    def lap(self, stream: int, part: Part, on: Any = None) -> None:  # noqa: ARG002 - a CPU has no streams
        """Add it at once."""
        now_s, since_s = time.perf_counter(), getattr(self._of_thread, "since_s", None)
        if since_s is not None:
            self._tape.compute(stream, part, seconds=now_s - since_s)
        self.skip()

    def skip(self, on: Any = None) -> None:  # noqa: ARG002
        """Start anew."""
        self._of_thread.since_s = time.perf_counter()


class CudaClock(Clock):
    """Times each stream of a GPU by events, which are read when all is done."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._last: dict[int, Any] = {}
        self._laps: list[tuple[Computed, Any, Any]] = []
        self._record = torch.cuda.Event.record  # the one of torch, whatever is put in its place

    def lap(self, stream: int, part: Part, on: Any = None) -> None:
        """Add it once it is known."""
        on = torch.cuda.current_stream() if on is None else on
        before, now = self._last.get(on.cuda_stream), self._event(on)
        if before is not None:
            self._laps.append((self._tape.work(stream, part), before, now))

    def skip(self, on: Any = None) -> None:
        """Start anew."""
        self._event(torch.cuda.current_stream() if on is None else on)

    def settle(self) -> None:
        """Read all events."""
        torch.cuda.synchronize()
        for work, before, now in self._laps:
            work.seconds += before.elapsed_time(now) / 1e3
        self._laps.clear()

    def _event(self, on: Any) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._record(event, on)
        self._last[on.cuda_stream] = event
        return event


class _OfThread(threading.local):
    stream: int | None = None  # chosen by `on_stream`
    part: Part | None = None  # likewise
    is_unnoticed: bool = False  # inside the answer of a group
    bucket: int | None = None  # of DDP, while its hook runs
    num_sent: int = 0  # collectives: what a thread computes after the first one is decoding
    is_noted: bool = False  # its start was seen, so that its waits are known


class Recorder:
    """The state of a recording, which counts work by `OperatorCounter`, or times it on this machine's device.

    Attributes:
        on_backward: called when a backward pass begins.
        current_side_stream: gives the number of the stream of a GPU that this thread enqueues to, if it is not the
            default one.
    """

    def __init__(self, compute: ComputeForm = "counted", device: Device = "cpu") -> None:
        self.tape = Tape()
        self.compute_form = compute
        timed = CudaClock if device == "cuda" else HostClock
        self.clock = timed(self.tape) if compute == "timed" else Clock()
        self.current_side_stream: Callable[[], int | None] = lambda: None
        self.cuts: list[tuple[int, ...]] = []  # lengths of all streams at the end of every step
        self.backwards: list[int] = []  # backward passes of every step
        self.backward_work = 0.0  # counted so far, in bytes of memory traffic
        self.on_backward: Callable[[], object] = lambda: None
        self._main = threading.get_ident()
        self._of_thread = _OfThread()
        self._lock = threading.Lock()
        self._names: dict[str, int] = {}  # streams of other threads
        self.num_backwards = self.num_optimizer_steps = 0  # whether a step came of them or not
        self._in_optimizer = 0  # depth: an optimizer may step another
        self._in_backward = 0  # likewise
        self._after_backward: Mark = NOTHING  # what DDP waits for at the end of this backward
        self._is_queued = False  # that wait, with autograd
        self._futures: list[torch.futures.Future[object]] = []  # of hooks, whose values are not there yet
        self.note_thread()

    # Streams

    @property
    def stream(self) -> int:
        """Stream that this thread enqueues to."""
        chosen = self._of_thread.stream
        if chosen is not None or (chosen := self.current_side_stream()) is not None:
            return chosen
        ident = threading.get_ident()
        # The autograd engine runs backward of a GPU in a thread of its own: it goes on for the thread that called it.
        if ident == self._main or in_graph_task():
            return COMPUTE
        # Threads that do the same one after the other, such as one a bucket, share a stream.
        name = re.sub(r"\d+", "N", threading.current_thread().name)
        with self._lock:
            if name not in self._names:
                self._names[name] = self.tape.add_stream(f"thread {name}")
            return self._names[name]

    @contextmanager
    def on_stream(self, stream: int, part: Part | None = None) -> Iterator[None]:
        """Let this thread enqueue to a stream, what it computes being of a part."""
        self.lap()
        before = self._of_thread.stream, self._of_thread.part
        self._of_thread.stream = stream
        self._of_thread.part = part if part is not None else before[1]
        try:
            yield
        finally:
            self.lap()
            self._of_thread.stream, self._of_thread.part = before

    def mark(self) -> Mark:
        """Return what has ended when the stream of this thread has come so far."""
        self.lap()
        return self.tape.mark(self.stream)

    def place(self) -> Place:
        """Return where this thread is: the same as before if it has computed and sent nothing since."""
        stream = self.stream
        return stream, len(self.tape.operations(stream)), self._of_thread.num_sent

    def wait(self, mark: Mark, stream: int | None = None) -> None:
        """Let the stream of this thread, or another, wait for a mark."""
        self.lap()
        self.tape.wait(self.stream if stream is None else stream, mark)

    # Work

    @property
    def part(self) -> Part:
        """Part that this thread computes for."""
        if self._of_thread.part is not None:
            return self._of_thread.part
        is_main = threading.get_ident() == self._main
        if not is_main and not in_graph_task():  # whatever the main thread is in meanwhile
            return "decode" if self._of_thread.num_sent else "encode"
        if self._in_optimizer:
            return "optimizer"
        return "backward" if in_graph_task() or self._in_backward else "forward"

    def count(self, flops: float, num_bytes: float) -> None:
        """Add counted work."""
        if self.compute_form == "counted" and not self._of_thread.is_unnoticed:
            part = self.part
            if part == "backward":
                # One number of both, by which gradients share backward out among themselves.
                self.backward_work += flops / FLOPS_PER_BYTE + num_bytes
            self.tape.compute(self.stream, part, flops=flops, num_bytes=num_bytes)

    @contextmanager
    def unnoticed(self) -> Iterator[None]:
        """Count nothing of what this thread does."""
        before, self._of_thread.is_unnoticed = self._of_thread.is_unnoticed, True
        try:
            yield
        finally:
            self._of_thread.is_unnoticed = before

    def lap(self) -> None:
        """Add the time since the last call on this thread, if work is timed."""
        self.clock.lap(self.stream, self.part)

    def note_thread(self) -> None:
        """Let this thread be one of those whose waits are known."""
        self._of_thread.is_noted = True

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Take the time inside for no work of the step: this thread waits for another."""
        # The engine runs backward of a GPU in a thread of its own, which goes on for the one that called it.
        if not (self._of_thread.is_noted or in_graph_task()):
            yield
            return
        self.lap()
        try:
            yield
        finally:
            self.forget_time()

    def forget_time(self) -> None:
        """Start the clock of this thread anew: what it did since the last call was no work of the step."""
        self.clock.skip()

    def collective(
        self, kind: str, group: int, group_name: str, tensors: Sequence[torch.Tensor], num_bytes: float
    ) -> Mark:
        """Add a collective that this thread starts, and return the mark at which it has ended."""
        self.lap()
        dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else "uint8"
        collective = Collective(
            kind=kind, group=group, message_bytes=num_bytes, dtype=dtype, bucket=self._of_thread.bucket
        )
        self._of_thread.num_sent += 1
        if self._of_thread.part == "encode":
            self._of_thread.part = "decode"  # until the hook sends once more, which makes no difference in time
        return self.tape.collective(self.stream, collective, group_name)

    # Parts of a step

    def enter_optimizer(self) -> None:
        """Begin an optimizer's step."""
        self.lap()
        self._in_optimizer += 1

    def leave_optimizer(self) -> None:
        """End an optimizer's step."""
        self.lap()
        self._in_optimizer -= 1
        self.num_optimizer_steps += 1

    @contextmanager
    def of_bucket(self, number: int) -> Iterator[None]:
        """Note that collectives are of a bucket of DDP."""
        self._of_thread.bucket = number
        try:
            yield
        finally:
            self._of_thread.bucket = None

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Be in a backward pass, at whose end the stream waits for what DDP has started in it."""
        self.lap()
        self.on_backward()
        self._in_backward += 1
        try:
            yield
        finally:
            self.lap()
            self._in_backward -= 1
            self.num_backwards += 1
            self._wait_as_ddp()

    def wait_after_backward(self, mark: Mark) -> None:
        """Let the stream wait for a mark at the end of this backward, as DDP's reducer does."""
        if self._in_backward:
            self._after_backward |= mark
            self._wait_before_finalizing()

    def wait_after_backward_for(self, future: "torch.futures.Future[object]") -> None:
        """Let the stream wait for what a hook has returned, when its value is there."""
        if isinstance(getattr(future, "mark", None), frozenset):
            self.wait_after_backward(future.mark)  # type: ignore[attr-defined]
            return

        def note(_: object) -> None:
            self._after_backward |= getattr(future, "mark", NOTHING)

        future.add_done_callback(note)
        self._futures.append(future)
        self._wait_before_finalizing()

    def _wait_before_finalizing(self) -> None:
        """Wait where DDP does, before it copies buckets back.

        DDP queues its own callback when all buckets have been started: a callback that is queued earlier runs before
        that.
        """
        if not self._is_queued and in_graph_task():
            self._is_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._wait_as_ddp)

    def _wait_as_ddp(self) -> None:
        self.lap()
        for future in self._futures:
            if not future.done():
                future.wait()
        self._futures.clear()
        self.tape.wait(self.stream, self._after_backward)
        self._after_backward, self._is_queued = NOTHING, False

    @property
    def step_has_ended(self) -> bool:
        """Tell whether an optimizer's step follows a backward pass."""
        return not self._in_optimizer and self.num_backwards > sum(self.backwards)

    def end_step(self) -> None:
        """End a step."""
        self.lap()
        # A wait that no work follows would be one of the next step.
        self.tape.end(COMPUTE, "optimizer")
        self.cuts.append(self.tape.cut())
        self.backwards.append(self.num_backwards - sum(self.backwards))


def in_graph_task() -> bool:
    """Tell whether this thread runs backward."""
    return torch._C._current_graph_task_id() >= 0

"""Handles of recorded collectives: they are over at once, and note who waits for them."""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from binsgdm.recording.rank_streams import Mark
from binsgdm.recording.recorder import Recorder


class RecordedFuture(torch.futures.Future):  # type: ignore[type-arg]
    """A future that has its value; whose stream waits for it waits for a mark.

    Args:
        recorder: takes notes.
        mark: at which the value is there.
        callbacks: stream on which callbacks run, as those of NCCL's futures run on a stream of their own.
    """

    def __new__(cls, *_: Any, **__: Any) -> "RecordedFuture":
        """Make a future of no device."""
        made: RecordedFuture = super().__new__(cls)
        return made

    def __init__(self, recorder: Recorder, mark: Mark, callbacks: int) -> None:
        super().__init__()
        self._recorder, self.mark, self._callbacks = recorder, mark, callbacks

    def wait(self) -> Any:
        """Return the value; the stream of this thread waits for it."""
        self._recorder.wait(self.mark)
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> "RecordedFuture":
        """Run a callback on the stream of callbacks, and return the future of what it returns."""
        recorder = self._recorder
        with recorder.on_stream(self._callbacks, "decode"):
            recorder.wait(self.mark)
            chained = RecordedFuture(recorder, self.mark, self._callbacks)
            try:
                found = callback(self)
            except Exception as error:
                chained.set_exception(error)
            else:
                chained.mark = recorder.mark()
                chained.set_result(found)
        recorder.wait_after_backward(chained.mark)
        return chained


class RecordedWork(dist.Work):
    """The handle of a collective.

    Args:
        recorder: takes notes.
        mark: at which it has ended; None for half of a hop, until the other half is there.
        callbacks: stream on which callbacks run.
        result: tensors that it gives.
    """

    def __init__(self, recorder: Recorder, mark: Mark | None, callbacks: int, result: list[torch.Tensor]) -> None:
        super().__init__()
        self._recorder, self.mark, self._callbacks, self._result = recorder, mark, callbacks, result
        self.refuse: Callable[[], NoReturn] | None = None

    def wait(self, timeout: object = None) -> bool:  # noqa: ARG002
        """Let the stream of this thread wait for it."""
        self._recorder.wait(self._known_mark())
        return True

    def synchronize(self) -> None:
        """Let the stream of this thread wait for it."""
        self.wait()

    def block_current_stream(self) -> None:
        """Let the stream of this thread wait for it."""
        self.wait()

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def is_success(self) -> bool:
        """Return True."""
        return True

    def result(self) -> list[torch.Tensor]:
        """Return its tensors."""
        return self._result

    def get_future(self) -> RecordedFuture:
        """Return its future, for which DDP waits at the end of backward."""
        found = RecordedFuture(self._recorder, self._known_mark(), self._callbacks)
        found.set_result(self._result)
        self._recorder.wait_after_backward(found.mark)
        return found

    def _known_mark(self) -> Mark:
        if self.mark is None and self.refuse is not None:
            self.refuse()
        assert self.mark is not None
        return self.mark

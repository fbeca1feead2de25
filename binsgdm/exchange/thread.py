"""The one thread of a process that exchanges beside backward.

Collectives are called from it alone, on process groups of its own, in the order in which they are handed over, which is
the same on all ranks whatever order gradients come in. Exchanges of two phases whose second phase is called from a
completion callback deadlock on gloo; this does not.
"""

import queue
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any, Generic, TypeVar

import torch

Job = TypeVar("Job")


class CommunicationThread(Generic[Job]):
    """Does jobs one after the other, until it is told that there are no more, or one fails.

    It computes on as many cores as the thread that starts it. On a GPU it works on a stream of its own; a job begins
    when what was enqueued before it was handed over is done.

    Args:
        name: of the thread.
        device: of what is exchanged.
        do: does a job.
        give_up: told of the job that failed and of each after it, with what failed; the others wait for this rank
            until it has told them.
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        do: Callable[[Job], object],
        give_up: Callable[[Job, BaseException], object] = lambda _job, _error: None,
    ) -> None:
        self._device = device
        self._do, self._give_up = do, give_up
        self._jobs: queue.SimpleQueue[tuple[Job, Any] | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._num_cores = torch.get_num_threads()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def hand_over(self, job: Job) -> None:
        """Let a job be done when those before it are."""
        is_ready = torch.cuda.current_stream(self._device).record_event() if self._device.type == "cuda" else None
        self._jobs.put((job, is_ready))

    def finish(self) -> None:
        """Wait until all jobs are done; the thread ends.

        Raises:
            BaseException: what a job raised.
        """
        self._jobs.put(None)
        self._thread.join()
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).wait_stream(_own_stream(self._device))
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        torch.set_num_threads(self._num_cores)  # a new thread knows nothing of it, and would take all cores
        stream = torch.cuda.stream(_own_stream(self._device)) if self._device.type == "cuda" else nullcontext()
        with torch.no_grad(), stream:
            while (handed := self._jobs.get()) is not None:
                job, is_ready = handed
                if is_ready is not None:
                    torch.cuda.current_stream(self._device).wait_event(is_ready)
                self._one(job)

    def _one(self, job: Job) -> None:
        try:
            if self._failure is None:
                self._do(job)
                return
        except BaseException as error:  # raised in finish(), where it is waited for
            self._failure = error
        self._give_up(job, self._failure)


@cache
def _own_stream(device: torch.device) -> Any:
    """Return the stream of a device on which exchanges run, the same in every step."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

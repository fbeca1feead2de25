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

Item = TypeVar("Item")


class CommunicationThread(Generic[Item]):
    """Does jobs one after the other, until it is told that there are no more, or one fails.

    It computes on as many cores as the thread that starts it. On a GPU it works on a stream of its own; a job begins
    when what was enqueued before it was handed over is done.

    Args:
        name: of the thread.
        device: of what is exchanged.
        run: does a job.
        on_failure: told of the job that failed and of each after it, with what failed; the others wait for this rank
            until it has told them.
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        run: Callable[[Item], object],
        on_failure: Callable[[Item, BaseException], object] = lambda _job, _error: None,
    ) -> None:
        self._device = device
        self._run, self._on_failure = run, on_failure
        self._items: queue.SimpleQueue[tuple[Item, Any] | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._num_cores = torch.get_num_threads()
        self._thread = threading.Thread(target=self._run_items, name=name, daemon=True)
        self._thread.start()

    def submit(self, item: Item) -> None:
        """Let a job be done when those before it are."""
        ready_event = torch.cuda.current_stream(self._device).record_event() if self._device.type == "cuda" else None
        self._items.put((item, ready_event))

    def finish(self) -> None:
        """Wait until all jobs are done; the thread ends.

        Raises:
            BaseException: what a job raised.
        """
        self._items.put(None)
        self._thread.join()
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).wait_stream(_own_stream(self._device))
        if self._failure is not None:
            raise self._failure

    def _run_items(self) -> None:
        torch.set_num_threads(self._num_cores)  # a new thread knows nothing of it, and would take all cores
        stream = torch.cuda.stream(_own_stream(self._device)) if self._device.type == "cuda" else nullcontext()
        with torch.no_grad(), stream:
            while (entry := self._items.get()) is not None:
                item, ready_event = entry
                if ready_event is not None:
                    torch.cuda.current_stream(self._device).wait_event(ready_event)
                self._run_item(item)

    def _run_item(self, item: Item) -> None:
        try:
            if self._failure is None:
                self._run(item)
                return
        except BaseException as error:  # raised in finish(), where it is waited for
            self._failure = error
        self._on_failure(item, self._failure)


@cache
def _own_stream(device: torch.device) -> Any:
    """Return the stream of a device on which exchanges run, the same in every step."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

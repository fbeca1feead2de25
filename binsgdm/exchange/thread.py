"""The communication thread, which exchanges buckets while backward computes.

Only this thread calls collectives of its process groups, in the order of submission. That order is the same on all
ranks, whatever order gradients become ready in: collectives that ranks call in different orders deadlock. A thread, and
no completion callback: an exchange has several collectives, and gloo deadlocks if a callback calls the next one.
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
    """Runs submitted items one after the other, until `finish` or until one fails.

    It computes on as many cores as the thread that starts it. On a GPU it works on a stream of its own; an item begins
    when all work that was enqueued before its submission is done.

    Args:
        name: of the thread.
        device: of the tensors that are exchanged.
        run: runs an item.
        on_failure: called with the item that failed, and with each item after it, and the error. The other ranks wait
            for this rank until it aborts the exchange.
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        run: Callable[[Item], object],
        on_failure: Callable[[Item, BaseException], object] = lambda _item, _error: None,
    ) -> None:
        self._device = device
        self._run, self._on_failure = run, on_failure
        self._items: queue.SimpleQueue[tuple[Item, Any] | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._num_cores = torch.get_num_threads()
        self._thread = threading.Thread(target=self._run_items, name=name, daemon=True)
        self._thread.start()

    def submit(self, item: Item) -> None:
        """Queue an item behind those submitted before."""
        ready_event = torch.cuda.current_stream(self._device).record_event() if self._device.type == "cuda" else None
        self._items.put((item, ready_event))

    def finish(self) -> None:
        """Wait until all items are done; the thread ends.

        Raises:
            BaseException: the error of the item that failed.
        """
        self._items.put(None)
        self._thread.join()
        if self._device.type == "cuda":
            # The thread has ended, but its kernels may still run on its stream; what the caller enqueues next uses
            # their results.
            torch.cuda.current_stream(self._device).wait_stream(_own_stream(self._device))
        if self._failure is not None:
            raise self._failure

    def _run_items(self) -> None:
        # A new thread does not inherit the number, and would take all cores.
        torch.set_num_threads(self._num_cores)
        stream = torch.cuda.stream(_own_stream(self._device)) if self._device.type == "cuda" else nullcontext()
        with torch.no_grad(), stream:
            while (entry := self._items.get()) is not None:
                item, ready_event = entry
                if ready_event is not None:
                    # Backward runs ahead on another stream: the item must not read gradients before they are written
                    # there.
                    torch.cuda.current_stream(self._device).wait_event(ready_event)
                self._run_item(item)

    def _run_item(self, item: Item) -> None:
        try:
            # After a failure nothing is exchanged any more: the other ranks are at another collective.
            if self._failure is None:
                self._run(item)
                return
        except BaseException as error:  # raised in finish(), where it is waited for
            self._failure = error
        self._on_failure(item, self._failure)


@cache
def _own_stream(device: torch.device) -> Any:
    """Return the stream of a device on which exchanges run."""
    # One for all steps: torch keeps freed memory by stream, and a new stream would have to allocate its own.
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

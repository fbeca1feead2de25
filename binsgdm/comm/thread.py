"""The communication thread, which exchanges buckets while backward computes.

Only this thread calls collectives of its process groups, in the order of submission. That order is the same on all
ranks, whatever order gradients become ready in: collectives that ranks call in different orders deadlock. A thread, and
no completion callback: an exchange has several collectives, and gloo deadlocks if a callback calls the next one.
"""

import queue
import threading
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

import torch

from binsgdm.kernels import streams
from binsgdm.kernels.streams import Event, Stream

Item = TypeVar("Item")


class CommunicationThread(Generic[Item]):
    """Runs submitted items one after the other, until `finish` or until one fails.

    It computes on as many cores as the thread that starts it. On a GPU it enqueues to a stream of its own, so that no
    other stream waits for a collective before `finish`. Threads of two models that exchange at a time must not share a
    stream: their collectives may be enqueued in another order on another rank, and each would wait for the other's.

    Args:
        name: of the thread.
        device: of what is exchanged.
        run: does what an item asks for.
        on_failure: called with the item that failed, and with each item after it, and the error. The other ranks wait
            for this rank until it aborts the exchange.
        stream: its own; a new one if it is not given.
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        run: Callable[[Item], object],
        on_failure: Callable[[Item, BaseException], object] = lambda _item, _error: None,
        stream: Stream = None,
    ) -> None:
        self._streams = streams.of(device)
        self._stream = stream or self._streams.make()
        self._run, self._on_failure = run, on_failure
        self._items: queue.SimpleQueue[tuple[Item, list[Event]] | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._num_cores = torch.get_num_threads()
        self._sources: set[Stream] = set()
        self._thread = threading.Thread(target=self._run_items, name=name, daemon=True)
        self._thread.start()

    def submit(self, item: Item, sources: Collection[Stream] = ()) -> None:
        """Queue an item behind those submitted before.

        Args:
            item: may use what has been enqueued to its sources so far.
            sources: the streams that its tensors were written on; by default the current one.
        """
        sources = sources or (self._streams.current(),)
        self._sources.update(sources)
        # Recorded now and not by the thread, whose host may be late: later work of the sources is not waited for.
        self._items.put((item, [self._streams.record(source) for source in sources]))

    def finish(self) -> None:
        """Wait until all items are done; the thread ends.

        On a GPU they are enqueued then: the current stream waits for them, and so do the sources, whose tensors can be
        freed from here on.

        Raises:
            BaseException: the error of the item that failed.
        """
        self._items.put(None)
        self._thread.join()
        done = self._streams.record(self._stream)
        for stream in self._sources | {self._streams.current()}:
            self._streams.wait(stream, done)
        if self._failure is not None:
            raise self._failure

    def _run_items(self) -> None:
        # A new thread does not inherit the number, and would take all cores.
        torch.set_num_threads(self._num_cores)
        with torch.no_grad(), self._streams.use(self._stream):
            while (entry := self._items.get()) is not None:
                item, ready_events = entry
                for event in ready_events:
                    # Backward runs ahead on another stream: the item must not read gradients before they are written
                    # there.
                    self._streams.wait(self._stream, event)
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

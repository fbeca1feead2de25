"""Ask the store of torch.distributed, but not for longer than it takes one that answers."""

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")

ANSWER_S = 3.0
_silent: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Stores that did not answer once: they are not waited for again."""


class StoreError(Exception):
    """The store is gone, or its process does not answer."""


def ask(question: Callable[[Any], T]) -> T:
    """Call something with the store, and return its result.

    Raises:
        StoreError: there is none within seconds.
    """
    store = default_store()
    if store in _silent:
        raise StoreError
    answers: list[T] = []

    def call() -> None:
        with suppress(RuntimeError):
            answers.append(question(store))

    # A thread, since calls have no timeout: they wait for ever for a process that is stopped.
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    if thread.is_alive():
        _silent.add(store)
    if not answers:
        raise StoreError
    return answers[0]


def default_store() -> Any:
    """Return the store that init_process_group has made."""
    return dist.distributed_c10d._get_default_store()  # torch has no public name for it


def is_kept_by_rank_0() -> bool:
    """Tell whether the store ends with rank 0: it is no file, and in no process of torchrun, as far as can be known."""
    store = default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return type(store).__name__ == "TCPStore" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"

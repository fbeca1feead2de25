"""Signals that end a lab: the first becomes an exception, and none interrupts the clean-up."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_UNHANDLED = (signal.SIG_DFL, signal.default_int_handler)


@contextmanager
def raise_on_signal() -> Iterator[None]:
    """Raise on the first Ctrl-C, SIGTERM or SIGHUP inside the block, and ignore the following ones.

    Ctrl-C raises `KeyboardInterrupt`, the others `SystemExit`. Signals that other code handles or ignores stay so.
    """
    # Python delivers signals only to the main thread, and only this thread may set handlers.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def leave(number: int, _: FrameType | None) -> None:
        if received:
            return
        received.append(number)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    before = {number: handler for number in _ENDING if (handler := signal.getsignal(number)) in _UNHANDLED}
    try:
        for number in before:
            signal.signal(number, leave)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Hold Ctrl-C, SIGTERM and SIGHUP back until the block has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    numbers = [number for number in _ENDING if signal.getsignal(number) not in {signal.SIG_IGN, None}]
    handlers = {number: signal.signal(number, lambda sent, _: received.append(sent)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for sent in dict.fromkeys(received):
            signal.raise_signal(sent)

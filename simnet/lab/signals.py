"""How signals end a lab: the first becomes an exception, and none comes in the way of clean-up."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_UNHANDLED = (signal.SIG_DFL, signal.default_int_handler)


@contextmanager
def raise_on_signal() -> Iterator[None]:
    """Let the first Ctrl-C, SIGTERM or SIGHUP inside the block raise, and ignore those that follow.

    Ctrl-C raises `KeyboardInterrupt`, the others `SystemExit`. What somebody else handles or ignores stays as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def leave(number: int, _: FrameType | None) -> None:
        if came:
            return
        came.append(number)
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
    """Let Ctrl-C, SIGTERM and SIGHUP wait until the block has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    numbers = [number for number in _ENDING if signal.getsignal(number) not in {signal.SIG_IGN, None}]
    handlers = {number: signal.signal(number, lambda sent, _: came.append(sent)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for one in dict.fromkeys(came):
            signal.raise_signal(one)

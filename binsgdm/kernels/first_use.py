"""Compile kernels before the first step that needs them: one process of a machine at a time.

Ranks start together. If each compiled what it needs, all would compile the same code at once on cores that they share;
so one does, and the others load it from numba's cache.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba.core import event

from binsgdm.kernels import numba_kernels

try:
    import fcntl
except ImportError:  # not on Windows: each process compiles what it does not find
    fcntl = None  # type: ignore[assignment]

LOCK_NAME = "binsgdm.lock"
LONGEST_WAIT_S = 60.0  # for another process, before this one compiles as well: it may have been stopped
_LOOK_EVERY_S = 0.02
_NOTICE_AFTER_S = 0.3  # loading from the cache takes less

_is_turn = False

_log = logging.getLogger("binsgdm")


def compile_in_turn(rehearsal: Callable[[], object], notice: "Notice | None" = None) -> None:
    """Call what uses kernels for the first time, so that they are compiled, or loaded if another process did it.

    Args:
        rehearsal: what is called; what it calls in turn itself has its turn already.
        notice: of several calls, so that local rank 0 logs one line if there is something to compile.
    """
    global _is_turn  # noqa: PLW0603 - the lock is of the process
    # What numba does once in a process takes a third of a second: all processes do it at once, before one compiles.
    numba_kernels.prepare()
    if _is_turn:
        rehearsal()
        return
    notice = notice or Notice()
    with event.install_listener("numba:compile", notice), _turn(numba_kernels.cache_folder(), notice):
        _is_turn = True
        try:
            rehearsal()
        finally:
            _is_turn = False


class Notice(event.Listener):
    """Says once that kernels are compiled: here, or by another process that this one waits for."""

    def __init__(self) -> None:
        self._folder = numba_kernels.cache_folder()
        self._is_logged = os.environ.get("LOCAL_RANK", "0") != "0"

    def on_start(self, event: Any) -> None:  # noqa: ARG002 - numba's names
        """Hear from numba that it compiles."""
        self.give()

    def on_end(self, event: Any) -> None:
        """Hear from numba that it has compiled."""

    def give(self) -> None:
        """Log the line, the first time."""
        if self._is_logged:
            return
        self._is_logged = True
        if self._folder is None:
            _log.warning(
                "binsgdm: every rank compiles its kernels, which takes some seconds at each start; to keep them, set "
                "NUMBA_CACHE_DIR to a folder that can be written to"
            )
        else:
            _log.warning("binsgdm: kernels are compiled, once, which takes some seconds; kept in %s", self._folder)


@contextmanager
def _turn(folder: Path | None, notice: Notice) -> Iterator[None]:
    """Wait until no other process of this machine compiles, as long as that may take."""
    if folder is None or fcntl is None:
        yield
        return
    try:
        lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:  # whose kernels all are there already, in a folder that can only be read
        yield
        return
    try:
        _wait_for(lock, notice)
        yield
    finally:
        os.close(lock)  # and gives the lock back, as does the end of a process


def _wait_for(lock: int, notice: Notice) -> None:
    start = time.monotonic()
    while (waited_s := time.monotonic() - start) < LONGEST_WAIT_S:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waited_s > _NOTICE_AFTER_S:
                notice.give()
            time.sleep(_LOOK_EVERY_S)
        except OSError:  # a file system without locks
            return
        else:
            return

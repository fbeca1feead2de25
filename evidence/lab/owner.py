"""The process that owns a lab. The names of its namespaces name it, so that other processes see whether it runs."""

import os
import re
from pathlib import Path
from typing import Self

from msgspec import Struct

_NAME = re.compile(r"simnet-([0-9]+)-([0-9]+)-([0-9]+)-(?:switch|node[0-9]+)")
_PROC = Path("/proc")
_DEAD = ("Z", "X")
"""States in /proc of a process that has ended: a zombie that nobody has waited for, and a dead one."""


class Owner(Struct, frozen=True, kw_only=True):
    """A process, identified by id and start time, since ids are reused."""

    pid_namespace: int
    pid: int
    started_ticks: int

    @classmethod
    def this_process(cls) -> Self:
        """Return this process."""
        pid = os.getpid()
        seen = _state_and_start(pid)
        assert seen is not None
        return cls(pid_namespace=_pid_namespace(), pid=pid, started_ticks=seen[1])

    @classmethod
    def of_namespace(cls, name: str) -> Self | None:
        """Return the owner of a namespace; None if the name is not that of a lab."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        pid_namespace, pid, started_ticks = map(int, match.groups())
        return cls(pid_namespace=pid_namespace, pid=pid, started_ticks=started_ticks)

    @property
    def prefix(self) -> str:
        """Start of the names of its namespaces."""
        return f"simnet-{self.pid_namespace}-{self.pid}-{self.started_ticks}"

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        # The ids of another container are not visible here: such a process counts as running.
        if self.pid_namespace != _pid_namespace():
            return False
        seen = _state_and_start(self.pid)
        return seen is None or seen[0] in _DEAD or seen[1] != self.started_ticks


def _pid_namespace() -> int:
    return (_PROC / "self/ns/pid").stat().st_ino


def _state_and_start(pid: int) -> tuple[str, int] | None:
    """Return the state of a process and its start in ticks since boot; None if there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the program's name, in brackets, may hold blanks and brackets
    return fields[0], int(fields[19])

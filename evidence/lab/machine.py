"""The machine under a lab: check it, run commands, and list and remove namespaces."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from evidence.lab import cpu_quota
from evidence.lab.owner import Owner
from simnet.core.errors import SimnetError

_TOOLS = {"ip": "iproute2", "tc": "iproute2", "setpriv": "util-linux", "taskset": "util-linux"}
_NAMESPACES = Path("/var/run/netns")
_KILL_S = 10.0  # a process that waits for a disk takes seconds to die


def check() -> None:
    """Check that this machine can hold a lab.

    Raises:
        SimnetError: the system is not Linux, the user is not root, or a tool is missing.
    """
    if sys.platform != "linux":
        raise SimnetError(f"lab: {sys.platform!r}: needs Linux; run it in a virtual machine with Linux")
    if os.geteuid() != 0:
        raise SimnetError("lab: network namespaces need root: run it with sudo")
    for tool, package in _TOOLS.items():
        if shutil.which(tool) is None:
            raise SimnetError(f"lab: {tool!r}: not on the PATH; install {package}")


def usable_cores() -> list[int]:
    """Return the cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


def run_command(command: Sequence[str]) -> None:
    """Run one command of a plan."""
    # A session of its own, so that Ctrl-C in the terminal does not stop a command halfway.
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, start_new_session=True
    )
    if done.returncode:
        output = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise SimnetError(f"lab: {' '.join(command)!r} failed ({output}): {_advice(output)}")


@contextmanager
def started(command: Sequence[str], stdout: int, stderr: int) -> Iterator[subprocess.Popen[str]]:
    """Run a program beside this process, in a session of its own, and kill it on leaving, or with this process."""
    with subprocess.Popen(
        ("setpriv", "--pdeathsig", "KILL", *command),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _advice(output: str) -> str:
    """Return the repair for an error message of `ip` or `tc`."""
    if any(part in output for part in ("qdisc", "device type", "No such file")):
        return "the kernel lacks a module; load veth, bridge and sch_tbf"
    if "not permitted" in output or "denied" in output or "Read-only" in output:
        return "namespaces are forbidden here; run on the host, or in a container started with --privileged"
    return "a lab needs a kernel with network namespaces, veth, bridge and sch_tbf"


def namespaces() -> dict[Owner, list[str]]:
    """Return the names of the namespaces of all labs on this machine, by owner."""
    by_owner: dict[Owner, list[str]] = {}
    for path in sorted(_NAMESPACES.glob("simnet-*")):
        owner = Owner.of_namespace(path.name)
        if owner is not None:
            by_owner.setdefault(owner, []).append(path.name)
    return by_owner


def remove_abandoned() -> list[Owner]:
    """Remove every lab whose owner has ended, with the processes in it; return these owners."""
    gone = [owner for owner in namespaces() if owner.has_ended()]
    for owner in gone:
        remove_lab(owner)
    return gone


def remove_lab(owner: Owner) -> None:
    """Kill every process inside a lab, then remove its namespaces, with which their links and bridge go, and groups."""
    names = namespaces().get(owner, [])
    failed = [] if _kill_inside(names) else ["a process in it did not end"]
    for name in names:
        try:
            run_command(("ip", "netns", "delete", name))
        except SimnetError as error:  # another process may have removed it at the same time
            failed += [str(error)] if (_NAMESPACES / name).exists() else []
    if failed:
        raise SimnetError(
            f"lab: some namespaces could not be removed ({failed[0]}): try `evidence.lab clean` after this process"
        )
    cpu_quota.remove_groups_of(owner)


def _kill_inside(names: Iterable[str]) -> bool:
    """Kill every process inside some namespaces, and return whether none is left."""
    # Repeated until none is found, since a process may start another before it is killed.
    inside = set(filter(None, (_identity(_NAMESPACES / name) for name in names)))
    deadline = time.monotonic() + _KILL_S
    while pids := _processes(inside):
        if time.monotonic() > deadline:
            return False
        for pid in pids:
            _kill(pid, inside)
        time.sleep(0.005)
    return True


def _processes(inside: set[tuple[int, int]]) -> list[int]:
    """Return the ids of the processes inside some namespaces, without this process."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()] if inside else []  # noqa: PTH208 - names
    return [pid for pid in pids if pid != os.getpid() and _network_of(pid) in inside]


def _kill(pid: int, inside: set[tuple[int, int]]) -> None:
    """Kill a process that is still inside some namespaces."""
    # The descriptor refers to this process even if it ends and its id is reused: no other process is killed.
    with suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            if _network_of(pid) in inside:
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)


def _network_of(pid: int) -> tuple[int, int] | None:
    return _identity(Path(f"/proc/{pid}/ns/net"))


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode, which identify a namespace; None if it is gone."""
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_dev, seen.st_ino

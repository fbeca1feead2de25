"""Start the processes of a part, hear their reports, and end them all: at their end, in time, or when one fails.

A part has processes of its own, since an error of CUDA breaks every later call of the process that had it.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import IO

from binsgdm.bench.gpu.worker import PartTask

POLL_S = 0.2
TAIL_LINES = 30
KILL_S = 5.0  # for the end of a process that was killed: one that waits inside the driver may never come to it
LOOPBACK_S = 5.0
NO_LOOPBACK = "127.0.0.1 does not answer, where ranks meet: bring the loopback interface up: ip link set lo up"
WORKER = (sys.executable, "-m", "binsgdm.bench.gpu.worker")
# What torchrun, a scheduler or a lab may have left: a process alone must not find it, and ranks get their own.
RANK_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PartEnd:
    """How the processes of a part ended.

    Attributes:
        status: "done", "skipped" or "failed".
        reason: why, unless it is done.
        tail: the last lines that its processes printed.
    """

    status: str
    reason: str = ""
    tail: str = ""


def run(
    task: PartTask,
    *,
    num_ranks: int,
    limit_s: float,
    progress: Callable[[float], object],
    worker: Sequence[str] = WORKER,
) -> PartEnd:
    """Do a task in processes of its own, and return how it ended.

    Args:
        task: without `report_fd`.
        num_ranks: 0 for a process alone, else ranks that join in a process group.
        limit_s: the processes are killed after so many seconds.
        progress: called with the part that is done, from 0 to 1, and at least once in `POLL_S` with the last one.
        worker: the command that does a task, which is its last argument.
    """
    if num_ranks and not _has_loopback():
        return PartEnd(status="failed", reason=NO_LOOPBACK)
    environs = environments(num_ranks)
    with (
        tempfile.TemporaryFile(mode="w+", errors="replace") as output,
        _started(task, environs, worker, output) as both,
    ):
        children, reports = both
        end = _watched(children, reports, time.monotonic() + limit_s, limit_s, progress)
        _kill(children)
        output.seek(0)
        return replace(end, tail="\n".join(output.read().splitlines()[-TAIL_LINES:]))


@contextmanager
def _started(
    task: PartTask, environs: Sequence[dict[str, str]], worker: Sequence[str], output: IO[str]
) -> Iterator[tuple[list[subprocess.Popen[bytes]], int]]:
    """Start the processes; whatever happens, none is left at the end."""
    reports, write_fd = os.pipe()
    command = [*worker, replace(task, report_fd=write_fd).text()]
    children: list[subprocess.Popen[bytes]] = []
    try:
        for environment in environs:
            children.append(  # noqa: PERF401 - those that started are ended where the next cannot
                subprocess.Popen(
                    command, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output,
                    pass_fds=[write_fd], start_new_session=True,
                )
            )  # fmt: skip
        os.close(write_fd)
        write_fd = -1
        yield children, reports
    finally:
        _kill(children)
        for fd in filter(lambda fd: fd >= 0, (reports, write_fd)):
            os.close(fd)


def environments(num_ranks: int) -> list[dict[str, str]]:
    """Return the environment of each process: those that torchrun gives to its ranks, or of a process alone."""
    alone = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    # The code that runs here is the code that the parts run, from wherever it was imported.
    alone["PYTHONPATH"] = os.pathsep.join(filter(None, [_home(), alone.get("PYTHONPATH", "")]))
    if not num_ranks:
        return [alone]
    port = str(_free_port())
    shared = {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1"}
    if num_ranks > 1:
        shared["OMP_NUM_THREADS"] = alone.get("OMP_NUM_THREADS", "1")
    return [
        alone | shared | {"MASTER_PORT": port, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)
    ]


def _home() -> str:
    """Return the folder from which `binsgdm` was imported."""
    return os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))  # noqa: PTH100, PTH118, PTH120


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _has_loopback() -> bool:
    """Tell whether processes of this machine reach each other, without which ranks would wait for their end."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        try:
            socket.create_connection(server.getsockname(), LOOPBACK_S).close()
        except OSError:
            return False
    return True


def _watched(
    children: Sequence["subprocess.Popen[bytes]"],
    reports: int,
    deadline: float,
    limit_s: float,
    progress: Callable[[float], object],
) -> PartEnd:
    """Wait for the end of all processes, of one that fails, or of the time."""
    done, unread = 0.0, b""
    skipped = failed = ""
    while True:
        # Ask for the ends before the last reports: what a process wrote before its end is then read below.
        codes = [child.poll() for child in children]
        while select.select([reports], [], [], 0 if None not in codes else POLL_S)[0]:
            data = os.read(reports, 65536)
            if not data:  # all have closed their end, and are about to be gone
                time.sleep(POLL_S / 4)
                break
            *lines, unread = (unread + data).split(b"\n")
            for line in map(json.loads, lines):
                done = line.get("done", done)
                skipped, failed = line.get("skipped", skipped), failed or line.get("failed", "")
        progress(done)
        if failed or any(codes):
            return PartEnd(status="failed", reason=failed or _end_text(next(code for code in codes if code)))
        if None not in codes:
            return PartEnd(status="skipped", reason=skipped) if skipped else PartEnd(status="done")
        if time.monotonic() > deadline:
            return PartEnd(
                status="failed", reason=f"was ended after {limit_s:.0f} s at {done:.0%}: it hangs, or is too slow"
            )


def _end_text(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _kill(children: Sequence["subprocess.Popen[bytes]"]) -> None:
    """End the processes with what they have started, and wait for them, as long as that may take."""
    for child in children:
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(child.pid, signal.SIGKILL)
    deadline = time.monotonic() + KILL_S
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, deadline - time.monotonic()))
        if child.stdin is not None:
            child.stdin.close()

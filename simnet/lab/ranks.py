"""Start the ranks of one launch, wait for them, and leave none behind."""

import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import IO

from msgspec import Struct

from simnet.errors import SimnetError
from simnet.lab.plan import RankPlan
from simnet.lab.signals import defer_signals
from simnet.units import format_seconds

TIMEOUT_EXIT_CODE = 124
GRACE_S = 3.0
MAX_OUTPUT_BYTES = 1 << 20
_TAIL_LINES, _TAIL_RANKS = 20, 4


class LaunchResult(Struct, frozen=True, kw_only=True):
    """How a launch went.

    `exit_code` is 0, or that of the first rank that failed (128 + the signal that killed it), or 124 after a timeout.
    `outputs` has the last MiB that each rank wrote to stdout and stderr; that of rank 0 is empty where it was shown.
    """

    exit_code: int
    elapsed_s: float
    outputs: tuple[str, ...]
    failed_rank: int | None = None
    unfinished_ranks: tuple[int, ...] = ()

    def raise_if_failed(self) -> None:
        """Check that every rank ended well.

        Raises:
            SimnetError: one did not, with its last lines.
        """
        if self.exit_code:
            raise SimnetError("\n".join([self.failure(), *self.last_lines()]))

    def failure(self) -> str:
        """Say in one sentence what went wrong."""
        after = f"after {format_seconds(self.elapsed_s)}"
        if self.failed_rank is not None:
            return f"lab: rank {self.failed_rank} failed first, with exit code {self.exit_code} {after}"
        ranks = ", ".join(map(str, self.unfinished_ranks))
        return f"lab: not finished {after}, ranks {ranks} were stopped: give it a longer timeout, or look for a hang"

    def last_lines(self) -> list[str]:
        """Return the last lines of the ranks that the sentence names."""
        ranks = self.unfinished_ranks[:_TAIL_RANKS] if self.failed_rank is None else (self.failed_rank,)
        return [f"[rank {rank}] {line}" for rank in ranks for line in self.outputs[rank].splitlines()[-_TAIL_LINES:]]


class _RankProcess:
    """A started rank, at the head of a session of its own."""

    def __init__(self, plan: RankPlan, output: IO[bytes] | None) -> None:
        self.number = plan.rank
        self.output = output
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
        self.process = subprocess.Popen(
            plan.command,
            env=kept | plan.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
        )
        self.descriptor = os.pidfd_open(self.process.pid)
        self.has_ended = False

    def signal(self, number: int) -> None:
        """Send a signal to the rank and what it has started; not yet waited for, its id is nobody else's."""
        if not self.has_ended:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def end(self) -> int:
        """Return the exit code, as a shell tells it, of a rank that has ended, after killing what it has left."""
        self.signal(signal.SIGKILL)
        self.has_ended = True
        code = self.process.wait()
        return 128 - code if code < 0 else code

    def text(self) -> str:
        """Return the last MiB of what it wrote."""
        if self.output is None:
            return ""
        descriptor = self.output.fileno()
        start = max(0, os.fstat(descriptor).st_size - MAX_OUTPUT_BYTES)
        return os.pread(descriptor, MAX_OUTPUT_BYTES, start).decode(errors="replace")

    def close(self) -> None:
        """Kill it if it still runs, and give back its descriptors."""
        if not self.has_ended:
            self.end()
        os.close(self.descriptor)
        if self.output is not None:
            self.output.close()


def run(plans: Sequence[RankPlan], *, timeout_s: float | None, show_rank_0: bool) -> LaunchResult:
    """Start every rank and wait until all have ended, one has failed, or the time is over; then none is left.

    Args:
        plans: the ranks, by number.
        timeout_s: seconds until all are stopped; None waits for ever.
        show_rank_0: let rank 0 write to this process's stdout and stderr.
    """
    start_s = time.monotonic()
    ranks: list[_RankProcess] = []
    with ExitStack() as stack:
        stack.callback(_stop_all, ranks)
        for plan in plans:
            with defer_signals():  # a rank that was started is in the list
                ranks.append(_RankProcess(plan, _output(show_rank_0 and plan.rank == 0)))
        failed, exit_code = _wait(ranks, start_s, timeout_s)
        elapsed_s = time.monotonic() - start_s
        unfinished = [rank.number for rank in ranks if not rank.has_ended] if failed is None else []
        _stop(ranks)
        return LaunchResult(
            exit_code=exit_code,
            elapsed_s=elapsed_s,
            outputs=tuple(rank.text() for rank in ranks),
            failed_rank=failed,
            unfinished_ranks=tuple(unfinished),
        )


def _output(is_shown: bool) -> IO[bytes] | None:
    """Return where a rank writes: a file without a name, of which nothing is left whatever happens, or here."""
    if not is_shown:
        return tempfile.TemporaryFile()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return None


def _wait(ranks: Sequence[_RankProcess], start_s: float, timeout_s: float | None) -> tuple[int | None, int]:
    """Wait; return the rank that failed first, if one did, and the exit code of the launch."""
    deadline = math.inf if timeout_s is None else start_s + timeout_s
    running = list(ranks)
    while running:
        if time.monotonic() >= deadline:
            return None, TIMEOUT_EXIT_CODE
        for rank in _ended(running, deadline):
            running.remove(rank)
            code = rank.end()
            if code:
                return rank.number, code
    return None, 0


def _ended(ranks: Sequence[_RankProcess], deadline: float) -> list[_RankProcess]:
    """Wait until some ranks have ended, but at most until a monotonic time or for an hour; return those."""
    poll = select.poll()
    for rank in ranks:
        poll.register(rank.descriptor, select.POLLIN)
    left_s = min(max(0.0, deadline - time.monotonic()), 3600.0)
    ready = {descriptor for descriptor, _ in poll.poll(1000 * left_s + 1)}
    return [rank for rank in ranks if rank.descriptor in ready]


def _stop(ranks: Sequence[_RankProcess]) -> None:
    """Ask the ranks that still run to end, and kill those that have not after three seconds."""
    left = [rank for rank in ranks if not rank.has_ended]
    for rank in left:
        rank.signal(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while left and time.monotonic() < deadline:
        for rank in _ended(left, deadline):
            left.remove(rank)
            rank.end()
    for rank in left:
        rank.signal(signal.SIGKILL)
    for rank in left:
        rank.end()


def _stop_all(ranks: Sequence[_RankProcess]) -> None:
    """Stop the ranks and close what they held, whatever signal comes meanwhile."""
    with defer_signals():
        _stop(ranks)
        for rank in ranks:
            rank.close()

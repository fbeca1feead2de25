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

from evidence.lab.plan import RankPlan
from evidence.lab.signals import defer_signals
from simnet.core.errors import SimnetError
from simnet.core.units import format_seconds

TIMEOUT_EXIT_CODE = 124
GRACE_S = 3.0  # in which a rank may end by itself
MAX_OUTPUT_BYTES = 1 << 20  # the end says why a rank failed
_TAIL_LINES, _TAIL_RANKS = 20, 4


class LaunchResult(Struct, frozen=True, kw_only=True):
    """The result of a launch.

    Attributes:
        exit_code: 0, or that of the first rank that failed (128 + the signal that killed it), or 124 after a timeout.
        elapsed_s: duration of the launch [s].
        outputs: the last MiB of stdout and stderr of each rank; empty for rank 0 if it was shown.
        failed_rank: the first rank that failed.
        unfinished_ranks: ranks that a timeout stopped.
    """

    exit_code: int
    elapsed_s: float
    outputs: tuple[str, ...]
    failed_rank: int | None = None
    unfinished_ranks: tuple[int, ...] = ()

    def raise_if_failed(self) -> None:
        """Raise an error unless every rank succeeded.

        Raises:
            SimnetError: a rank failed or did not finish; the message has its last lines.
        """
        if self.exit_code:
            raise SimnetError("; ".join([self.failure(), *self.last_lines()]))

    def failure(self) -> str:
        """Return one sentence about the failure."""
        after = f"after {format_seconds(self.elapsed_s)}"
        if self.failed_rank is not None:
            return f"lab: rank {self.failed_rank} failed first, with exit code {self.exit_code} {after}"
        ranks = ", ".join(map(str, self.unfinished_ranks))
        return f"lab: not finished {after}, ranks {ranks} were stopped: give a longer timeout, or look for a hang"

    def last_lines(self) -> list[str]:
        """Return the last output lines of the ranks that failed or did not finish."""
        ranks = self.unfinished_ranks[:_TAIL_RANKS] if self.failed_rank is None else (self.failed_rank,)
        return [f"[rank {rank}] {line}" for rank in ranks for line in self.outputs[rank].splitlines()[-_TAIL_LINES:]]


class _RankProcess:
    """A started rank, the leader of its own session."""

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
        """Send a signal to the rank and to the processes that it has started."""
        # Until `end` waits for the process, its id cannot be reused for another one.
        if not self.has_ended:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def end(self) -> int:
        """Kill the processes that an ended rank left behind, and return its exit code as a shell reports it."""
        self.signal(signal.SIGKILL)
        self.has_ended = True
        code = self.process.wait()
        return 128 - code if code < 0 else code

    def text(self) -> str:
        """Return the last MiB of its output."""
        if self.output is None:
            return ""
        descriptor = self.output.fileno()
        start = max(0, os.fstat(descriptor).st_size - MAX_OUTPUT_BYTES)
        return os.pread(descriptor, MAX_OUTPUT_BYTES, start).decode(errors="replace")

    def close(self) -> None:
        """Kill the rank if it still runs, and close its descriptors."""
        if not self.has_ended:
            self.end()
        os.close(self.descriptor)
        if self.output is not None:
            self.output.close()


def run(plans: Sequence[RankPlan], *, timeout_s: float | None, show_rank_0: bool) -> LaunchResult:
    """Start every rank and wait until all have ended, one has failed, or the time is over; then stop the others.

    Args:
        plans: the ranks in order.
        timeout_s: seconds until all ranks are stopped; None waits for ever.
        show_rank_0: let rank 0 write to this process's stdout and stderr.
    """
    start_s = time.monotonic()
    ranks: list[_RankProcess] = []
    with ExitStack() as stack:
        stack.callback(_stop_all, ranks)
        for plan in plans:
            # No signal may come between the start of a rank and its entry in the list that clean-up goes through.
            with defer_signals():
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
    """Return the output file of a rank; None if it writes to this process's stdout."""
    # A temporary file without a name disappears with its descriptors, even if this process is killed.
    if not is_shown:
        return tempfile.TemporaryFile()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return None


def _wait(ranks: Sequence[_RankProcess], start_s: float, timeout_s: float | None) -> tuple[int | None, int]:
    """Wait, and return the first rank that failed, if any, and the exit code of the launch."""
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
    """Wait until some ranks have ended, at most until a monotonic time or for an hour; return these ranks."""
    poll = select.poll()
    for rank in ranks:
        poll.register(rank.descriptor, select.POLLIN)
    # `poll` takes no infinite time, so the callers call again; 1 ms more, so that the deadline has passed.
    left_s = min(max(0.0, deadline - time.monotonic()), 3600.0)
    ready = {descriptor for descriptor, _ in poll.poll(1000 * left_s + 1)}
    return [rank for rank in ranks if rank.descriptor in ready]


def _stop(ranks: Sequence[_RankProcess]) -> None:
    """Ask the running ranks to end, and kill those that still run after three seconds."""
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
    """Stop the ranks and close their descriptors, with signals deferred."""
    with defer_signals():
        _stop(ranks)
        for rank in ranks:
            rank.close()

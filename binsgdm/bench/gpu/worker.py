"""One rank of one part: `python -m binsgdm.bench.gpu.worker TASK`, started by `processes`."""

import importlib
import json
import math
import os
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from binsgdm.bench.gpu.parts import NotMeasurableError
from binsgdm.errors import BinsgdmError

LEAST_S = 1.0
IMPRECISE = 0.1  # relative error of a median that is worth a note
# A part plans its own time: this is for a machine on which it cannot. It comes before the part is killed.
LATE, GRACE_S, WRITING_S = 1.25, 10.0, 5.0
ORPHANED = 1


class OutOfTimeError(Exception):
    """A part took much longer than it was given: what it has measured so far is kept."""


@dataclass(frozen=True, kw_only=True)
class PartTask:
    """What a worker is asked to do.

    Attributes:
        module: that of the part.
        output: measurement file.
        device: "cuda" or "cpu".
        seconds: for all, from `launched` on, which is a moment of the machine's monotonic clock.
        limit_s: after which it is killed, with all that it has not written.
        is_shared: others use the card: repeat more often.
        report_fd: where reports go, a JSON object a line.
    """

    module: str
    output: str
    device: str
    quick: bool
    is_shared: bool
    seconds: float
    launched: float
    report_fd: int
    limit_s: float = math.inf

    def text(self) -> str:
        """Return the task as a word of a command line."""
        return json.dumps(asdict(self))


def main(text: str) -> int:
    """Do a task; return the exit code, 1 if it failed."""
    task = PartTask(**json.loads(text))
    end_with_parent()
    try:
        work(task)
    except NotMeasurableError as error:
        report(task, skipped=str(error))
    except BaseException as error:
        traceback.print_exc()
        report(task, failed=_reason(error))
        return 1
    return 0


def work(task: PartTask) -> None:
    """Measure, and write the file."""
    if task.device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton looks once, when something first imports it
    from binsgdm.bench.ranks import joined
    from binsgdm.bench.record import Bench, Record

    with joined(device=task.device) as ranks:
        record = Record(ranks)

        def progress(part: float) -> None:
            if ranks.rank == 0:
                report(task, done=part)
            # Several ranks would have to agree on it; theirs are the short parts.
            if ranks.world_size == 1 and (record.series or record.checks) and passed_s(task) > latest_s(task):
                raise OutOfTimeError(f"ended at {part:.0%} after {passed_s(task):.0f} s: give more with --budget")

        bench = Bench(record=record, ranks=ranks, stop_rule=stop_rule(task), progress=progress)
        module = importlib.import_module(task.module)
        try:
            module.measure(bench, quick=task.quick, seconds=max(task.seconds - passed_s(task), LEAST_S))
        except OutOfTimeError as error:
            record.note(str(error))
        if imprecise := record.imprecise(IMPRECISE):
            why = ": others use the card" if task.is_shared else ""
            record.note(f"{imprecise} of {len(record.series)} series are less precise than {IMPRECISE:.0%}{why}")
        if ranks.rank == 0:
            record.write(Path(task.output))


def passed_s(task: PartTask) -> float:
    """Return the time since the task was launched [s]."""
    return time.monotonic() - task.launched


def latest_s(task: PartTask) -> float:
    """Return after how long a part stops at what it has [s]."""
    return min(LATE * task.seconds + GRACE_S, task.limit_s - WRITING_S)


def stop_rule(task: PartTask) -> Any:
    """Return when to stop repeating; a part shortens `max_seconds` to what its own series may take."""
    from binsgdm.bench.timing import StopRule

    if task.quick:
        return StopRule(max_repetitions=8, max_seconds=0.05)
    return StopRule(max_repetitions=400 if task.is_shared else 100, max_seconds=4.0 if task.is_shared else 2.0)


def report(task: PartTask, **what: Any) -> None:
    """Write a line for the process that waits."""
    os.write(task.report_fd, (json.dumps(what) + "\n").encode())


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())[:300]
    return text if isinstance(error, BinsgdmError) else f"{type(error).__name__}: {text}"


def end_with_parent() -> None:
    """End this process when the one that started it is gone: its end closes the pipe on standard input."""

    def wait() -> None:
        # Bare: a thread that waits in a buffered read holds a lock that Python's own end needs.
        while os.read(sys.stdin.fileno(), 1):
            pass
        os._exit(ORPHANED)

    threading.Thread(target=wait, name="binsgdm-orphan", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""One rank of one part: `python -m binsgdm.measure.gpu.worker TASK`, started by `processes`."""

import importlib
import json
import os
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from binsgdm.errors import BinsgdmError
from binsgdm.measure.gpu.parts import NotMeasurableError

LEAST_S = 1.0
IMPRECISE = 0.1  # relative error of a median that is worth a note
ORPHANED = 1


@dataclass(frozen=True, kw_only=True)
class PartTask:
    """What a worker is asked to do.

    Attributes:
        module: that of the part.
        output: measurement file.
        device: "cuda" or "cpu".
        seconds: for all, from `launched` on, which is a moment of the machine's monotonic clock.
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
    from binsgdm.measure.bench import Bench
    from binsgdm.measure.ranks import joined
    from binsgdm.measure.record import Record

    with joined(device=task.device) as ranks:
        record = Record(ranks)
        progress = (lambda part: report(task, done=part)) if ranks.rank == 0 else (lambda _: None)
        bench = Bench(record=record, ranks=ranks, stop_rule=stop_rule(task), progress=progress)
        left_s = task.seconds - (time.monotonic() - task.launched)
        importlib.import_module(task.module).measure(bench, quick=task.quick, seconds=max(left_s, LEAST_S))
        if imprecise := record.imprecise(IMPRECISE):
            why = ": others use the card" if task.is_shared else ""
            record.note(f"{imprecise} of {len(record.series)} series are less precise than {IMPRECISE:.0%}{why}")
        if ranks.rank == 0:
            record.write(Path(task.output))


def stop_rule(task: PartTask) -> Any:
    """Return when to stop repeating; a part shortens `max_seconds` to what its own series may take."""
    from binsgdm.measure.timing import StopRule

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

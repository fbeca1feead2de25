"""The parts of `simnet measure gpu` as data, and one rank of one part: `python -m binsgdm.bench.gpu.parts TASK`."""

import json
import math
import os
import pkgutil
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from binsgdm.errors import BinsgdmError

BUDGET_S = 375
LEAST_S = 1.0
IMPRECISE = 0.1  # relative error of a median that is worth a note
# A part plans its own time: this is for a machine on which it cannot. It comes before the part is killed.
LATE, GRACE_S, WRITING_S = 1.25, 10.0, 5.0
ORPHANED = 1
# What torchrun, a scheduler or a lab may have left: a process alone must not find it, and ranks get their own.
RANK_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part, which writes NAME.json.

    Attributes:
        about: what it does, for people.
        seconds: its share of `BUDGET_S`, its start (imports, CUDA, compiling kernels) included.
        measure: "module:function", called with (bench, quick=..., seconds=...), where `seconds` are left for it and
            `quick` asks for the smallest sizes. It writes series, notes and checks to `bench.record`, and is imported
            by the part's own process alone.
        every_card: runs one rank on each card, joined in a process group (of one rank where there is one card);
            otherwise one process alone on the first card.
        alone: why it is skipped where there is one rank; empty: it is not.
    """

    name: str
    about: str
    seconds: int
    measure: str
    every_card: bool = False
    alone: str = ""


PARTS: tuple[Part, ...] = (
    Part(
        name="kernels",
        about="time every kernel and every compressing system over sizes, with copies in the same run",
        seconds=152,
        measure="binsgdm.bench.kernels:measure_card",
    ),
    Part(
        name="step",
        about="time the steps of BinSGDM, 1-bit Adam and fused AdamW, and take their memory",
        seconds=23,
        measure="binsgdm.bench.gpu.step:measure",
    ),
    Part(
        name="models",
        about="time forward, backward and gradients of the shipped models in every precision",
        seconds=145,
        measure="binsgdm.bench.model:measure_card",
    ),
    Part(
        name="interference",
        about="time backward while collectives run, or copies that stand for them",
        seconds=20,
        measure="binsgdm.bench.interference:measure_cards",
        every_card=True,
    ),
    Part(
        name="training",
        about="time steps of training over all cards under several strategies",
        seconds=25,
        measure="binsgdm.bench.training:measure_cards",
        every_card=True,
        alone="one card exchanges nothing with another: needs two",
    ),
    Part(
        name="links",
        about="time collectives between cards",
        seconds=10,
        measure="binsgdm.bench.collectives:measure_cards",
        every_card=True,
        alone="one card sends nothing to another: needs two",
    ),
)


def environments(num_ranks: int) -> list[dict[str, str]]:
    """Return the environment of each process: those that torchrun gives to its ranks, or of a process alone (0)."""
    alone = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    # The code that runs here is the code that the parts run, from wherever it was imported.
    home = str(Path(__file__).absolute().parents[3])
    alone["PYTHONPATH"] = os.pathsep.join(filter(None, [home, alone.get("PYTHONPATH", "")]))
    if not num_ranks:
        return [alone]
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    shared = alone | place | dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(num_ranks))
    if num_ranks > 1:
        shared.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does: ranks share the cores
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]


class OutOfTimeError(Exception):
    """A part took much longer than it was given: what it has measured so far is kept."""


def work(  # noqa: PLR0913 - what a process is asked
    *,
    measure: str,
    output: str,
    device: str,
    quick: bool,
    is_shared: bool,
    seconds: float,
    launched: float,
    limit_s: float = math.inf,
    report: Callable[..., None],
) -> None:
    """Measure a part as one rank, and write the file.

    Args:
        measure: of the part.
        output: measurement file.
        device: "cuda" or "cpu".
        quick: the smallest sizes.
        is_shared: others use the card: repeat more often.
        seconds: for all, from `launched` on.
        launched: a moment of the machine's monotonic clock.
        limit_s: after which this process is killed, with all that it has not written.
        report: called with done=, from 0 to 1.
    """
    if device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton looks once, when something first imports it
    from binsgdm.bench.ranks import joined
    from binsgdm.bench.record import Bench, Record
    from binsgdm.bench.timing import StopRule

    latest_s = min(LATE * seconds + GRACE_S, limit_s - WRITING_S)
    # A part shortens `max_seconds` to what its own series may take.
    repetitions, max_seconds = (8, 0.05) if quick else (400, 4.0) if is_shared else (100, 2.0)
    rule = StopRule(max_repetitions=repetitions, max_seconds=max_seconds)
    with joined(device=device) as ranks:
        record = Record(ranks)

        def progress(part: float) -> None:
            if ranks.rank == 0:
                report(done=part)
            passed_s = time.monotonic() - launched
            # Several ranks would have to agree on it; theirs are the short parts.
            if ranks.world_size == 1 and (record.series or record.checks) and passed_s > latest_s:
                raise OutOfTimeError(f"ended at {part:.0%} after {passed_s:.0f} s: give more with --budget")

        bench = Bench(record=record, ranks=ranks, stop_rule=rule, progress=progress)
        try:
            left_s = max(seconds - (time.monotonic() - launched), LEAST_S)
            pkgutil.resolve_name(measure)(bench, quick=quick, seconds=left_s)
        except OutOfTimeError as error:
            record.note(str(error))
        if imprecise := record.imprecise(IMPRECISE):
            why = ": others use the card" if is_shared else ""
            record.note(f"{imprecise} of {len(record.series)} series are less precise than {IMPRECISE:.0%}{why}")
        if ranks.rank == 0:
            record.write(Path(output))


def main(text: str) -> int:
    """Do what a JSON object asks `work` for, and report to its `report_fd`, an object a line; return the exit code."""
    task: dict[str, Any] = json.loads(text)
    report_fd = task.pop("report_fd")

    def report(**what: Any) -> None:
        os.write(report_fd, (json.dumps(what) + "\n").encode())

    end_with_parent()
    try:
        work(report=report, **task)
    except BaseException as error:
        traceback.print_exc()
        said = " ".join(str(error).split())[:300]
        report(failed=said if isinstance(error, BinsgdmError) else f"{type(error).__name__}: {said}")
        return 1
    return 0


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

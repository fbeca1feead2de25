"""Time a command in a checkout: a whole process, or what its program times itself."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

SELF_TIMED = """
import time
from simnet.engine.scenario import load
from simnet.engine.simulation import simulate
{setup}
def best(times):
    for _ in range({repeat}):
        start = time.process_time()
        {work}
        times.append(time.process_time() - start)
    return min(times)
print(best([]))
"""
"""A program that prints the shortest CPU time of several runs of its work."""
SLOW_S = 3.0  # above it noise is small, and another turn takes long


class Case(NamedTuple):
    """One thing that is timed.

    Attributes:
        title: how the table calls it.
        clock: wall time or CPU time of the whole process, or the seconds that it prints itself.
        repeat: how many processes; the best counts.
        with_memory: whether the memory of a process that times a part of itself is asked for.
        beyond: what is taken off: the time of another case in the same turn.
        parts: pieces that the time is shared by, such as collectives.
        aim: the time that is wanted, for people.
        peers: what others take, for people.
    """

    title: str
    arguments: tuple[str, ...]
    clock: Literal["wall", "cpu", "printed"] = "printed"
    repeat: int = 3
    with_memory: bool = False
    beyond: "Case | None" = None
    parts: int = 1
    aim: str = ""
    peers: str = ""


def command(title: str, *words: str, clock: Literal["wall", "cpu"] = "cpu", repeat: int = 1, aim: str = "") -> Case:
    return Case(title, ("-m", "simnet", *words), clock, repeat, aim=aim)


def program(title: str, setup: str, work: str = "simulate(given)", runs: int = 9, repeat: int = 2) -> Case:
    """Return a case that times a part of itself."""
    return Case(title, ("-c", SELF_TIMED.format(setup=setup, work=work, repeat=runs)), "printed", repeat)


class Timed(NamedTuple):
    """The best of a case's runs; memory is that of its largest process, where that is asked for."""

    seconds: float
    peak_mib: float | None


class Checkout:
    """A folder with sources, and a folder for what Python compiles of them: its own, so that none is written to."""

    def __init__(self, path: Path, scratch: Path) -> None:
        if not (path / "simnet" / "__main__.py").is_file():  # Python would run the simnet that is installed
            raise SystemExit(f"{path}: is no checkout: must be a folder that holds simnet; name one")
        self.path = path
        compiled = scratch / f"compiled-{len(list(scratch.iterdir()))}"
        compiled.mkdir()
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | {
            "PYTHONPATH": str(path),
            "PYTHONPYCACHEPREFIX": str(compiled),
        }
        self.run(command("", "simulate", "bert_base_10gbit"))

    def run(self, case: Case) -> Timed:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as out:
            start = time.perf_counter()
            words = [sys.executable, *case.arguments]
            settings: dict[str, Any] = {
                "cwd": folder,
                "env": self.environment,
                "stdout": out,
                "stderr": subprocess.DEVNULL,
            }
            process = subprocess.Popen(words, **settings)
            # Not getrusage, which adds up all children so far.
            _, status, used = os.wait4(process.pid, 0)
            wall_s = time.perf_counter() - start
            process.returncode = os.waitstatus_to_exitcode(status)
            # 1 is that of a validation with missed limits, which is timed all the same.
            if process.returncode not in ((0,) if case.clock == "printed" else (0, 1)):
                raise SystemExit(f"{case.title}: exit code {process.returncode} in {self.path}")
            out.seek(0)
            cpu_s = used.ru_utime + used.ru_stime
            seconds = {"wall": wall_s, "cpu": cpu_s}.get(case.clock) or float(out.read())
        less_s = 0.0 if case.beyond is None else self.run(case.beyond).seconds
        has_memory = case.clock != "printed" or case.with_memory
        return Timed((seconds - less_s) / case.parts, used.ru_maxrss / 1024 if has_memory else None)


def in_turns(case: Case, here: Checkout, former: Checkout | None) -> tuple[Timed, Timed | None]:
    """Return the best of each checkout; they take turns, so that a busy machine slows both down alike.

    A former one that cannot run a case has no time.
    """
    runs, others = list[Timed](), list[Timed]()
    for turn in range(case.repeat):
        runs.append(here.run(case))
        # One turn is enough where the former one is slow.
        if former is not None and (turn == 0 or (others and others[0].seconds < SLOW_S)):
            try:
                others.append(former.run(case))
            except SystemExit as error:
                print(error, file=sys.stderr)
    return min(runs), min(others, default=None)

"""The exact executor beside SimGrid, which simulates every send, too.

    python -m evidence.benchmarks.beside_simgrid [--long]

Compiles `beside_simgrid.cpp` against SimGrid (Debian: apt-get install g++ libsimgrid-dev; measured with 3.32) and runs
both in turns, each simulation in a process of its own: CPU time from the first event to the last one, start-up apart.
The ratio is simnet's time over SimGrid's; both must tell the same seconds of the step. Skips where SimGrid is missing.
"""

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from evidence import ROOT
from evidence.benchmarks.cases import FUSED, ONE_ALL_REDUCE
from evidence.benchmarks.timing import Case, Checkout
from simnet.core.units import format_seconds

SOURCE = Path(__file__).with_suffix(".cpp")
TURNS, NEAR = 3, 1e-4
LOCAL_RANKS, BYTES, SLOWDOWN, BUCKETS = 8, 440e6, 1.3, 18
LINKS = (300e9, 0.5e-6, 1.25e9, 5e-6)
"""Rate and latency inside nodes and between them, as in `reference_ddp_step` [B/s, s]."""
EXACT = """
import time
from simnet.engine.scenario import load
from simnet.engine.simulation import simulate
simulate(load("reference_ddp_step", {warm!r}))
given = load("reference_ddp_step", {settings!r})
start = time.process_time()
found = simulate(given)
took_s = time.process_time() - start
print({asked})
"""


class Row(NamedTuple):
    """One step, as both are told it.

    Attributes:
        compute: forward, backward, optimizer, slowdown of rank 0 [s, s, s, 1], for SimGrid.
    """

    title: str
    nodes: int
    settings: dict[str, Any]
    compute: tuple[float, ...] = (0.0, 0.0, 0.0, 1.0)
    buckets: int = 1


def rows(*, long: bool) -> list[Row]:
    """Return what is compared; a DDP step on 512 ranks takes SimGrid half a minute."""
    slow = {"kind": "slow_rank", "node": 0, "local_rank": 0, "compute_slowdown": SLOWDOWN}
    ring = {"kind": "all_reduce", "algorithm": "ring", "bucket_cap": "25 MB"}
    step = {"strategy": ring, "baseline": None, "cluster.faults": [slow]}
    one = {**ONE_ALL_REDUCE, "strategy": {**FUSED, "algorithm": "ring"}}
    found = [Row(f"flat ring all-reduce, {8 * nodes} ranks", nodes, one) for nodes in (8, 64)]
    for nodes in (8, 64) if long else (8,):
        title = f"DDP step with a slow rank, {8 * nodes} ranks"
        found.append(Row(title, nodes, step, (0.04, 0.08, 0.005, SLOWDOWN), BUCKETS))
    return found


def by_simgrid(made: Path, row: Row) -> tuple[float, float]:
    """Return the CPU time of a simulation, and the simulated step [s]."""
    numbers = [row.nodes, LOCAL_RANKS, *LINKS, *row.compute, *[BYTES / row.buckets] * row.buckets]
    done = subprocess.run([str(made), *map(repr, numbers)], capture_output=True, text=True, check=True)
    step_s, took_s = map(float, done.stdout.split())
    return took_s, step_s


def by_simnet(checkout: Checkout, row: Row, asked: str) -> float:
    """Return what is asked for of a simulation in a process that has simulated another cluster before."""
    settings = {**row.settings, "cluster.num_nodes": row.nodes, "run.fidelity": "exact"}
    code = EXACT.format(settings=settings, warm={**settings, "cluster.num_nodes": 2}, asked=asked)
    return checkout.run(Case(row.title, ("-c", code))).seconds


def main() -> None:
    """Print the table, or why there is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="a DDP step on 512 ranks, too")
    given = parser.parse_args()
    if (compiler := shutil.which("g++")) is None:
        print("skipped: g++: not on the PATH; apt-get install g++")
        return
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "beside_simgrid"
        words = [compiler, "-O2", "-std=c++17", str(SOURCE), "-o", str(made), "-lsimgrid"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"skipped: SimGrid: {done.stderr.partition(chr(10))[0]}; apt-get install libsimgrid-dev")
            return
        checkout = Checkout(ROOT, Path(scratch))
        print("| what | exact executor | SimGrid | ratio | simulated step |\n|---|---|---|---|---|")
        for row in rows(long=given.long):
            turns = [(by_simnet(checkout, row, "took_s"), *by_simgrid(made, row)) for _ in range(TURNS)]
            ours_s, theirs_s, theirs_step_s = map(min, zip(*turns, strict=True))
            step_s = by_simnet(checkout, row, "found.result.iteration_s")
            if abs(step_s / theirs_step_s - 1) > NEAR:
                raise SystemExit(f"{row.title}: a step of {step_s} s, in SimGrid {theirs_step_s} s: must be the same")
            times = f"{format_seconds(ours_s)} | {format_seconds(theirs_s)} | {ours_s / theirs_s:.3f}"
            print(f"| {row.title} | {times} | {format_seconds(step_s)} |", flush=True)


if __name__ == "__main__":
    main()

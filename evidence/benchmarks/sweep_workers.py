"""`python -m evidence.benchmarks.sweep_workers [--docs docs]`: sweeps on workers of Dask beside those of this machine.

With --docs the table goes to docs/evidence/data too.
"""

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from evidence import ROOT
from evidence.benchmarks.timing import Checkout, command
from evidence.studies import page
from simnet.analysis import sweeps, workers
from simnet.analysis.sweeps import SweepPoint
from simnet.analysis.workers import Pool
from simnet.core.units import format_seconds
from simnet.core.version import VERSION
from simnet.engine.result import RefusedPoint
from simnet.engine.scenario import load_experiment
from simnet.report.table import Table

CHEAP = """
cluster = "a100_8x8_10gbit"
calibration = { memory_bandwidth = "1 TB/s" }
workload = { gradient = "440 MB", forward = "40 ms", backward = "80 ms", batch_per_rank = 64 }
strategy = { kind = "all_reduce", bucketing = "fused", overlap = false }
"""
"""The cheapest scenario that there is."""
JITTER = [{"kind": "compute_jitter", "cv": 0.05}]
NODES, BANDWIDTH, BERT = "cluster.num_nodes", "cluster.inter_node.bandwidth", "bert_base_10gbit"
TURNS = 5
Cells = tuple[str, ...]


class Points(NamedTuple):
    """Points of about one cost: an experiment's name or file, settings of all points, axes that are swept."""

    title: str
    scenario: str
    settings: dict[str, Any]
    axes: dict[str, list[Any]]


def cheap_scenario(folder: Path) -> str:
    (path := folder / "cheap.toml").write_text(CHEAP, encoding="utf-8")
    return str(path)


def kinds_of_points(folder: Path) -> Iterator[Points]:
    """Yield what is swept, from points that cost next to nothing to those that take long."""

    def rates(count: int) -> dict[str, list[Any]]:
        return {BANDWIDTH: [f"{10 + number / 10:g} Gbit/s" for number in range(count)]}

    every = {NODES: list(range(1, 65)), **rates(150)}
    yield Points("one fused all-reduce, 1 to 64 nodes", cheap_scenario(folder), {}, every)
    for count in (8, 64, 512):
        yield Points(f"BERT-Base, BinSGDM and DDP, {count} nodes", BERT, {NODES: count}, rates(3_000))
    yield Points("the same with 20 draws, 8 nodes", BERT, {NODES: 8, "run.draws": 20}, rates(600))
    for count, points in ((8, 80), (64, 60)):
        varied = {NODES: count, "run.draws": 0, "cluster.faults": JITTER, "run.iterations": 20}
        yield Points(f"the same with 20 iterations and jitter, {count} nodes", BERT, varied, rates(points))


class Side(NamedTuple):
    """A pool of workers, and all processes that simulate or hand out points: this one, and those of the pool."""

    pool: Pool
    processes: list[psutil.Process]

    def turn(self, points: Sequence[SweepPoint | RefusedPoint]) -> tuple[float, float]:
        """Sweep once; return wall time and CPU time of all processes [s]."""
        cpu_s, start = self._cpu_s(), time.perf_counter()
        sweeps.run(points, pool=self.pool)
        return time.perf_counter() - start, self._cpu_s() - cpu_s

    def _cpu_s(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self.processes)


def workers_rows(folder: Path, checkout: Checkout) -> Iterator[Cells]:
    """Yield the comparison of local workers with those of Dask, a row for each kind of points below the heads.

    Points per second of CPU time of all processes, with as many workers as cores, which have simulated before:
    `--jobs`, then `--dask-local`, in turns. Medians; ratios are medians of those of the turns, with the least and the
    largest. Above 1, Dask is faster.
    """
    yield "points", "number", "local", "Dask", "Dask / local", "the same by wall time"
    cores, this = workers.num_cores(), psutil.Process()
    with workers.local_pool(cores) as local_pool:
        sweeps.run(sweeps.points_of(load_experiment("speedup")), pool=local_pool)
        started = this.children(recursive=True)
        with workers.dask_local(cores) as dask_pool:
            others = [process for process in this.children(recursive=True) if process not in started]
            local, dask = Side(local_pool, [this, *started]), Side(dask_pool, [this, *others])
            for kind in kinds_of_points(folder):
                points = sweeps.points_of(load_experiment(kind.scenario, kind.settings, kind.axes))
                few = points[:60]
                # So modules and schedules are loaded.
                assert sweeps.run(few, pool=dask_pool) == sweeps.run(few, pool=local_pool)
                turns = [(*local.turn(points), *dask.turn(points)) for _ in range(TURNS)]
                walls_s, cpus_s, dask_walls_s, dask_cpus_s = zip(*turns, strict=True)
                rates = (f"{len(points) / statistics.median(times):,.0f}" for times in (cpus_s, dask_cpus_s))
                ends = (_ratio(cpus_s, dask_cpus_s), _ratio(walls_s, dask_walls_s))
                yield kind.title, f"{len(points):,}", *rates, *ends
    for option in ("--jobs", "--dask-local"):
        words = ("sweep", BERT, "--set", f"{NODES}=2,4", "--draws", "0", option, str(cores))
        best_s = min(checkout.run(command(option, *words, clock="wall")).seconds for _ in range(3))
        print(f"a command with two points and {option} {cores} takes {format_seconds(best_s)}")


def _ratio(times: Sequence[float], others: Sequence[float]) -> str:
    ratios = [one / other for one, other in zip(times, others, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, help="the folder of evidence/")
    given = parser.parse_args()
    print(f"binsgdm {VERSION}, Python {platform.python_version()}, {workers.num_cores()} cores; {time.strftime('%F')}")
    with tempfile.TemporaryDirectory() as compiled, tempfile.TemporaryDirectory() as scratch:
        heads, *measured = _printed(workers_rows(Path(scratch), Checkout(ROOT, Path(compiled))))
        if given.docs:
            page.write_data({"benchmarks-workers": Table(heads, measured)}, given.docs / "evidence" / "data")


def _printed(rows: Iterator[Cells]) -> Iterator[Cells]:
    for row in rows:
        print(*row, sep=" | ", flush=True)
        yield row


if __name__ == "__main__":
    main()

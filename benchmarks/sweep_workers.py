"""`python -m benchmarks.sweep_workers [--only NAME] [--docs docs]`: sweeps on workers of Dask; memory of the client.

With --docs the tables go to docs/evidence/data too, and the figure is drawn.
"""

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from simnet.analysis import sweeps, workers
from simnet.analysis.sweeps import SweepPoint
from simnet.analysis.workers import Pool
from simnet.core.units import format_seconds
from simnet.core.version import VERSION
from simnet.engine.result import RefusedPoint
from simnet.engine.scenario import load_experiment
from simnet.report.table import Table

HERE = Path(__file__).resolve().parents[1]
FIGURE = "sweep_memory.png"
JITTER = [{"kind": "compute_jitter", "cv": 0.05}]
TURNS = 5
Cells = tuple[str, ...]


class Points(NamedTuple):
    """Points of about one cost.

    Attributes:
        title: for people.
        scenario: the name of an experiment, or its file.
        settings: of all points.
        axes: that are swept.
    """

    title: str
    scenario: str
    settings: dict[str, Any]
    axes: dict[str, list[Any]]


def rates(count: int) -> list[str]:
    """Return so many bandwidths."""
    return [f"{10 + number / 10:g} Gbit/s" for number in range(count)]


def cheap_scenario(folder: Path) -> str:
    """Write the cheapest scenario that there is, and return its path."""
    path = folder / "cheap.toml"
    path.write_text(
        'cluster = "a100_8x8_10gbit"\ncalibration = { memory_bandwidth = "1 TB/s" }\n'
        'workload = { gradient = "440 MB", forward = "40 ms", backward = "80 ms", batch_per_rank = 64 }\n'
        'strategy = { kind = "all_reduce", bucketing = "fused", overlap = false }\n',
        encoding="utf-8",
    )
    return str(path)


def kinds_of_points(folder: Path) -> Iterator[Points]:
    """Yield what is swept, from points that cost next to nothing to those that take long."""
    bandwidth, nodes = "cluster.inter_node.bandwidth", "cluster.num_nodes"
    bert = "bert_base_10gbit"
    cheap = cheap_scenario(folder)
    yield Points("one fused all-reduce, 1 to 64 nodes", cheap, {}, {nodes: list(range(1, 65)), bandwidth: rates(150)})
    for count in (8, 64, 512):
        yield Points(f"BERT-Base, BinSGDM and DDP, {count} nodes", bert, {nodes: count}, {bandwidth: rates(3_000)})
    drawn = {nodes: 8, "run.draws": 20}
    yield Points("the same with 20 draws, 8 nodes", bert, drawn, {bandwidth: rates(600)})
    for count in (8, 64):
        varied = {nodes: count, "run.draws": 0, "cluster.faults": JITTER, "run.iterations": 20}
        points = 80 if count == 8 else 60
        yield Points(f"the same with 20 iterations and jitter, {count} nodes", bert, varied, {bandwidth: rates(points)})


class Side(NamedTuple):
    """One of the two that are compared.

    Attributes:
        pool: of workers.
        processes: all that simulate or hand out points: this one, and those that were started for the pool.
    """

    pool: Pool
    processes: list[psutil.Process]

    def cpu_s(self) -> float:
        """Return the CPU time that all processes have taken by now."""
        return sum(sum(process.cpu_times()[:2]) for process in self.processes)


class Turn(NamedTuple):
    """How long a sweep took."""

    wall_s: float
    cpu_s: float


def turn(side: Side, points: Sequence[SweepPoint | RefusedPoint]) -> Turn:
    """Sweep once."""
    cpu_s, start = side.cpu_s(), time.perf_counter()
    sweeps.run(points, pool=side.pool)
    return Turn(time.perf_counter() - start, side.cpu_s() - cpu_s)


def compared(kind: Points, local: Side, dask: Side) -> Cells:
    """Sweep on both in turns, and return a row."""
    points = sweeps.points_of(load_experiment(kind.scenario, kind.settings, kind.axes))
    few = points[:60]
    assert sweeps.run(few, pool=dask.pool) == sweeps.run(few, pool=local.pool)  # modules and schedules are loaded
    turns = [(turn(local, points), turn(dask, points)) for _ in range(TURNS)]
    per_cpu_s = [len(points) / statistics.median(side.cpu_s for side in sides) for sides in zip(*turns, strict=True)]
    by_cpu = _ratio([one.cpu_s / other.cpu_s for one, other in turns])
    by_wall = _ratio([one.wall_s / other.wall_s for one, other in turns])
    return kind.title, f"{len(points):,}", *(f"{rate:,.0f}" for rate in per_cpu_s), by_cpu, by_wall


def _ratio(ratios: Sequence[float]) -> str:
    """Return the median of ratios, with the least and the largest."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def workers_rows(folder: Path) -> Iterator[Cells]:
    """Yield the comparison of local workers with those of Dask, a row for each kind of points below the heads.

    Points per second of CPU time of all processes, with as many workers as cores, which have simulated before:
    `--jobs`, then `--dask-local`, in turns. Medians; ratios are medians of those of the turns, with the least and the
    largest. Above 1, Dask is faster.
    """
    yield "points", "number", "local", "Dask", "Dask / local", "the same by wall time"
    cores, this = workers.num_cores(), psutil.Process()
    with workers.local_pool(cores) as local:
        sweeps.run(sweeps.points_of(load_experiment("speedup")), pool=local)
        started = this.children(recursive=True)
        with workers.dask_local(cores) as dask:
            others = [process for process in this.children(recursive=True) if process not in started]
            for kind in kinds_of_points(folder):
                yield compared(kind, Side(local, [this, *started]), Side(dask, [this, *others]))
    for option in ("--jobs", "--dask-local"):
        print(f"a command with two points and {option} {cores} takes {format_seconds(_first_point_s(option, cores))}")


def _first_point_s(option: str, count: int) -> float:
    """Return how long a sweep of two points takes as a whole; the best of three."""
    words = ["sweep", "bert_base_10gbit", "--set", "cluster.num_nodes=2,4", "--draws", "0", option, str(count)]
    times = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "simnet", *words], cwd=HERE, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


class Peak(NamedTuple):
    """What a sweep took.

    Attributes:
        points: how many.
        mib: of the largest process, at its peak.
        wall_s: from start to end.
    """

    points: int
    mib: float
    wall_s: float


SIZES = {"parquet": (1_000, 10_000, 100_000, 1_000_000), "csv": (1_000, 10_000, 100_000)}
TITLES = {"parquet": "streamed to Parquet", "csv": "held for CSV and JSON"}


def peak(form: str, points: int, folder: Path) -> Peak:
    """Sweep so many points in a process of its own."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    axes = {
        "cluster.num_nodes": ",".join(map(str, range(1, 11))),
        "cluster.inter_node.bandwidth": ",".join(f"{gbit} Gbit/s" for gbit in range(1, 101)),
        "workload.batch_per_rank": ",".join(map(str, range(1, points // 1_000 + 1))),
    }
    words = [word for key, values in axes.items() for word in ("--set", f"{key}={values}")]
    command = ["-m", "simnet", "sweep", cheap_scenario(folder), *words, "--format", form, "-o", str(out)]
    command += ["--jobs", str(workers.num_cores())]
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, *command], cwd=HERE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    told = process.stderr.read()
    process.stderr.close()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, told
    shutil.rmtree(out)
    return Peak(points, used.ru_maxrss / 1024, time.perf_counter() - start)


def memory_rows(folder: Path, figure_path: Path) -> Iterator[Cells]:
    """Yield the memory of the client by the number of points below the heads, and draw it.

    `simnet sweep` over a cheap scenario (one fused all-reduce): the peak of the client, where results stream to a
    Parquet file, and where they are held for CSV and JSON, of 100,000 points at most. Of a streamed point it keeps 8
    bytes; the journal takes 3 kB a point on disk. One run each.
    """
    found = {form: [peak(form, points, folder) for points in sizes] for form, sizes in SIZES.items()}
    draw_memory(found, figure_path)
    yield "points", *(f"{title}: peak, time, points/s" for title in TITLES.values())
    for index, points in enumerate(SIZES["parquet"]):
        cells = (_text(peaks[index]) if index < len(peaks) else "refused" for peaks in found.values())
        yield f"{points:,}", *cells


def _text(found: Peak) -> str:
    return f"{found.mib:.0f} MiB, {format_seconds(found.wall_s)}, {found.points / found.wall_s:,.0f}"


def draw_memory(found: dict[str, list[Peak]], path: Path) -> None:
    """Write the figure of memory over points."""
    from simnet.report import figure

    with figure.styled():
        made = figure.new(figure.COLUMN_IN, 2.4)
        axes = made.subplots()
        for (form, peaks), colour, marker in zip(found.items(), (figure.BLUE, figure.VERMILION), "os", strict=True):
            sizes, mib = [one.points for one in peaks], [one.mib for one in peaks]
            axes.plot(sizes, mib, color=colour, marker=marker, label=TITLES[form])
        axes.set(xscale="log", yscale="log", xlabel="points", ylabel="MiB, peak of the client", xlim=(600, 1_600_000))
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.set_xticks(SIZES["parquet"], [f"{points:,}" for points in SIZES["parquet"]])
        axes.xaxis.minorticks_off()
        figure.log_numbers(axes.yaxis, (1.0, 2.0, 5.0))
        axes.legend(loc="lower right")
        figure.write(made, path)


def main() -> None:
    """Print the tables, and write them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("workers", "memory"), help="one of the two tables")
    parser.add_argument("--docs", type=Path, help="the folder of evidence/")
    given = parser.parse_args()
    print(f"binsgdm {VERSION}, Python {platform.python_version()}, {workers.num_cores()} cores; {time.strftime('%F')}")
    with tempfile.TemporaryDirectory() as scratch:
        evidence = given.docs / "evidence" if given.docs else Path(scratch)
        figure_path, data = evidence / "figures" / FIGURE, evidence / "data"
        for folder in (figure_path.parent, data):
            folder.mkdir(exist_ok=True)
        tables = {"workers": workers_rows(Path(scratch)), "memory": memory_rows(Path(scratch), figure_path)}
        for name, rows in tables.items():
            if given.only in (None, name):
                heads, *found = _printed(rows)
                (data / f"benchmarks-{name}.csv").write_text(Table(heads, found).csv(), encoding="utf-8")


def _printed(rows: Iterator[Cells]) -> Iterator[Cells]:
    for row in rows:
        print(*row, sep=" | ", flush=True)
        yield row


if __name__ == "__main__":
    main()

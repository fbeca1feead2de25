"""Sweeps on a real scheduler of Dask: workers and the scheduler are killed in mid-sweep."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.cli import run
from tests.helpers.dask_processes import ROOT, DaskProcesses, dask_processes, wait_until
from tests.helpers.journals import num_written, rows
from tests.helpers.needs import needs
from tests.helpers.scenario_samples import pod, write

needs("distributed")
pytestmark = pytest.mark.slow
# Iterations that differ, and draws for jitter that the seed alone decides.
MANY = {"cluster.num_nodes": list(range(41)), "workload.batch_per_rank": [1, 2, 3, 4]}
NUM_POINTS, NUM_REFUSED = 164, 4
VARIED = {
    "cluster__faults": [{"kind": "compute_jitter", "cv": 0.05}],
    "strategy": {"kind": "all_reduce"},
    "baseline": {"kind": "all_reduce", "algorithm": "hierarchical"},
    "run__iterations": 5,
    "run__draws": 0,
}
RESULTS = ("results.json", "results.csv")


@pytest.fixture(scope="module")
def dask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskProcesses]:
    with dask_processes(tmp_path_factory.mktemp("dask")) as processes:
        yield processes


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("scenario") / "pod.toml", pod(sweep=MANY, **VARIED))


@pytest.fixture(scope="module")
def expected(scenario: Path, tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """What one process makes of it, point by point."""
    out = tmp_path_factory.mktemp("serial")
    assert run("sweep", str(scenario), "--jobs", "1", "-o", str(out)).exit_code == 0
    return _results(out)


def _results(out: Path) -> list[bytes]:
    return [(out / name).read_bytes() for name in RESULTS]


def _keys(out: Path) -> list[str]:
    return [row.key for row in rows(out)]


def _started(scenario: Path, dask: DaskProcesses, out: Path) -> subprocess.Popen[str]:
    """Start a sweep, and return when workers have finished some of its points."""
    process = _begun(scenario, dask.address, out)
    wait_until(
        lambda: process.poll() is not None or num_written(out) > NUM_REFUSED + 8,
        "points are finished",
    )
    assert process.poll() is None, process.communicate()
    return process


def _begun(scenario: Path, address: str, out: Path) -> subprocess.Popen[str]:
    words = ("sweep", str(scenario), "--scheduler", address, "-o", str(out))
    return subprocess.Popen(
        [sys.executable, "-m", "simnet", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, printed = process.communicate(timeout=60)
    return process.returncode, printed


def test_a_killed_worker_loses_and_doubles_nothing(
    scenario: Path, dask: DaskProcesses, expected: list[bytes], tmp_path: Path
) -> None:
    victim = dask.add_worker()
    process = _started(scenario, dask, tmp_path)
    victim.send_signal(signal.SIGKILL)
    finished = num_written(tmp_path)
    code, printed = _ended(process)
    assert (code, printed.count("\n")) == (0, 1), printed
    assert finished < NUM_POINTS
    assert len(_keys(tmp_path)) == len(set(_keys(tmp_path))) == NUM_POINTS
    assert _results(tmp_path) == expected


def test_a_killed_scheduler_is_told_in_a_sentence_and_the_sweep_goes_on_without_it(
    scenario: Path, expected: list[bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with dask_processes(tmp_path, num_workers=1) as processes:
        process = _started(scenario, processes, out)
        processes.scheduler.kill()
        code, printed = _ended(process)
    assert (code, printed.count("\n")) == (2, 1), printed
    rule = "the scheduler is gone; start it again: the same sweep resumes from the finished points"
    assert printed.startswith("simnet: --scheduler: ")
    assert printed.strip().endswith(rule)
    assert 0 < len(_keys(out)) < NUM_POINTS
    assert run("sweep", str(scenario), "--jobs", "1", "-o", str(out)).exit_code == 0
    assert _results(out) == expected

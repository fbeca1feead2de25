"""Sweeps as processes with workers: killed, interrupted, resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.journals import num_written, rows
from tests.helpers.scenario_samples import pod, write

ROOT = Path(__file__).parents[4]
LONGEST_S = 60.0
IN_WORKERS_AT_ONCE = """
from simnet.analysis import journal, sweeps
sweeps.PART_S = sweeps.PROBE_S = sweeps.WORKERS_PAY_S = journal.COMMIT_S = 0
from simnet.cli.main import main
main()
"""
# No nodes are refused: the points without any are skipped, and stand in the journal as well.
SOME = {"cluster.num_nodes": list(range(41)), "workload.batch_per_rank": [1, 2]}


def _started(command: list[str], out: Path) -> subprocess.Popen[str]:
    """Start a sweep in a process group of its own, and return once workers have finished some points."""
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + LONGEST_S
    while num_written(out) < 9:
        assert process.poll() is None, process.communicate(timeout=LONGEST_S)
        assert time.monotonic() < deadline, "no points are finished"
        time.sleep(0.002)
    return process


def _descendants(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def _gets_no_interrupts(pid: int) -> bool:
    """Tell whether Ctrl-C in the terminal leaves a process to its parent to end."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    masks = int(lines["SigIgn"], 16) | int(lines["SigBlk"], 16)
    return bool(masks >> (signal.SIGINT - 1) & 1)


def _all_end(pids: list[int]) -> bool:
    """Wait until none of the processes runs."""
    deadline = time.monotonic() + LONGEST_S
    while any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _results(out: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((out / "results.json").read_text())
    return result


def _uninterrupted(command: list[str], out: Path) -> dict[str, Any]:
    subprocess.run([*command[:-1], str(out)], cwd=ROOT, capture_output=True, check=True)
    return _results(out)


"""Real processes, with workers from the second point on."""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    path = write(tmp_path / "pod.toml", pod(sweep=SOME))
    options = ["--jobs", "2", "-o", str(tmp_path / "out")]
    return [sys.executable, "-c", IN_WORKERS_AT_ONCE, "sweep", str(path), *options]


@pytest.mark.slow
def test_a_killed_sweep_resumes_and_loses_nothing(command: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = _started(command, out)
    workers = _descendants(process.pid)
    process.kill()
    process.communicate(timeout=LONGEST_S)  # workers have its output, too
    assert not (out / "results.json").exists()
    assert _all_end(workers)
    finished = len(rows(out))
    resumed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "82 points in " in resumed.stderr
    assert f", 2 of them refused, {finished} of them finished before" in resumed.stderr
    assert _results(out) == _uninterrupted(command, tmp_path / "fresh")
    assert [point["set"]["cluster.num_nodes"] for point in _results(out)["refused"]] == [0] * 2


@pytest.mark.slow
def test_an_interrupt_says_how_to_resume_and_exits_130(command: list[str], tmp_path: Path) -> None:
    process = _started(command, tmp_path / "out")
    assert all(map(_gets_no_interrupts, _descendants(process.pid)))
    os.killpg(process.pid, signal.SIGINT)
    _, printed = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 130
    assert printed.strip() == "simnet: sweep: interrupted; the same command resumes from the finished points"

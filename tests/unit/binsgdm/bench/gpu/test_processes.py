"""The processes of a part: what they report, and that none is left, however they or their parent end."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from binsgdm.bench.gpu import processes
from binsgdm.bench.gpu.worker import PartTask

ROOT = Path(__file__).parents[5]
HEAD = (
    "import json, os, sys, time; task = json.loads(sys.argv[1]); rank = os.environ.get('RANK')\n"
    "def report(**what): os.write(task['report_fd'], (json.dumps(what) + '\\n').encode())\n"
)


def task() -> PartTask:
    return PartTask(
        module="", output="", device="cpu", quick=True, is_shared=False, seconds=1, launched=0, report_fd=-1
    )


def run(code: str, *, num_ranks: int = 0, limit_s: float = 20.0) -> tuple[processes.PartEnd, list[float]]:
    seen: list[float] = []
    end = processes.run(
        task(), num_ranks=num_ranks, limit_s=limit_s, progress=seen.append, worker=(sys.executable, "-c", HEAD + code)
    )
    return end, seen


def test_reports_of_progress_are_heard_and_a_part_is_done_when_all_its_processes_are():
    end, seen = run("report(done=0.5); time.sleep(0.5); report(done=1.0)")
    assert end.status == "done"
    assert seen[-1] == 1.0
    assert 0.5 in seen


@pytest.mark.parametrize(
    ("code", "status", "reason"),
    [
        ("report(skipped='no second card')", "skipped", "no second card"),
        ("print('last words', flush=True); report(failed='out of memory'); sys.exit(1)", "failed", "out of memory"),
        ("sys.exit(7)", "failed", "ended with exit code 7"),
        ("os.kill(os.getpid(), 11)", "failed", "ended by SIGSEGV"),
    ],
)
def test_a_part_says_why_it_was_not_done(code, status, reason):
    end, _ = run(code)
    assert (end.status, end.reason) == (status, reason)
    assert ("last words" in end.tail) == ("last words" in code)


def test_a_process_that_hangs_is_ended_with_all_that_it_has_started(tmp_path):
    started = tmp_path / "pid"
    end, _ = run(
        "import subprocess\nchild = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(started)!r}, 'w').write(str(child.pid)); report(done=0.25); time.sleep(60)",
        limit_s=4.0,  # a busy machine takes its time to start a Python
    )
    assert end.status == "failed"
    assert end.reason == "was ended after 4 s at 25%: it hangs, or is too slow"
    wait_until_gone(int(started.read_text()))


def test_the_first_rank_that_fails_ends_the_others():
    # Rank 0 would keep this test until it is ended as one that hangs.
    end, _ = run("report(failed='rank 1') if rank == '1' else time.sleep(9999)\nsys.exit(rank == '1')", num_ranks=2)
    assert (end.status, end.reason) == ("failed", "rank 1")


def test_ranks_get_what_torchrun_gives_and_a_process_alone_gets_nothing_of_it(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    (alone,) = processes.environments(0)
    assert not set(processes.RANK_VARIABLES) & set(alone)
    first, second = processes.environments(2)
    assert [one["RANK"] + one["LOCAL_RANK"] + one["WORLD_SIZE"] for one in (first, second)] == ["002", "112"]
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    assert (ROOT / "binsgdm").is_dir()
    assert first["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)


def test_processes_end_with_a_parent_that_is_killed(tmp_path):
    """The worker's own watch is what ends it: its parent has no chance to."""
    mine = (
        "import os, sys, time; from binsgdm.bench.gpu import worker; worker.end_with_parent()\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    parent = (
        "import sys; from tests.unit.binsgdm.bench.gpu.test_processes import processes, task\n"
        f"processes.run(task(), num_ranks=0, limit_s=60, progress=print, worker=(sys.executable, '-c', {mine!r}))"
    )
    with subprocess.Popen([sys.executable, "-c", parent], cwd=ROOT, stdout=subprocess.DEVNULL) as started:
        deadline = time.monotonic() + 50
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        started.send_signal(signal.SIGKILL)
    wait_until_gone(int((tmp_path / "pid").read_text()))


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 50
    while not is_gone(pid):
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Tell whether a process has ended; one that nobody has waited for counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_ranks_that_could_not_meet_are_not_started(monkeypatch, tmp_path):
    def unreachable(*_):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    started = tmp_path / "started"
    code = f"open({str(started)!r}, 'w')"
    end, _ = run(code, num_ranks=1)
    assert (end.status, end.reason) == ("failed", processes.NO_LOOPBACK)
    assert not started.exists()
    assert run(code)[0].status == "done", "a process alone needs no other"

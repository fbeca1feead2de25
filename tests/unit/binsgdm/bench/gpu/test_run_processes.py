"""The processes of a part: what they report, and that none is left, however they or their parent end."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")

from binsgdm.bench.gpu.parts import RANK_VARIABLES, environments
from binsgdm.bench.gpu.run import NO_LOOPBACK, run_processes

ROOT = Path(__file__).parents[5]
HEAD = (
    "import json, os, sys, time; task = json.loads(sys.argv[1]); rank = os.environ.get('RANK')\n"
    "def report(**what): os.write(task['report_fd'], (json.dumps(what) + '\\n').encode())\n"
)


def run(code: str, *, num_ranks: int = 0, limit_s: float = 20.0) -> tuple[str, str, list[float]]:
    seen: list[float] = []
    worker = (sys.executable, "-c", HEAD + code)
    reason, tail = run_processes({}, num_ranks=num_ranks, limit_s=limit_s, progress=seen.append, worker=worker)
    return reason, tail, seen


def test_reports_of_progress_are_heard_and_a_part_is_done_when_all_its_processes_are():
    reason, _, seen = run("report(done=0.5); time.sleep(0.5); report(done=1.0)")
    assert not reason
    assert seen[-1] == 1.0
    assert 0.5 in seen


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("print('last words', flush=True); report(failed='out of memory'); sys.exit(1)", "out of memory"),
        ("sys.exit(7)", "ended with exit code 7"),
        ("os.kill(os.getpid(), 11)", "ended by SIGSEGV"),
    ],
)
def test_a_part_says_why_it_was_not_done(code, reason):
    found, tail, _ = run(code)
    assert found == reason
    assert ("last words" in tail) == ("last words" in code)


def test_a_process_that_hangs_is_ended_with_all_that_it_has_started(tmp_path):
    started = tmp_path / "pid"
    reason, *_ = run(
        "import subprocess\nchild = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(started)!r}, 'w').write(str(child.pid)); report(done=0.25); time.sleep(60)",
        limit_s=4.0,  # a busy machine takes its time to start a Python
    )
    assert reason == "was ended after 4 s at 25%: it hangs, or is too slow"
    wait_until_gone(int(started.read_text()))


def test_the_first_rank_that_fails_ends_the_others():
    # Rank 0 would keep this test until it is ended as one that hangs.
    reason, *_ = run("report(failed='rank 1') if rank == '1' else time.sleep(9999)\nsys.exit(rank == '1')", num_ranks=2)
    assert reason == "rank 1"


def test_ranks_get_what_torchrun_gives_and_a_process_alone_gets_nothing_of_it(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    (alone,) = environments(0)
    assert not set(RANK_VARIABLES) & set(alone)
    first, second = environments(2)
    assert [one["RANK"] + one["LOCAL_RANK"] + one["WORLD_SIZE"] for one in (first, second)] == ["002", "112"]
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    assert (ROOT / "binsgdm").is_dir()
    assert first["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)


def test_processes_end_with_a_parent_that_is_killed(tmp_path):
    """The worker's own watch is what ends it: its parent has no chance to."""
    mine = (
        "import os, sys, time; from binsgdm.bench.gpu import parts; parts.end_with_parent()\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    parent = (
        "import sys; from binsgdm.bench.gpu.run import run_processes\n"
        f"run_processes({{}}, num_ranks=0, limit_s=60, progress=print, worker=(sys.executable, '-c', {mine!r}))"
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
    assert run(code, num_ranks=1)[0] == NO_LOOPBACK
    assert not started.exists()
    assert not run(code)[0], "a process alone needs no other"

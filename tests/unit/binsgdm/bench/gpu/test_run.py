"""The parts one after another: time is shared out, what fails stops nothing else, and no process is left."""

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
from binsgdm.bench.gpu import parts as parts_module
from binsgdm.bench.gpu import run as run_module
from binsgdm.bench.gpu.parts import RANK_VARIABLES, Part, environments
from binsgdm.bench.gpu.run import NO_LOOPBACK, CardRun, read_card, run_processes
from binsgdm.bench.record import WHAT
from binsgdm.errors import BinsgdmError

CARD = {"name": "made", "num_cards": 0}
PARTS = [
    Part(name=name, about="", seconds=seconds, measure=name) for name, seconds in (("a", 100), ("b", 300), ("c", 140))
]
Ends = tuple[str, str]


def skipping(name: str) -> list[Part]:
    """Return the parts, this one of which needs two cards."""
    return [replace(part, alone="one card") if part.name == name else part for part in PARTS]


def run_all(
    folder: Path, run: Callable[..., Ends], parts: Sequence[Part] = PARTS, *, starts_anew: bool = False, **settings: Any
) -> bool:
    settings = {"budget_s": 540.0, "num_ranks": 1} | settings
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "run_processes", run)
        return card(folder, starts_anew=starts_anew).run(parts, **settings)


def card(folder: Path, *, device: str = "cpu", starts_anew: bool = False, **software: str) -> CardRun:
    found = {"card": CARD, "software": {"torch": "2.11"} | software, "is_shared": False, "notes": ["shared"]}
    return CardRun(folder, found, device=device, quick=True, starts_anew=starts_anew)


def writes(**ends: str | BaseException) -> Callable[..., Ends]:
    """Return what runs a part: it writes a file, unless it shall end in another way; "wrong" is a failed check."""

    def run(task: dict[str, Any], **_: Any) -> Ends:
        end = ends.get(task["measure"], "")
        if isinstance(end, BaseException):
            raise end
        if end in {"", "wrong"}:
            checks = [{"name": "x", "passed": not end, "count": 1, "detail": ""}]
            Path(task["output"]).write_text(json.dumps({"what": WHAT, "series": [], "checks": checks}))
            return "", ""
        return end, "a traceback"

    return run


def ended(text: str) -> list[str]:
    """Return which parts are said to have ended, and how, of what was printed on stderr."""
    return re.findall(r"\[(\d/\d\] \w+ \w+) in", text)


def states(folder: Path) -> dict[str, str]:
    content = json.loads((folder / "card.json").read_text())
    return {name: state["status"] for name, state in content["parts"].items()}


def test_every_part_is_run_once_and_its_file_is_what_counts(tmp_path, capsys):
    assert run_all(tmp_path, writes())
    capsys.readouterr()
    assert states(tmp_path) == {"a": "done", "b": "done", "c": "done"}
    assert not run_all(tmp_path, writes(b="broke"), again=["b"])
    assert ended(capsys.readouterr().err) == ["1/1] b failed"]
    assert states(tmp_path) == {"a": "done", "b": "failed", "c": "done"}
    reason = json.loads((tmp_path / "card.json").read_text())["parts"]["b"]["reason"]
    assert reason == "broke; b.json is of an earlier run", "what an earlier run has measured is not thrown away"


def test_a_part_that_fails_stops_no_other_and_is_tried_again(tmp_path):
    assert not run_all(tmp_path, writes(a="out of memory"), skipping("c"))
    assert states(tmp_path) == {"a": "failed", "b": "done", "c": "skipped"}
    content = json.loads((tmp_path / "card.json").read_text())["parts"]
    assert (content["a"]["reason"], content["a"]["tail"]) == ("out of memory", "a traceback")
    assert content["c"]["reason"] == "one card"
    assert run_all(tmp_path, writes(), skipping("c"))
    assert states(tmp_path) == {"a": "done", "b": "done", "c": "skipped"}
    assert run_all(tmp_path, writes(), skipping("c"), num_ranks=2)
    assert states(tmp_path) == {"a": "done", "b": "done", "c": "done"}


def test_a_run_that_is_interrupted_goes_on_with_the_part_it_was_in(tmp_path, capsys):
    (tmp_path / ".measure-left").write_text("half")
    with pytest.raises(KeyboardInterrupt):
        run_all(tmp_path, writes(b=KeyboardInterrupt()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "card.json"]
    assert states(tmp_path) == {"a": "done", "b": "running"}
    capsys.readouterr()
    assert run_all(tmp_path, writes())
    assert ended(capsys.readouterr().err) == ["1/2] b done", "2/2] c done"]


def test_a_part_without_a_file_and_one_with_a_failed_check_are_told_by_the_outcome(tmp_path):
    assert not run_all(tmp_path, lambda task, **_: ("", ""), PARTS[:1])
    assert states(tmp_path) == {"a": "failed"}
    assert not run_all(tmp_path, writes(b="wrong"))


class Clock:
    """A clock that only what is run moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(run_module.time, "monotonic", lambda: self.now_s)

    def passes(self, taken_s: Callable[[dict[str, Any], float], float]) -> Callable[..., Ends]:
        """Return what runs parts that take so long of what they were given and of their limit."""

        def run(task: dict[str, Any], *, limit_s: float, **_: Any) -> Ends:
            assert task["limit_s"] == limit_s
            taken = taken_s(task, limit_s)
            self.now_s += min(taken, limit_s)
            return ("too slow", "") if taken >= limit_s else writes()(task)

        return run


@pytest.mark.parametrize(
    ("budget_s", "hanging"), [(540.0, {"kernels"}), (450.0, {"step", "models"}), (60.0, {"links"}), (1.0, None)]
)
def test_whatever_hangs_the_whole_run_ends_with_its_budget(budget_s, hanging, tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    names = {part.measure: part.name for part in parts_module.PARTS}

    def taken_s(task: dict[str, Any], limit_s: float) -> float:
        return limit_s if hanging is None or names[task["measure"]] in hanging else task["seconds"]

    began_s = clock.now_s
    slow = clock.passes(taken_s)
    assert not run_all(tmp_path, slow, parts_module.PARTS, budget_s=budget_s, spent_s=8.0, num_ranks=2)
    assert clock.now_s - began_s <= budget_s - 8.0 + run_module.OVER_S
    ends = json.loads((tmp_path / "card.json").read_text())["parts"]
    assert set(ends) == {part.name for part in parts_module.PARTS}
    if hanging == {"kernels"} and budget_s > 60:
        assert [name for name, state in ends.items() if state["status"] != "done"] == ["kernels"]
    if hanging is None:
        assert ends["links"]["reason"].startswith("no time was left: the same command goes on")


@pytest.mark.slow
def test_processes_that_hang_are_ended_with_the_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "OVER_S", 0.5)
    monkeypatch.setattr(run_module, "LEAST_S", 0.2)
    hangs = (sys.executable, "-c", "import time; time.sleep(9999)")
    assert not run_all(tmp_path, partial(run_processes, worker=hangs), budget_s=1.0)
    reasons = [state["reason"] for state in json.loads((tmp_path / "card.json").read_text())["parts"].values()]
    assert reasons[0].startswith("was ended after ")
    assert reasons[1:] == [run_module.NO_TIME] * 2


def with_driver(folder: Path, driver: str, **software: str) -> CardRun:
    made = card(folder, device="cuda", driver=driver, **software)
    made.set_part("kernels", status="done")
    return made


@pytest.mark.parametrize(
    ("driver", "software", "said"),
    [
        ("590.1", {}, "driver: was measured with '580.1', and here is '590.1'"),
        ("", {}, "driver: was measured with '580.1', and here is ''"),
        ("580.2", {"torch": "2.12"}, "torch: was measured with '2.11', and here is '2.12'"),
    ],
)
def test_another_driver_or_torch_is_refused(driver, software, said, tmp_path):
    with_driver(tmp_path, "580.0.1")
    assert with_driver(tmp_path, "580.1"), "of the same major version"
    with pytest.raises(BinsgdmError, match=said):
        with_driver(tmp_path, driver, **software)


@pytest.mark.parametrize("text", ["", "[]", '{"what": "simnet card", "card": 3}'])
def test_damaged_files_are_refused_and_stay_unless_their_part_is_measured_again(text, tmp_path):
    run_all(tmp_path, writes())
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(BinsgdmError, match=r"b\.json: is no measurement file.*--only b"):
        run_all(tmp_path, writes())
    assert (tmp_path / "b.json").read_text() == text
    assert run_all(tmp_path, writes(), skipping("b"), again=["b"])
    assert not (tmp_path / "b.json").exists()
    (tmp_path / "card.json").write_text(text)
    with pytest.raises(BinsgdmError, match=r"card\.json: is no card\.json of simnet measure gpu"):
        read_card(tmp_path)


def test_two_runs_never_share_a_folder_nor_does_one_remove_what_the_other_has(tmp_path):
    (tmp_path / "a.json").write_text("of the other")
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(BinsgdmError, match="another run measures into it"):
        run_all(tmp_path, writes(), starts_anew=True)
    assert (tmp_path / "a.json").exists()
    os.close(held)
    assert not run_all(tmp_path, writes(a="x"), starts_anew=True)
    assert not (tmp_path / "a.json").exists()


ROOT = Path(__file__).parents[5]
HEAD = (
    "import json, os, sys, time; task = json.loads(sys.argv[1]); rank = os.environ.get('RANK')\n"
    "def report(**what): os.write(task['report_fd'], (json.dumps(what) + '\\n').encode())\n"
)


def process(code: str, *, num_ranks: int = 0, limit_s: float = 20.0) -> tuple[str, str, list[float]]:
    seen: list[float] = []
    worker = (sys.executable, "-c", HEAD + code)
    reason, tail = run_processes({}, num_ranks=num_ranks, limit_s=limit_s, progress=seen.append, worker=worker)
    return reason, tail, seen


@pytest.mark.slow
def test_reports_of_progress_are_heard_and_a_part_is_done_when_all_its_processes_are():
    reason, _, seen = process("report(done=0.5); time.sleep(0.5); report(done=1.0)")
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
    found, tail, _ = process(code)
    assert found == reason
    assert ("last words" in tail) == ("last words" in code)


@pytest.mark.slow
def test_a_process_that_hangs_is_ended_with_all_that_it_has_started(tmp_path):
    started = tmp_path / "pid"
    reason, *_ = process(
        "import subprocess\nchild = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(started)!r}, 'w').write(str(child.pid)); report(done=0.25); time.sleep(60)",
        limit_s=4.0,  # a busy machine takes its time to start a Python
    )
    assert reason == "was ended after 4 s at 25%: it hangs, or is too slow"
    wait_until_gone(int(started.read_text()))


def test_the_first_rank_that_fails_ends_the_others():
    # Rank 0 would keep this test until it is ended as one that hangs.
    reason, *_ = process(
        "report(failed='rank 1') if rank == '1' else time.sleep(9999)\nsys.exit(rank == '1')", num_ranks=2
    )
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


@pytest.mark.slow
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
    assert process(code, num_ranks=1)[0] == NO_LOOPBACK
    assert not started.exists()
    assert not process(code)[0], "a process alone needs no other"

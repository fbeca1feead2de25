"""The parts one after another: time is shared out, what is done stays, and what fails stops nothing else."""

import fcntl
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")

from binsgdm.bench.gpu import parts as parts_module
from binsgdm.bench.gpu import processes
from binsgdm.bench.gpu import run as run_module
from binsgdm.bench.gpu.parts import Part
from binsgdm.bench.gpu.preflight import Preflight
from binsgdm.bench.gpu.processes import PartEnd
from binsgdm.bench.gpu.run import CardFile, PartRunner, read_card
from binsgdm.bench.gpu.worker import PartTask
from binsgdm.bench.record import WHAT
from binsgdm.errors import BinsgdmError

CARD = {"name": "made", "num_cards": 0}
PARTS = [
    Part(name=name, about="", seconds=seconds, module=name) for name, seconds in (("a", 100), ("b", 300), ("c", 140))
]
DONE = PartEnd(status="done")


class Shown:
    """A display that nobody sees."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def begin(self, part: Part, number: int, count: int, seconds: float) -> None:
        self.ended.append(f"{number}/{count}")

    def progress(self, part_done: float, left_s: float) -> None:
        pass

    def end(self, part: Part, state: dict[str, Any], document: dict[str, Any] | None) -> None:
        self.ended[-1] += f" {part.name} {state['status']}"


def runner(folder: Path, run: Callable[..., PartEnd], **settings: Any) -> PartRunner:
    return PartRunner(
        folder=folder,
        card_file=card(folder),
        display=Shown(),  # type: ignore[arg-type]
        run=run,
        **{"device": "cpu", "quick": True, "budget_s": 540.0, "num_ranks": 1} | settings,
    )


def card(folder: Path, **changed: Any) -> CardFile:
    made = CardFile(folder, Preflight(card=CARD | changed, software={"torch": "2.11"}), device="cpu", quick=True)
    if former := read_card(folder):
        made.go_on_from(former)
    return made


def writes(**ends: PartEnd | BaseException) -> Callable[..., PartEnd]:
    """Return what runs a part: it writes a file, unless it shall end in another way."""

    def run(task: PartTask, **_: Any) -> PartEnd:
        end = ends.get(task.module, DONE)
        if isinstance(end, BaseException):
            raise end
        if end.status == "done":
            checks = [{"name": "x", "passed": "wrong" not in end.reason, "count": 1, "detail": ""}]
            Path(task.output).write_text(json.dumps({"what": WHAT, "series": [], "checks": checks}))
        return end

    return run


def states(folder: Path) -> dict[str, str]:
    content = json.loads((folder / "card.json").read_text())
    return {name: state["status"] for name, state in content["parts"].items()}


def test_every_part_is_run_once_and_its_file_is_what_counts(tmp_path):
    assert runner(tmp_path, writes()).run_all(PARTS)
    assert states(tmp_path) == {"a": "done", "b": "done", "c": "done"}
    again = runner(tmp_path, writes(b=PartEnd(status="failed", reason="broke")), again=frozenset("b"))
    assert not again.run_all(PARTS)
    assert again.display.ended == ["1/1 b failed"]  # type: ignore[attr-defined]
    assert states(tmp_path) == {"a": "done", "b": "failed", "c": "done"}
    reason = json.loads((tmp_path / "card.json").read_text())["parts"]["b"]["reason"]
    assert reason == "broke; b.json is of an earlier run", "what an earlier run has measured is not thrown away"


def test_a_part_that_fails_stops_no_other_and_is_tried_again(tmp_path):
    failed = PartEnd(status="failed", reason="out of memory", tail="a traceback")
    assert not runner(tmp_path, writes(a=failed, c=PartEnd(status="skipped", reason="one card"))).run_all(PARTS)
    assert states(tmp_path) == {"a": "failed", "b": "done", "c": "skipped"}
    content = json.loads((tmp_path / "card.json").read_text())["parts"]
    assert (content["a"]["reason"], content["a"]["tail"]) == ("out of memory", "a traceback")
    assert runner(tmp_path, writes(c=PartEnd(status="skipped", reason="one card"))).run_all(PARTS)
    assert states(tmp_path) == {"a": "done", "b": "done", "c": "skipped"}


def test_a_run_that_is_interrupted_goes_on_with_the_part_it_was_in(tmp_path):
    (tmp_path / ".measure-left").write_text("half")
    with pytest.raises(KeyboardInterrupt):
        runner(tmp_path, writes(b=KeyboardInterrupt())).run_all(PARTS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "card.json"]
    assert states(tmp_path) == {"a": "done", "b": "running"}
    second = runner(tmp_path, writes())
    assert second.run_all(PARTS)
    assert second.display.ended == ["1/2 b done", "2/2 c done"]  # type: ignore[attr-defined]


def test_a_part_without_a_file_and_one_with_a_failed_check_are_told_by_the_outcome(tmp_path):
    assert not runner(tmp_path, lambda task, **_: DONE).run_all(PARTS[:1])
    assert states(tmp_path) == {"a": "failed"}
    assert not runner(tmp_path, writes(b=PartEnd(status="done", reason="wrong"))).run_all(PARTS)


class Clock:
    """A clock that only what is run moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(run_module.time, "monotonic", lambda: self.now_s)

    def passes(self, taken_s: Callable[[PartTask, float], float]) -> Callable[..., PartEnd]:
        """Return what runs parts that take so long of what they were given and of their limit."""

        def run(task: PartTask, *, limit_s: float, **_: Any) -> PartEnd:
            assert task.limit_s == limit_s
            taken = taken_s(task, limit_s)
            self.now_s += min(taken, limit_s)
            return PartEnd(status="failed", reason="too slow") if taken >= limit_s else writes()(task)

        return run


@pytest.mark.parametrize(
    ("budget_s", "hanging"), [(540.0, {"kernels"}), (450.0, {"step", "models"}), (60.0, {"links"}), (1.0, None)]
)
def test_whatever_hangs_the_whole_run_ends_with_its_budget(budget_s, hanging, tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    names = {part.module: part.name for part in parts_module.PARTS}

    def taken_s(task: PartTask, limit_s: float) -> float:
        return limit_s if hanging is None or names[task.module] in hanging else task.seconds

    began_s = clock.now_s
    slow = runner(tmp_path, clock.passes(taken_s), budget_s=budget_s, spent_s=8.0)
    assert not slow.run_all(parts_module.PARTS)
    assert clock.now_s - began_s <= budget_s - 8.0 + run_module.OVER_S
    ends = json.loads((tmp_path / "card.json").read_text())["parts"]
    assert set(ends) == {part.name for part in parts_module.PARTS}
    if hanging == {"kernels"} and budget_s > 60:
        assert [name for name, state in ends.items() if state["status"] != "done"] == ["kernels"]
    if hanging is None:
        assert ends["links"]["reason"].startswith("no time was left: the same command goes on")


def test_processes_that_hang_are_ended_with_the_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "OVER_S", 0.5)
    monkeypatch.setattr(run_module, "LEAST_S", 0.2)
    hangs = (sys.executable, "-c", "import time; time.sleep(9999)")
    assert not runner(tmp_path, partial(processes.run, worker=hangs), budget_s=1.0).run_all(PARTS)
    reasons = [state["reason"] for state in json.loads((tmp_path / "card.json").read_text())["parts"].values()]
    assert reasons[0].startswith("was ended after ")
    assert reasons[1:] == [run_module.NO_TIME] * 2


def with_driver(folder: Path, driver: str, **software: str) -> CardFile:
    found = Preflight(card=CARD, software={"torch": "2.11", "driver": driver, **software}, notes=("shared",))
    made = CardFile(folder, found, device="cuda", quick=True)
    if former := read_card(folder):
        made.go_on_from(former)
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
    runner(tmp_path, writes()).run_all(PARTS)
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(BinsgdmError, match=r"b\.json: is no measurement file.*--only b"):
        runner(tmp_path, writes()).run_all(PARTS)
    assert (tmp_path / "b.json").read_text() == text
    again = runner(tmp_path, writes(b=PartEnd(status="skipped", reason="one card")), again=frozenset({"b"}))
    assert again.run_all(PARTS)
    assert not (tmp_path / "b.json").exists()
    (tmp_path / "card.json").write_text(text)
    with pytest.raises(BinsgdmError, match=r"card\.json: is no card\.json of simnet measure gpu"):
        read_card(tmp_path)


def test_two_runs_never_share_a_folder_nor_does_one_remove_what_the_other_has(tmp_path):
    (tmp_path / "a.json").write_text("of the other")
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(BinsgdmError, match="another run measures into it"):
        runner(tmp_path, writes(), starts_anew=True).run_all(PARTS)
    assert (tmp_path / "a.json").exists()
    os.close(held)
    failed = PartEnd(status="failed", reason="x")
    assert not runner(tmp_path, writes(a=failed), starts_anew=True).run_all(PARTS)
    assert not (tmp_path / "a.json").exists()

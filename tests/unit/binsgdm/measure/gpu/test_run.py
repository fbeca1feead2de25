"""The parts one after another: time is shared out, what is done stays, and what fails stops nothing else."""

import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from binsgdm.errors import BinsgdmError
from binsgdm.measure.gpu import card_file
from binsgdm.measure.gpu.parts import Part
from binsgdm.measure.gpu.preflight import Preflight
from binsgdm.measure.gpu.processes import PartEnd
from binsgdm.measure.gpu.run import PartRunner, Settings, share_s
from binsgdm.measure.gpu.worker import PartTask
from binsgdm.measure.record import WHAT

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
        settings=Settings(**{"device": "cpu", "quick": True, "budget_s": 540.0, "num_ranks": 1} | settings),
        display=Shown(),
        run=run,
    )


def card(folder: Path, **changed: Any) -> card_file.CardFile:
    made = card_file.CardFile(
        folder, Preflight(card=CARD | changed, software={"torch": "2.11"}), device="cpu", quick=True
    )
    if former := card_file.read(folder):
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


def test_a_check_that_fails_is_told_by_the_outcome(tmp_path):
    assert not runner(tmp_path, writes(b=PartEnd(status="done", reason="wrong"))).run_all(PARTS)


def test_a_run_that_is_interrupted_goes_on_with_the_part_it_was_in(tmp_path):
    (tmp_path / ".measure-left").write_text("half")
    with pytest.raises(KeyboardInterrupt):
        runner(tmp_path, writes(b=KeyboardInterrupt())).run_all(PARTS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "card.json"]
    assert states(tmp_path) == {"a": "done", "b": "running"}
    second = runner(tmp_path, writes())
    assert second.run_all(PARTS)
    assert second.display.ended == ["1/2 b done", "2/2 c done"]  # type: ignore[attr-defined]


def test_an_nvidia_smi_that_does_not_answer_is_asked_once(tmp_path, monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr("binsgdm.measure.gpu.nvidia_smi.readings", lambda: asked.append(1) or {})
    assert runner(tmp_path, writes(), device="cuda").run_all(PARTS)
    assert asked == [1]


def test_a_part_without_a_file_has_failed(tmp_path):
    assert not runner(tmp_path, lambda task, **_: DONE).run_all(PARTS[:1])
    assert states(tmp_path) == {"a": "failed"}


def test_ranks_are_for_parts_that_run_on_every_card(tmp_path):
    asked: dict[str, int] = {}

    def run(task: PartTask, *, num_ranks: int, **_: Any) -> PartEnd:
        asked[task.module] = num_ranks
        return writes()(task)

    runner(tmp_path, run, num_ranks=8).run_all([PARTS[0], replace(PARTS[1], every_card=True)])
    assert asked == {"a": 0, "b": 8}


@pytest.mark.parametrize(
    ("part", "pending", "budget_s", "left_s", "expected"),
    [
        (0, 3, 540, 540, 100),
        (1, 2, 540, 500, 300),  # 60 s were saved before: no part takes more than its share
        (1, 2, 540, 220, 150),  # others took longer: the rest shares what is left
        (2, 1, 540, -10, 5),
        (0, 3, 54, 54, 10),
    ],
)
def test_time_is_shared_out(part, pending, budget_s, left_s, expected):
    assert share_s(PARTS[part], PARTS[-pending:], budget_s, left_s) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"name": "other"}, "name: was measured with 'made', and here is 'other'")],
)
def test_a_folder_of_another_card_is_refused(changed, said, tmp_path):
    runner(tmp_path, writes()).run_all(PARTS)
    with pytest.raises(BinsgdmError, match=said):
        card(tmp_path, **changed)


def test_a_newer_card_json_is_refused(tmp_path):
    runner(tmp_path, writes()).run_all(PARTS)
    content = json.loads((tmp_path / "card.json").read_text()) | {"format": 2}
    (tmp_path / "card.json").write_text(json.dumps(content))
    with pytest.raises(BinsgdmError, match="format: 2: this version reads up to 1: update binsgdm"):
        card(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"what": "simnet measurements"}', '{"what": "simnet card", "card": 3}'])
def test_a_damaged_card_json_is_refused(text, tmp_path):
    (tmp_path / "card.json").write_text(text)
    with pytest.raises(BinsgdmError, match=r"card\.json: is no card\.json of simnet measure gpu"):
        card_file.read(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"what": "simnet measurements", "checks": 3}'])
def test_a_damaged_file_is_refused_unless_its_part_is_measured_again(text, tmp_path):
    runner(tmp_path, writes()).run_all(PARTS)
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(BinsgdmError, match=r"b\.json: is no measurement file.*--only b"):
        runner(tmp_path, writes()).run_all(PARTS)
    assert (tmp_path / "b.json").read_text() == text
    again = runner(tmp_path, writes(b=PartEnd(status="skipped", reason="one card")), again=frozenset({"b"}))
    assert again.run_all(PARTS)
    assert not (tmp_path / "b.json").exists()


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

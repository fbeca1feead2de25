"""README is short, and what it names is there; its commands are run by tests/example/test_shown_output.py."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_read_at_one_go() -> None:
    assert len(README.splitlines()) <= 110
    assert len(README.split()) <= 550


def test_it_has_one_figure_and_two_commands_before_the_first_answer() -> None:
    start = README.partition("## One answer")[0]
    assert len(re.findall(r"!\[", README)) == 1
    assert len(re.findall(r"^\$ ", start, flags=re.MULTILINE)) == 2


def test_it_leads_to_every_room() -> None:
    rooms = README.partition("## Where to read on")[2]
    assert [
        room for room in ("tutorial", "how-to", "reference", "explanation", "evidence") if f"[{room}]" not in rooms
    ] == []


def test_the_errors_that_are_named_are_those_of_the_campaign() -> None:
    page = (ROOT / "docs/evidence/simulator.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| \[DDP and BinSGDM\].*$", page, re.MULTILINE)
    assert [number for number in ("3.8 %", "18.2 %") if number not in README or number not in row] == []

"""README is short, and what it names is there; its commands are run by tests/example/test_shown_output.py."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_read_at_one_go() -> None:
    assert len(README.splitlines()) <= 110
    assert len(README.split()) <= 550


def test_the_errors_that_are_named_are_those_of_the_campaign() -> None:
    page = (ROOT / "docs/evidence/simulator.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| \[DDP and BinSGDM\].*$", page, re.MULTILINE)
    assert [number for number in ("3.8 %", "18.2 %") if number not in README or number not in row] == []

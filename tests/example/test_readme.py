"""README is short, and what it names is there; its commands are run by tests/example/test_shown_output.py."""

import re
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("page", "campaign", "numbers"),
    [
        ("README.md", "lab-campaign", ["3.8 %", "18.2 %"]),
        ("docs/evidence/lab-findings.md", "lab-campaign", ["3.8 %", "18.2 %", "120", "8.2 %"]),
        ("docs/evidence/lab-findings.md", "lab-systems", ["4.0 %", "15.6 %", "15 of 21", "8.2 %"]),
    ],
)
def test_the_errors_that_are_named_are_those_of_the_campaigns(page: str, campaign: str, numbers: list[str]) -> None:
    outcome = (
        (ROOT / "docs" / "evidence" / f"{campaign}.md").read_text(encoding="utf-8").partition("## Where this lab")[0]
    )
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [number for number in numbers if number not in text or number not in outcome] == []

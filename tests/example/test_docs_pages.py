"""Every page of docs says whom it is for, stands in the index once, is short, and names what is there."""

import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from docs import shown
from simnet.analysis.verdict import Verdict
from simnet.engine.result import PointResult, StrategyResult, SweepResult
from simnet.engine.scenario import RunSettings
from tests.helpers import markdown

DOCS = markdown.ROOT / "docs"
ROOMS = ("tutorial", "how-to", "reference", "explanation", "evidence")
PAGES = [page for room in ROOMS for page in markdown.pages(DOCS / room)]
MOST_WORDS = 700
"""Of a how-to, code left out."""
BUDGETS = {
    "tutorial": (2, 2_500),
    "how-to": (11, 7_200),
    "reference": (6, 18_100),
    "explanation": (5, 8_000),
    "evidence": (4, 10_400),
}
"""Most pages of a room, and most words of them together, code included."""


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def says_whom_it_is_for(text: str) -> bool:
    return markdown.first_sentence(text).startswith("For ")


@pytest.mark.parametrize("page", [DOCS / "README.md", *PAGES], ids=name_of)
def test_a_page_says_whom_it_is_for(page: Path) -> None:
    assert says_whom_it_is_for(page.read_text(encoding="utf-8"))


def test_every_page_stands_in_the_index_once() -> None:
    targets = re.findall(r"\]\(([^)#]+\.md)\)", (DOCS / "README.md").read_text(encoding="utf-8"))
    assert {name_of(page): count for page in PAGES if (count := targets.count(name_of(page))) != 1} == {}


@pytest.mark.parametrize("room", BUDGETS)
def test_a_room_keeps_to_its_pages_and_words(room: str) -> None:
    pages = markdown.pages(DOCS / room)
    most_pages, most_words = BUDGETS[room]
    assert len(pages) <= most_pages
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= most_words


@pytest.mark.parametrize("page", markdown.pages(DOCS / "how-to"), ids=lambda page: page.stem)
def test_a_how_to_is_one_task(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# How to ")
    assert markdown.num_words(text) <= MOST_WORDS


def test_the_verdicts_of_the_page_are_those_of_the_rule() -> None:
    table = (DOCS / "explanation/verdicts.md").read_text(encoding="utf-8").partition("## The references")[0]
    assert set(re.findall(r"^\| \*([^*]+)\* \|", table, re.MULTILINE)) == {*get_args(Verdict), "does not fit"}


def test_the_executors_of_the_page_are_those_of_the_simulator() -> None:
    text = (DOCS / "explanation/how-it-works.md").read_text(encoding="utf-8")
    table = text.partition("## Executors")[2].partition("##")[0]
    named = re.findall(r"^\| (\w+) \|", table, re.MULTILINE)[1:]
    assert named == ["folded", "grouped", "exact"]
    assert {*named, "auto"} == set(get_args(get_type_hints(RunSettings)["fidelity"]))


@pytest.mark.parametrize("page", markdown.pages(), ids=lambda page: page.relative_to(markdown.ROOT).as_posix())
def test_a_page_installs_nothing_from_an_index_that_is_not_there(page: Path) -> None:
    assert not re.search(r"pip install '?binsgdm", page.read_text(encoding="utf-8"))


ROOT = markdown.ROOT
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_read_at_one_go() -> None:
    assert len(README.splitlines()) <= 110
    assert len(README.split()) <= 550


def test_the_errors_that_are_named_are_those_of_the_campaign() -> None:
    page = (ROOT / "docs/evidence/simulator.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| \[DDP and BinSGDM\].*$", page, re.MULTILINE)
    assert [number for number in ("3.8 %", "18.2 %") if number not in README or number not in row] == []


TUTORIAL = (shown.ROOT / "docs" / "tutorial" / "first-answer.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TUTORIAL, re.DOTALL | re.MULTILINE)


def test_every_command_but_the_installation_shows_what_it_prints() -> None:
    followers = [kind for kind, _ in BLOCKS[1:]]
    asked = [
        (body, follower)
        for (kind, body), follower in zip(BLOCKS, followers, strict=False)
        if kind == "console" and shown.commands(body)
    ]
    assert len(asked) >= 6
    assert [body for body, follower in asked if follower != "text"] == []


FILES_PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "files.md").read_text(encoding="utf-8")


def test_every_key_of_a_result_is_named() -> None:
    named = set(re.findall(r"`(\w+)`|\"(\w+)\"", FILES_PAGE))
    words = {word for pair in named for word in pair if word}
    structs = (PointResult, StrategyResult, SweepResult)
    assert {key for struct in structs for key in struct.__struct_encode_fields__} - words == set()

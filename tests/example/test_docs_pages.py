"""Every page of docs says whom it is for, stands in the index once, is short, and names what is there."""

import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from simnet.analysis.verdict import Verdict
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
MOST_WORDS_OF_THE_INDEX = 300


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def says_whom_it_is_for(text: str) -> bool:
    return markdown.first_sentence(text).startswith("For ")


@pytest.mark.parametrize("page", [DOCS / "README.md", *PAGES], ids=name_of)
def test_a_page_says_whom_it_is_for(page: Path) -> None:
    assert says_whom_it_is_for(page.read_text(encoding="utf-8"))


def test_a_page_for_nobody_is_found() -> None:
    assert says_whom_it_is_for("# Title\n\nFor those who ask.\n")
    assert not says_whom_it_is_for("# Title\n\nThis page is for those who ask.\n\nFor others, too.\n")
    assert not says_whom_it_is_for("# Title\n\n![figure](x.png)\n\nFor those who ask.\n")


def test_every_page_stands_in_the_index_once() -> None:
    targets = re.findall(r"\]\(([^)#]+\.md)\)", (DOCS / "README.md").read_text(encoding="utf-8"))
    assert {name_of(page): count for page in PAGES if (count := targets.count(name_of(page))) != 1} == {}


@pytest.mark.parametrize("room", BUDGETS)
def test_a_room_keeps_to_its_pages_and_words(room: str) -> None:
    pages = markdown.pages(DOCS / room)
    most_pages, most_words = BUDGETS[room]
    assert len(pages) <= most_pages
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= most_words


def test_the_index_is_read_in_a_minute() -> None:
    assert len((DOCS / "README.md").read_text(encoding="utf-8").split()) <= MOST_WORDS_OF_THE_INDEX


@pytest.mark.parametrize("page", markdown.pages(DOCS / "how-to"), ids=lambda page: page.stem)
def test_a_how_to_is_one_task(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# How to ")
    assert markdown.num_words(text) <= MOST_WORDS


def test_words_are_counted_without_code() -> None:
    assert markdown.num_words("# Two words\n\nOf `code`.\n\n```toml\nx = 1\n```\n") == 5


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

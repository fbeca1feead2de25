"""Every page of docs says whom it is for, stands in the index once, and is short enough to be read."""

import re
import statistics
from pathlib import Path

import pytest

from tests.helpers import markdown

DOCS = markdown.ROOT / "docs"
ROOMS = ("tutorial", "how-to", "reference", "explanation", "evidence")
DECISIONS = DOCS / "explanation" / "adr"
PAGES = [page for room in ROOMS for page in markdown.pages(DOCS / room) if not re.match(r"\d", page.name)]
MOST_WORDS = 700


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


def test_half_of_the_pages_outside_evidence_are_short() -> None:
    pages = [page for page in PAGES if page.parent.name != "evidence"]
    for chosen in (pages, [*pages, *DECISIONS.glob("*.md")]):
        assert statistics.median(len(page.read_text(encoding="utf-8").split()) for page in chosen) <= MOST_WORDS


@pytest.mark.parametrize("page", markdown.pages(DOCS / "how-to"), ids=lambda page: page.stem)
def test_a_how_to_is_one_task(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# How to ")
    assert markdown.num_words(text) <= MOST_WORDS


def test_words_are_counted_without_code() -> None:
    assert markdown.num_words("# Two words\n\nOf `code`.\n\n```toml\nx = 1\n```\n") == 5

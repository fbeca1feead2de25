"""Every page of docs says whom it is for, stands in the index once, and is short enough to be read."""

import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ROOMS = ("tutorial", "how-to", "reference", "explanation", "evidence")
DECISIONS = DOCS / "explanation" / "adr"
PAGES = [page for room in ROOMS for page in sorted((DOCS / room).rglob("*.md")) if page.parent != DECISIONS]
MOST_WORDS = 700


def first_sentence(text: str) -> str:
    """Return the first words after the title."""
    return next(line for line in text.splitlines() if line and not line.startswith("#"))


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.parent.name != "evidence"],
    ids=lambda page: page.relative_to(DOCS).as_posix(),
)
def test_a_page_says_whom_it_is_for(page: Path) -> None:
    assert first_sentence(page.read_text(encoding="utf-8")).startswith("For ")


def test_every_page_stands_in_the_index_once() -> None:
    targets = re.findall(r"\]\(([^)#]+\.md)\)", (DOCS / "README.md").read_text(encoding="utf-8"))
    names = [page.relative_to(DOCS).as_posix() for page in PAGES]
    assert {name: targets.count(name) for name in names if targets.count(name) != 1} == {}


def test_half_of_the_pages_outside_evidence_are_short() -> None:
    pages = [page for page in DOCS.rglob("*.md") if page.parent.name != "evidence"]
    assert statistics.median(len(page.read_text(encoding="utf-8").split()) for page in pages) <= MOST_WORDS
    assert (
        statistics.median(len(page.read_text(encoding="utf-8").split()) for page in PAGES if page in pages)
        <= MOST_WORDS
    )


@pytest.mark.parametrize("page", sorted((DOCS / "how-to").glob("*.md")), ids=lambda page: page.stem)
def test_a_how_to_is_one_task(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# How to ")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert len(prose.split()) <= MOST_WORDS

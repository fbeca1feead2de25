"""Links and anchors of all pages lead somewhere, and every page of docs/ is found from its index."""

from pathlib import Path

import pytest

from tests.helpers import markdown

ROOT = markdown.ROOT
INDEX = ROOT / "docs" / "README.md"


@pytest.mark.parametrize("page", markdown.pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    assert markdown.broken(page) == []


def test_every_page_of_docs_is_found_from_the_index() -> None:
    found = markdown.reachable(INDEX)
    assert [page.relative_to(ROOT).as_posix() for page in markdown.pages(ROOT / "docs") if page not in found] == []

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


def test_a_broken_link_and_a_missing_anchor_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A page\n\n## `run`, and `all_reduce`: what?\n\n## Twice\n\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#run-and-all_reduce-what) [b](other.md#twice-1) [c](#here) [d](https://x.org/y) `[e](x.md)`\n"
        "```\n[f](y.md)\n## Not here\n```\n# Here\n[g](gone.md) [h](other.md#gone) ![i](gone.png) [j](#not-here)\n"
    )
    assert markdown.broken(page) == ["gone.md", "other.md#gone", "gone.png", "#not-here"]


def test_a_page_without_a_way_to_it_is_found(tmp_path: Path) -> None:
    for name, text in (("README.md", "[a](a.md)"), ("a.md", "[b](deep/b.md#x)"), ("deep/b.md", ""), ("lost.md", "")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = markdown.reachable(tmp_path / "README.md")
    assert set(markdown.pages(tmp_path)) - found == {tmp_path / "lost.md"}

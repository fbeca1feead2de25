"""Templates: pages, blocks as paragraphs, and what is refused."""

from pathlib import Path

import jinja2
import pytest

from simnet.core import templates


def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "a.md.jinja").write_text(text, encoding="utf-8")
    monkeypatch.setattr(templates, "root", lambda: tmp_path)


def test_a_block_is_paragraphs_of_one_line_with_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path, monkeypatch, "{% block about %}\none\ntwo {{ x | f('.1%') }}\n\nthree\n{% endblock %}")
    assert templates.paragraphs("a.md", "about", {"x": 0.5}) == "one two 50.0%\n\nthree"
    assert templates.paragraphs("a.md", "caveat", {"x": 0.5}) == ""


def test_a_name_that_is_not_given_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path, monkeypatch, "{{ missing }}")
    with pytest.raises(jinja2.UndefinedError, match="missing"):
        templates.page("a.md", {})


def test_paragraphs_are_filled_without_breaking_links() -> None:
    link = "[a](" + "b-" * 80 + ")"
    assert templates.wrapped(f"x {link} y\n\nz", "  ") == f"x\n  {link}\n  y\n\nz"

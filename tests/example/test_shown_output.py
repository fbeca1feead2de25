"""What pages show is what their commands print: README, tutorial, how-to."""

import re
from pathlib import Path

import pytest

from docs import shown
from tests.helpers.needs import needs

ROOT = shown.ROOT
PAGES = shown.pages()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_shows_what_its_commands_print(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if re.search(r"^\$ simnet (record|model) ", text, re.MULTILINE):
        needs("torch")
    assert shown.current(text, tmp_path) == text, f"run: python docs/shown.py --write {page}"


def test_the_pages_with_output_are_found() -> None:
    names = {page.relative_to(ROOT).as_posix() for page in PAGES}
    assert names >= {"README.md", "docs/tutorial/first-answer.md", "docs/how-to/stragglers.md", "docs/how-to/sweep.md"}


def page(*blocks: tuple[str, str]) -> str:
    return "\n".join(f"```{kind}\n{body}\n```\n" for kind, body in blocks)


def test_another_number_is_found(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    right = page(
        ("toml", '# ours.toml\nuse = "x"'), ("console", "$ wc -l ours.toml\n$ echo 1.05"), ("text", "2 ours.toml\n1.05")
    )
    assert shown.current(right, tmp_path / "one") == right
    assert shown.current(right.replace("ours.toml\n1.05", "ours.toml\n1.06"), tmp_path / "two") == right


def test_a_script_of_a_page_is_a_file(tmp_path: Path) -> None:
    text = page(("python", "# train.py\nprint(2 + 3)"), ("console", "$ python3 train.py"), ("text", "4"))
    assert shown.current(text, tmp_path) == text.replace("\n4\n", "\n5\n")


def test_a_command_that_fails_is_found(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"simnet show nothing: ended with 2: simnet: 'nothing'"):
        shown.current(page(("console", "$ simnet show nothing"), ("text", "")), tmp_path)


def test_what_installs_is_not_run() -> None:
    assert shown.commands("$ pip install .\n$ echo a \\\n    b\nshown\n$ . .venv/bin/activate\n") == [
        "echo a \\\n    b"
    ]

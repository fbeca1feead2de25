"""What pages show runs as written, in order, in an empty folder, and prints what they show."""

import re
from pathlib import Path

import pytest

from docs import shown
from tests.helpers.needs import needs

ROOT = shown.ROOT
PAGES = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in shown.pages()}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_runs_as_written_and_shows_what_its_commands_print(name: str, tmp_path: Path) -> None:
    text = PAGES[name]
    if re.search(r"simnet (?:record|model) \S|import torch|binsgdm\.\w+\(", text):
        needs("torch")
    run = shown.run(text, tmp_path)
    assert list(run.failures.values()) == []
    assert run.text == text, f"run: python docs/shown.py --write {name}"


@pytest.mark.parametrize("start", shown.NOT_RUN)
def test_what_is_not_run_is_shown_by_a_page(start: str) -> None:
    assert any(f"{before}{start}" in text for text in PAGES.values() for before in ("$ ", "    ", "`", "```python\n"))


def page(*blocks: tuple[str, str]) -> str:
    return "\n".join(f"```{kind}\n{body}\n```\n" for kind, body in blocks)


def test_another_number_is_found(tmp_path: Path) -> None:
    (tmp_path / "right").mkdir()
    (tmp_path / "wrong").mkdir()
    right = page(
        ("toml", '# ours.toml\nuse = "x"'), ("console", "$ wc -l ours.toml\n$ echo 1.05"), ("text", "2 ours.toml\n1.05")
    )
    assert shown.run(right, tmp_path / "right") == (right, {})
    wrong = right.replace("ours.toml\n1.05", "ours.toml\n1.06")
    assert shown.run(wrong, tmp_path / "wrong") == (right, {})


@pytest.mark.parametrize(
    "text",
    [
        "```console\n$ simnet show nothing | head -n 1\n```",
        "    simnet show nothing",
        "Ask `simnet show nothing`.",
        "Ask `simnet show\nnothing`.",
        "Write it by `simnet init ours.txt --yes`.",
        "Its command is `simnet simulated`.",
        "Its option is `simnet advise --every`.",
        "Draw it by `simnet advise bert_base_10gbit --drawing a.png`.",
    ],
)
def test_a_command_that_fails_is_found_wherever_it_stands(text: str, tmp_path: Path) -> None:
    (reason,) = shown.run(text, tmp_path).failures.values()
    assert "ended with 2: simnet: " in reason

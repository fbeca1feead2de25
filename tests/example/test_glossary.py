"""The glossary explains a word once, and files and commands use its words."""

import re
from collections import Counter

import pytest

from docs import commands, generate, keys
from simnet.cli.main import cli
from tests.helpers import markdown

GLOSSARY = (generate.REFERENCE / "glossary.md").read_text(encoding="utf-8")
REFUSED = {
    "worker": "rank",
    "communicator": "process group",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "packet": "send",
    "delay": "latency",
    "compressed_size": "wire bytes",
    "freeze_step": "dense steps",
    "warmup": "dense steps",
    "stall": "exposed communication",
    "lane": "rail",
}
"""Words of other projects, with the word that is used here."""


def words() -> list[str]:
    """Return the words that are explained."""
    rows = re.findall(r"^- \*\*(.+?)\*\*: ", GLOSSARY, re.MULTILINE)
    return [word.strip() for row in rows for word in row.split(",")]


def refused(names: list[str]) -> dict[str, str]:
    """Return the names that hold a refused word, with the right one."""
    found = {name: word for name in names for word in REFUSED if re.search(rf"(?<![a-z]){word}s?(?![a-z])", name)}
    return {name: REFUSED[word] for name, word in found.items()}


def test_a_word_is_explained_once() -> None:
    assert len(words()) > 50
    assert [word for word, count in Counter(words()).items() if count > 1] == []


def test_every_word_is_used() -> None:
    pages = [page for page in markdown.pages() if page.name not in ("glossary.md", "CHANGELOG.md")]
    sources = [path for package in ("simnet", "binsgdm") for path in (markdown.ROOT / package).rglob("*.py")]
    text = " ".join(path.read_text(encoding="utf-8") for path in (*pages, *sources))
    plain = " ".join(re.sub(r"[_-]", " ", text).lower().split())
    assert [word for word in words() if re.sub(r"[_-]", " ", word).lower() not in plain] == []


@pytest.mark.parametrize("struct", generate.STRUCTS, ids=lambda struct: struct.__name__)
def test_keys_of_files_use_these_words(struct) -> None:
    assert refused([key.name for key in keys.keys(struct, {})]) == {}


def test_options_use_these_words() -> None:
    options = [
        name for _, command in commands.commands(cli, "simnet") for param in command.params for name in param.opts
    ]
    assert refused([option.replace("-", "_") for option in options]) == {}

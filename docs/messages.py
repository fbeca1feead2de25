"""Print every text that users of simnet and binsgdm read: `python docs/messages.py [WORD]`, in one list, by kind.

Errors, headings, figures and other texts are read from the sources, help from the commands themselves, pages from the
templates. Computed parts stand in braces. With WORD, only the texts with that word.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # run as a script, from any directory

from docs import commands

PACKAGES = ("simnet", "binsgdm")
KINDS = ("error", "help", "heading", "figure", "text", "page")
TABLES = {"Table", "Column"}
DRAWING = {
    "set_title", "suptitle", "set_xlabel", "set_ylabel", "legend", "Patch", "Line2D", "Drawing", "axhspan", "axhline",
    "axvline", "errorbar", "fill_between",
}  # fmt: skip
WORDS = re.compile(r"[A-Za-z]{2,}[,;:.]? +[A-Za-z(]{2,}")


class Message(NamedTuple):
    """A text, its kind (one of `KINDS`), and where it stands."""

    kind: str
    where: str
    text: str


def messages() -> list[Message]:
    """Return every text by kind, those of a kind in the order of the sources."""
    texts = [*_from_sources(), *_from_commands(), *_from_templates()]
    return sorted(texts, key=lambda message: KINDS.index(message.kind))


def all_commands() -> list[tuple[str, click.Command]]:
    """Return every command with its name, such as ("simnet sweep", ...)."""
    from simnet.cli.main import cli

    return [("simnet", cli), *commands.commands(cli, "simnet")]


def _from_commands() -> Iterator[Message]:
    from simnet.cli.main import COMMANDS

    yield from (Message("help", f"simnet --help: {name}", text) for name, text in COMMANDS.items())
    for name, command in all_commands():
        yield Message("help", name, " ".join(f"{command.help} {command.epilog or ''}".split()))
        for option in command.params:
            if isinstance(option, click.Option):
                yield Message("help", f"{name} {option.opts[0]}", option.help or "")


def _from_templates() -> Iterator[Message]:
    for path in sorted((ROOT / "docs" / "templates").rglob("*.jinja")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if WORDS.search(re.sub(r"{%.*?%}|{{.*?}}", "", line)):
                yield Message("page", f"{path.relative_to(ROOT)}:{number}", line.strip())


def _from_sources() -> Iterator[Message]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for kind, node in _texts(tree, ""):
                text = " ".join(_text(node).split())
                if kind in ("heading", "figure") or WORDS.search(re.sub(r"{[^{}]*}", "", text)):
                    yield Message(kind or "text", f"{path.relative_to(ROOT)}:{node.lineno}", text)


def _texts(node: ast.AST, kind: str) -> Iterator[tuple[str, ast.expr]]:
    """Yield every string of a tree with its kind, docstrings and help of commands left out."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield kind, node
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    name = _called(node)
    if name in ("command", "group", "option", "argument", "rare", "mode", "Mode"):
        return
    if isinstance(node, ast.Raise):
        kind = "error"
    elif name in TABLES:
        kind = "heading"
    elif name in DRAWING:
        kind = "figure"
    for child in ast.iter_child_nodes(node):
        is_label = isinstance(child, ast.keyword) and child.arg in ("label", "title") and kind != "error"
        yield from _texts(child, "figure" if is_label and "axes" in ast.dump(node) else kind)


def _called(node: ast.AST) -> str:
    """Return the name of the function that a node calls; "" if the node is no call."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _text(node: ast.expr) -> str:
    """Return a string as a reader sees it, expressions in braces."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else f"{{{ast.unparse(getattr(node, 'value', node))}}}"


def listing(texts: Iterable[Message]) -> str:
    """Return texts as lines, under a line for each kind."""
    lines: list[str] = []
    kind = ""
    for message in texts:
        if message.kind != kind:
            kind = message.kind
            lines += ["", f"# {kind}"]
        lines.append(f"{message.where}: {message.text}")
    return "\n".join(lines).strip()


if __name__ == "__main__":
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    print(listing(message for message in messages() if word in message.text))

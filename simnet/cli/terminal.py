"""The one place that prints: no text of a file, a key or a name steers the terminal, and a refusal is one line."""

import os
import re
import sys
from typing import IO, TYPE_CHECKING, TextIO

import click

from simnet.core.errors import cut

if TYPE_CHECKING:
    from simnet.report.table import Page

# Most characters of a refusal, and of one word in it (a value, a path).
LINE, WORD = 500, 200
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
_LONG_WORD = re.compile(rf"\S{{{WORD + 1},}}")


def say(text: "str | Page") -> None:
    """Print text or a page on standard output, and a newline if it ends in none; on a terminal, tables are drawn.

    NO_COLOR leaves colours out (no-color.org), FORCE_COLOR draws into pipes too.
    """
    if isinstance(text, str):
        click.echo(harmless(text.removesuffix("\n")))
    elif _is_drawn(sys.stdout):
        import shutil  # which a pipe need not load

        # Click takes colours out of what goes into a pipe, unless it is told that they are wanted.
        click.echo(coloured(text.drawn(shutil.get_terminal_size().columns)), color=True)
    else:
        click.echo(harmless(str(text)))


def _is_drawn(stream: TextIO | None) -> bool:
    """Return whether tables are drawn: on a terminal that can, or anywhere if FORCE_COLOR is set (force-color.org)."""
    if stream is None or not _draws_lines(stream.encoding):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def _draws_lines(encoding: str | None) -> bool:
    """Return whether a terminal of some encoding has the characters that tables are drawn with."""
    return (encoding or "utf-8").lower().replace("-", "").startswith("utf")


def tell(text: str) -> None:
    """Print text on stderr; that nobody can read it (closed, or a full disk) is no reason to fail."""
    try:
        click.echo(harmless(text), err=True)
    except OSError:
        silence(sys.stderr)


def refuse(message: str) -> None:
    """Print a user's mistake on stderr, in one line."""
    tell(one_line(f"simnet: {message}"))


def harmless(text: str) -> str:
    """Return text without characters that steer a terminal: blanks and question marks in their place."""
    lines = text.split("\n")
    if all(line.isprintable() for line in lines):
        return text
    from simnet.report.text import printable

    return "\n".join(map(printable, lines))


def coloured(text: str) -> str:
    """Return text made harmless but for the colours of its tables."""
    return "".join(part if _COLOUR.fullmatch(part) else harmless(part) for part in _COLOUR.split(text))


def one_line(text: str) -> str:
    """Return text in one line, its long words and then all of it cut in the middle: its place and the repair stay.

    Example:
        >>> one_line(f"a.toml: {'9' * 900}: too large")[:20], len(one_line("word " * 200))
        ('a.toml: 999999999999', 500)
    """
    line = " ".join(harmless(text).split("\n"))
    return cut(_LONG_WORD.sub(lambda word: cut(word[0], WORD), line), LINE)


def silence(stream: IO[str] | None) -> None:
    """Send the rest of a stream to nowhere, else Python fails on it once more when it ends."""
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

"""What a command prints: plain in a pipe or a file, drawn in a terminal."""

import io
import re
import sys

import pytest

from simnet.cli import terminal
from simnet.report.page import Page
from simnet.report.table import Table

PAGE = Page(["", "All \x1b]0;x\x07 times:", "", Table(["step", "time"], [("forward", "1 ms")]), ""])


class Terminal(io.StringIO):
    """A stream that a person sees."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_drawn_tables_and_nothing_else_that_steers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Terminal()
    monkeypatch.setattr(sys, "stdout", seen)
    monkeypatch.setenv("TERM", "xterm")
    terminal.say(PAGE)
    lines = seen.getvalue().splitlines()
    assert lines[0] == "All ?]0;x? times:"
    assert re.search(r"\x1b\[1m *step", seen.getvalue())
    plain = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in lines]
    assert any(set(line.strip()) == {"─"} for line in plain)
    assert all(line.isprintable() for line in plain)

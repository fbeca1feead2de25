"""What a command prints: plain in a pipe or a file, drawn in a terminal."""

import io
import re
import sys
from pathlib import Path

import pytest

from simnet.cli import terminal
from simnet.cli.output import emit
from simnet.report.page import Page
from simnet.report.table import Table

PAGE = Page(["", "All \x1b]0;x\x07 times:", "", Table(["step", "time"], [("forward", "1 ms")]), ""])
PLAIN = "All ?]0;x? times:\n\nstep     time\nforward  1 ms"


class Terminal(io.StringIO):
    """A stream that a person sees."""

    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_plain_text_without_empty_lines_at_its_ends(capsys: pytest.CaptureFixture[str]) -> None:
    emit(PAGE, None)
    assert capsys.readouterr().out == f"{PLAIN}\n"


def test_a_file_gets_plain_text_also_from_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    emit(PAGE, tmp_path / "out")
    assert (tmp_path / "out").read_text() == f"{PLAIN}\n"


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


def test_a_terminal_without_the_lines_of_a_table_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Terminal()
    monkeypatch.setattr(type(seen), "encoding", "ascii", raising=False)
    monkeypatch.setattr(sys, "stdout", seen)
    terminal.say(PAGE)
    assert seen.getvalue() == f"{PLAIN}\n"

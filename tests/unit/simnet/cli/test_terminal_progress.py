"""The one progress bar."""

import io
import sys

import pytest

from simnet.cli.terminal import progress


class Terminal(io.StringIO):
    """A stream that a person sees."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_how_far_it_is_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", seen)
    with progress(4, "simulating") as advance:
        for _ in range(4):
            advance(1)
            sys.stdout.write("a result\n")
    assert "simulating" in seen.getvalue()
    assert "4/4" in seen.getvalue()
    assert capsys.readouterr().out == "a result\n" * 4


@pytest.mark.parametrize(("stream", "total"), [(io.StringIO(), 4), (None, 4), (Terminal(), 0)])
def test_without_a_terminal_or_with_nothing_to_do_nothing_is_shown(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None, total: int
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with progress(total, "simulating") as advance:
        advance(2)
    assert stream is None or stream.getvalue() == ""

"""The one table in a terminal, Markdown, CSV and HTML."""

import csv
import io
import re

import pytest

from simnet.report.table import Column, Table

TIMES = Table(
    [Column("system"), Column("time", "right", unit="ms"), "note"],
    [("DDP", "120.5", "baseline"), ("BinSGDM", "9.1", "")],
)
HOSTILE = Table(["a | b\x1b]0;x\x07"], [("<b>&\x1b[2J",), ("[red]x|y",)])


def test_a_row_with_a_cell_too_few_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rows: \('x',\): must have 2 cells"):
        Table(["a", "b"], [("x", "y"), ("x",)])


def test_every_form_aligns_numbers_escapes_what_is_its_markup_and_steers_no_terminal() -> None:
    assert TIMES.markdown().splitlines()[:3] == [
        "| system | time [ms] | note |",
        "|---|---:|---|",
        "| DDP | 120.5 | baseline |",
    ]
    assert HOSTILE.markdown().splitlines()[3] == "| [red]x\\|y |"
    read = list(csv.reader(io.StringIO(TIMES.csv())))
    assert read == [["system", "time [ms]", "note"], ["DDP", "120.5", "baseline"], ["BinSGDM", "9.1", ""]]
    assert '<td style="text-align: right">9.1</td>' in TIMES.html()
    assert "<td>&lt;b&gt;&amp;?[2J</td>" in HOSTILE.html()
    assert "<b>" not in HOSTILE.html()
    for text in (HOSTILE.terminal(), HOSTILE.markdown(), HOSTILE.html()):
        assert all(line.isprintable() for line in text.splitlines())


def plain(drawn: str) -> str:
    """Return what is drawn without colours."""
    return re.sub(r"\x1b\[[\d;]*m", "", drawn)


def test_a_drawn_table_has_every_cell_within_the_width_and_takes_no_cell_for_markup() -> None:
    def drawn(table: Table, width: int) -> str:
        return plain(table.terminal(width, rich=True))

    assert {"DDP", "120.5", "BinSGDM", "9.1", "baseline"} <= set(drawn(TIMES, 80).split())
    assert all(len(line) <= 20 for line in drawn(TIMES, 20).splitlines())
    assert "[red]x|y" in drawn(HOSTILE, 80)
    assert "\x1b[2J" not in HOSTILE.terminal(80, rich=True)


WIDE = Table(
    ["system", "changes", "speedup", "verdict", "to target", "bound by"],
    [
        ("BinSGDM, hierarchical", "compression", "5.18x (3.35-7.33)", "pays", "5.18-6.48x", "compute 53 %"),
        ("QSGD 4 bit, hierarchical-scatter-reduce", "compression", "2.88x", "within uncertainty", "never", "wire"),
    ],
)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_table_too_wide_for_a_terminal_is_drawn_in_blocks_that_break_no_word(width: int) -> None:
    drawn = plain(WIDE.terminal(width, rich=True))
    assert all(len(line) <= width for line in drawn.splitlines())
    words = {word for row in WIDE.rows for cell in row for word in cell.split()}
    assert words <= set(drawn.split())
    num_blocks = len(drawn.split("\n\n"))
    assert drawn.count("system") == num_blocks
    assert (num_blocks > 1) == (width < 120)


def test_verdicts_have_colours_unless_none_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    drawn = WIDE.terminal(200, rich=True)
    assert "\x1b[32mpays" in drawn
    assert "\x1b[33mwithin" in drawn
    monkeypatch.setenv("NO_COLOR", "1")
    without = WIDE.terminal(200, rich=True)
    assert re.findall(r"\x1b\[[34]\d", without) == []
    assert plain(without) == plain(drawn)

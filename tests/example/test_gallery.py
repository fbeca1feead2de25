"""The page of figures: every figure is there, and every command that draws one exists; `docs/gallery.py` runs them."""

import shlex
import struct
from pathlib import Path

import click
import pytest

from docs import gallery, shown
from simnet.cli.main import cli

PAGE = gallery.PAGE.read_text(encoding="utf-8")
COMMANDS = [command for block in shown.blocks(PAGE, "console") for command in shown.commands(block)]


@pytest.mark.parametrize("figure", gallery.figures(), ids=lambda path: path.stem)
def test_a_figure_is_there_and_has_the_size_of_one(figure: Path) -> None:
    data = figure.read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[gallery.PNG_SIZE])
    assert min(width, height) > 300


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_that_draws_has_these_options(line: str) -> None:
    program, name, *words = shlex.split(line)
    above = click.Context(cli)
    command = cli.get_command(above, name)
    assert program == "simnet"
    assert command is not None
    context = command.make_context(name, words, parent=above)
    assert any(context.params.get(key) for key in ("output", "plot"))


@pytest.mark.slow
def test_the_figures_of_one_run_are_drawn_as_they_are(tmp_path: Path) -> None:
    shown.prepare(tmp_path)
    for line in COMMANDS:
        if "run.json" in line:
            shown.printed(line, tmp_path)
    for figure in gallery.figures():
        if figure.name.startswith("run_"):
            drawn = tmp_path / "figures/run" / figure.name.removeprefix("run_")
            assert drawn.read_bytes()[gallery.PNG_SIZE] == figure.read_bytes()[gallery.PNG_SIZE]


@pytest.mark.slow
def test_what_the_reference_does_in_python_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    page = shown.ROOT / "docs/reference/python.md"
    monkeypatch.setenv("MPLBACKEND", "agg")
    blocks = shown.blocks(page.read_text(encoding="utf-8"), "python")
    assert blocks
    for block in blocks:
        exec(compile(block, page.name, "exec"), {})
    import matplotlib.pyplot as plt

    plt.close("all")

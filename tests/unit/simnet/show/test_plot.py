"""Figures of a sweep, from its results to files."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from simnet.commands.main import cli
from simnet.errors import SimnetError
from simnet.show.plot import plot
from tests.helpers.report_samples import sweep_document, write_results

START = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
Document = dict[str, Any]


@pytest.fixture
def one() -> Document:
    """Return a sweep that gives two figures."""
    return sweep_document(("bert_base",), (10, 100), (8,))


@pytest.mark.parametrize("file_format", list(START))
def test_every_figure_is_written_in_the_format_that_is_asked_for(
    file_format: Any, one: Document, tmp_path: Path
) -> None:
    paths = plot(write_results(tmp_path, one), tmp_path / "new" / "figures", file_format)
    assert [path.name for path in paths] == [
        f"{name}.{file_format}" for name in ("speedup_over_bandwidth", "breakdown")
    ]
    for path in paths:
        assert path.read_bytes().startswith(START[file_format])


def test_the_same_results_give_the_same_bytes(one: Document, tmp_path: Path) -> None:
    results = write_results(tmp_path, one)
    first = [path.read_bytes() for path in plot(results, tmp_path / "a", "pdf")]
    assert [path.read_bytes() for path in plot(results, tmp_path / "b", "pdf")] == first


def test_one_point_gives_no_figure_and_nothing_is_written(tmp_path: Path) -> None:
    results = write_results(tmp_path, sweep_document(("bert_base",), (10,), (8,)))
    with pytest.raises(SimnetError, match="1 point: figures need at least") as caught:
        plot(results, tmp_path / "figures")
    assert str(results) in str(caught.value)
    assert not (tmp_path / "figures").exists()


def test_a_home_that_cannot_be_written_is_no_concern_of_the_user(one: Document, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("no folder", encoding="utf-8")
    hidden = ("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
    environment = {key: value for key, value in os.environ.items() if key not in hidden} | {"HOME": str(home)}
    command = [sys.executable, "-m", "simnet", "plot", str(write_results(tmp_path, one)), "-o", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert all(line.startswith("note: ") for line in done.stderr.splitlines())


def test_a_place_that_cannot_be_written_is_told(one: Document, tmp_path: Path) -> None:
    results = write_results(tmp_path, one)
    with pytest.raises(SimnetError, match="cannot be written"):
        plot(results, results / "figures")


def test_the_command_takes_the_folder_of_a_sweep_and_prints_what_it_wrote(tmp_path: Path) -> None:
    write_results(tmp_path, sweep_document(("bert_base",), (10, 100), (1, 8)))
    done = CliRunner().invoke(cli, ["plot", str(tmp_path), "-o", str(tmp_path)])
    assert done.exit_code == 0
    names = ["speedup_over_nodes", "speedup_over_bandwidth", "throughput", "breakdown", "heat_map"]
    assert done.output.split() == [str(tmp_path / f"{name}.png") for name in names]


def test_the_command_exits_with_2_and_one_line_on_damaged_results(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{", encoding="utf-8")
    done = CliRunner().invoke(cli, ["plot", str(tmp_path), "-o", str(tmp_path)])
    assert done.exit_code == 2
    assert done.output.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]

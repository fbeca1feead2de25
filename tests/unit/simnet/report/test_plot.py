"""Figures of a sweep, from its results to files."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from simnet.cli.main import cli
from simnet.core.errors import SimnetError
from simnet.report.plot import plot
from tests.helpers.report_samples import sweep_document, write_results

START = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
Document = dict[str, Any]


@pytest.fixture
def one() -> Document:
    """Return a sweep that gives two figures."""
    return sweep_document(("bert_base",), (10, 100), (8,))


@pytest.mark.parametrize("file_format", ["png", "svg"])  # pdf: the same bytes, below
def test_every_figure_is_written_in_the_format_that_is_asked_for(
    file_format: Any, one: Document, tmp_path: Path
) -> None:
    paths = plot(write_results(tmp_path, one), tmp_path / "new" / "figures", file_format)
    assert [path.name for path in paths] == [
        f"{name}.{file_format}" for name in ("speedup_over_bandwidth", "breakdown")
    ]
    for path in paths:
        assert path.read_bytes().startswith(START[file_format])


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_home_that_cannot_be_written_is_no_concern_of_the_user(one: Document, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("no folder", encoding="utf-8")
    hidden = ("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
    environment = {key: value for key, value in os.environ.items() if key not in hidden} | {"HOME": str(home)}
    command = [sys.executable, "-m", "simnet", "plot", str(write_results(tmp_path, one)), "-o", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert all(line.startswith("note: ") for line in done.stderr.splitlines())


@pytest.mark.slow
def test_the_command_takes_the_folder_of_a_sweep_and_prints_what_it_wrote(tmp_path: Path) -> None:
    write_results(tmp_path, sweep_document(("bert_base",), (10, 100), (1, 8)))
    done = CliRunner().invoke(cli, ["plot", str(tmp_path), "-o", str(tmp_path)])
    assert done.exit_code == 0
    names = ["speedup_over_nodes", "speedup_over_bandwidth", "throughput", "breakdown", "heat_map"]
    assert done.stdout.split() == [str(tmp_path / f"{name}.png") for name in names]
    assert done.stderr == "note: breakdown shows 8 nodes alone; draw the others with --figure breakdown_of_all\n"


def test_parts_of_a_step_are_drawn_at_every_number_of_nodes_where_that_is_asked_for(tmp_path: Path) -> None:
    write_results(tmp_path, sweep_document(("bert_base",), (10, 100), (1, 4, 8)))
    asked = ["plot", str(tmp_path), "-o", str(tmp_path), "--figure", "breakdown_of_all", "--format", "svg"]
    done = CliRunner().invoke(cli, asked)
    assert (done.exit_code, done.stderr) == (0, "")
    drawn = (tmp_path / "breakdown_of_all.svg").read_text(encoding="utf-8")
    assert [f"<!-- {nodes} -->" in drawn for nodes in ("1 node", "4 nodes", "8 nodes", "2 nodes")] == [True] * 3 + [
        False
    ]


@pytest.mark.slow
def test_only_figures_with_bands_speak_of_them(tmp_path: Path) -> None:
    swept = ["sweep", "speedup", "--set", "workload=bert_base", "--set", "cluster.num_nodes=1,8", "--draws", "20"]
    assert CliRunner().invoke(cli, [*swept, "--jobs", "1", "-o", str(tmp_path)]).exit_code == 0
    captions = {path.stem: text for path, text in plot(tmp_path, tmp_path).items()}
    assert {name for name, text in captions.items() if "Bands: 90 % intervals over 20 draws" in text} == {
        "speedup_over_nodes", "speedup_over_bandwidth", "throughput",
    }  # fmt: skip

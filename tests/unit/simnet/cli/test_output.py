"""No command replaces what it reads, and none writes where it was not told to."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from simnet.cli.main import cli
from simnet.core import files
from simnet.engine import simulation
from simnet.engine.result import RunResult
from simnet.engine.scenario import Scenario
from tests.helpers.scenario_samples import SWEEP, pod, write

LOG = files.data_path("published", "nccl-tests", "a100_azure_nd_v4_2gpus.log")
EQUAL = {
    "same": lambda path: path,
    "relative": lambda path: path.parent / "folder" / ".." / path.name,
    "symlink": lambda path: _made(path, Path.symlink_to),
    "hardlink": lambda path: _made(path, Path.hardlink_to),
}


def _made(path: Path, link: Callable[[Path, Path], None]) -> Path:
    other = path.with_name("other" + path.suffix)
    link(other, path)
    return other


def run(*args: object) -> Result:
    return CliRunner().invoke(cli, [str(arg) for arg in args], prog_name="simnet")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a scenario, a part of it and a log; afterwards they must be as they were."""
    (tmp_path / "folder").mkdir()
    write(tmp_path / "cluster.toml", pod()["cluster"])
    write(tmp_path / "in.toml", pod(cluster="cluster.toml", sweep=SWEEP))
    (tmp_path / "in.log").write_bytes(LOG.read_bytes())
    gradients = {
        "tensors": [["a", [1000], 1.0]],
        "forward_flops_per_sample": 1.0,
        "backward_flops_per_sample": 2.0,
    }
    (tmp_path / "gradients.json").write_text(json.dumps(gradients))
    before = {path: path.read_bytes() for path in tmp_path.glob("*.*")}
    yield tmp_path
    assert {path: path.read_bytes() for path in before} == before


def refused(result: Result, message: str) -> None:
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    assert message in result.stderr


COMMANDS: dict[str, list[Any]] = {
    "simulate": ["simulate", "in.toml", "-o", "in.toml"],
    "trace": ["simulate", "in.toml", "--trace", "in.toml"],
    "part": ["simulate", "in.toml", "-o", "cluster.toml"],
    "crossover": ["crossover", "in.toml", "--over", "cluster.num_nodes", "--from", 1, "--to", 4, "-o", "in.toml"],
    "advise": ["advise", "in.toml", "-o", "in.toml"],
    "race": ["race", "in.toml", "characters", "--same-task", "-o", "cluster.toml"],
    "calibrate": ["calibrate", "in.log", "--cluster", "azure_nd_a100_v4", "-o", "in.log"],
    "workload": ["calibrate", "in.log", "--workload", "in.log"],
    "figure": ["calibrate", "in.log", "--figure", "in.log"],
}


@pytest.mark.parametrize(
    ("name", "equal"), [*((name, "same") for name in COMMANDS), *(("simulate", equal) for equal in EQUAL)]
)
def test_an_output_that_is_an_input_is_refused_before_anything_is_computed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, equal: str
) -> None:
    def computed(_: Scenario) -> RunResult:
        raise AssertionError("computed before the output was checked")

    monkeypatch.chdir(folder)
    monkeypatch.setattr(simulation, "simulate", computed)
    *args, output = COMMANDS[name]
    refused(run(*args, EQUAL[equal](folder / output)), "is an input")


def test_a_file_of_gradients_is_an_input_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    workload = {
        "name": "w",
        "batch_per_rank": 1,
        "forward": "1 ms",
        "backward": "1 ms",
        "gradients": "./gradients.json",
    }
    write(folder / "model.toml", pod(workload=workload))
    refused(run("simulate", "model.toml", "-o", "gradients.json"), "is an input")


def test_two_outputs_to_one_file_are_refused(folder: Path) -> None:
    out = folder / "out"
    both = run("calibrate", folder / "in.log", "--workload", out, "--figure", out)
    refused(both, "is named by --workload and by --figure; name two files")
    assert not out.exists()


@pytest.mark.slow
def test_figures_are_not_written_through_a_link_that_leads_elsewhere(folder: Path) -> None:
    out, mine = folder / "out", folder / "mine.png"
    assert run("sweep", folder / "in.toml", "--draws", 0, "-o", out).exit_code == 0
    mine.write_text("mine")
    (out / "breakdown.png").symlink_to(mine)
    refused(run("plot", out, "-o", out), "breakdown.png: a link leads out of")
    assert mine.read_text() == "mine"

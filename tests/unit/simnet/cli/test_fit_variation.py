"""`simnet calibrate --variation`: what it prints and writes, and which options and outputs it refuses."""

import json
import tomllib
from pathlib import Path

import pytest

from simnet.calibration import variation_files, variation_fit
from simnet.report.rank_table import variation_object
from tests.helpers import rank_runs
from tests.helpers.cli import assert_refused, run
from tests.helpers.scenario_samples import pod, write

COMPUTE_S = rank_runs.times(ranks=4, steps=40, slow={2: 1.5})


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    return rank_runs.measurement(tmp_path / "m.json", COMPUTE_S)


def test_faults_are_printed_below_the_table_or_written(measured: Path, tmp_path: Path) -> None:
    printed, written = run("calibrate", "--variation", measured), tmp_path / "faults.toml"
    assert printed.exit_code == 0, printed.output
    done = run("calibrate", "--variation", measured, "-o", written)
    assert done.exit_code == 0
    assert done.stderr == f"wrote {written}\n"
    faults = tomllib.loads(written.read_text())["cluster"]["faults"]
    assert (faults[0]["kind"], faults[0]["node"], faults[0]["local_rank"]) == ("slow_rank", 1, 0)
    assert faults[0]["compute_slowdown"] == pytest.approx(1.5, rel=0.05)
    assert tomllib.loads(printed.stdout[printed.stdout.index("# Fitted by") :])["cluster"]["faults"] == faults
    assert "[[cluster.faults]]" not in done.stdout


def test_json_is_what_was_fitted(measured: Path) -> None:
    done = run("calibrate", "--variation", measured, "--format", "json")
    whole = variation_object(variation_fit.fit(variation_files.read([measured])))
    assert json.loads(done.stdout) == json.loads(json.dumps(whole))


def test_the_file_is_put_below_a_scenario_as_it_is(measured: Path, tmp_path: Path) -> None:
    written = tmp_path / "faults.toml"
    assert run("calibrate", "--variation", measured, "-o", written).exit_code == 0
    path = write(tmp_path / "pod.toml", pod(cluster__ranks_per_node=2, run={"iterations": 20, "draws": 0}))
    path.write_text(path.read_text() + "\n" + written.read_text())
    done = run("simulate", path)
    assert done.exit_code == 0, done.output
    assert "slow rank, jitter of compute" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workload", "w.toml"], "--workload: has no effect with --variation; drop it"),
        (["--bound", "5"], "--bound: has no effect with --variation; drop it"),
        (["--draws", "20"], "--draws: has no effect with --variation; drop it"),
        (["--figure", "f.png"], "--figure: has no effect with --variation; drop it"),
        (["--ranks-per-node", "2"], "--ranks-per-node: has no effect on "),
    ],
)
def test_options_without_effect_are_refused(options: list[str], message: str, measured: Path) -> None:
    assert_refused(run("calibrate", "--variation", measured, *options), message)


def test_ranks_per_node_needs_variation(measured: Path) -> None:
    result = run("calibrate", measured, "--ranks-per-node", "2")
    assert_refused(result, "--ranks-per-node: has no effect without --variation; drop it")


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "two"])
def test_ranks_per_node_is_a_whole_number(number: str, measured: Path) -> None:
    result = run("calibrate", "--variation", measured, "--ranks-per-node", number)
    assert result.exit_code == 2
    assert "--ranks-per-node" in result.stderr


def test_ranks_per_node_divides_the_ranks(tmp_path: Path) -> None:
    rank_runs.traces(tmp_path / "run", COMPUTE_S)
    result = run("calibrate", "--variation", tmp_path / "run", "--ranks-per-node", "3")
    assert_refused(result, "--ranks-per-node 3: the traces are of 4 ranks: must divide that; give the ranks of a node")


def test_a_file_that_was_read_is_not_replaced(measured: Path) -> None:
    before = measured.read_bytes()
    result = run("calibrate", "--variation", measured, "-o", measured)
    assert result.exit_code == 2, result.output
    assert measured.read_bytes() == before


def test_a_folder_that_is_not_there_is_refused_before_it_is_fitted(measured: Path, tmp_path: Path) -> None:
    result = run("calibrate", "--variation", measured, "-o", tmp_path / "none" / "faults.toml")
    assert result.exit_code == 2
    assert not (tmp_path / "none").exists()

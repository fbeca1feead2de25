"""`simnet calibrate`, with `--variation` too: what it writes, what it refuses, and that a refusal writes nothing."""

import json
import tomllib
from pathlib import Path

import msgspec
import pytest
from click.testing import Result

from simnet.calibration import variation, variation_files
from simnet.core import files
from simnet.engine.scenario import check_part
from tests.helpers import cli as helpers
from tests.helpers import rank_runs
from tests.helpers.golden import GLOO, GOLDEN
from tests.helpers.scenario_samples import pod, write

LOGS = [str(files.data_path("published", "nccl-tests", f"a100_azure_nd_v4_{gpus}gpus.log")) for gpus in (2, 4, 8)]


ON_16 = str(files.data_path("published", "nccl-tests", "a100_azure_nd_v4_16gpus.log"))
COMPUTE_S = rank_runs.times(ranks=4, steps=40, slow={2: 1.5})


def run(*args: object) -> Result:
    return helpers.run("calibrate", *args)


def test_a_poor_fit_writes_nothing_unless_accepted(tmp_path: Path) -> None:
    path = tmp_path / "fitted.toml"
    options = (*LOGS, "--draws", "20", "--bound", "2", "-o", str(path))
    poor = run(*options)
    assert poor.exit_code == 2
    assert "a mean error of" in poor.stderr
    assert poor.stderr.count("\n") == 1
    assert "residuals" in poor.stdout
    assert not path.exists()
    assert run(*options, "--accept-poor-fit").exit_code == 0
    assert path.exists()


def test_a_name_that_steers_a_terminal_is_written_so_that_it_is_read_back(tmp_path: Path) -> None:
    odd = tmp_path / "\x1b.log"
    odd.write_bytes(Path(LOGS[0]).read_bytes())
    path = tmp_path / "mine.toml"
    assert run(str(odd), *LOGS[1:], "--draws", "20", "--accept-poor-fit", "-o", str(path)).exit_code == 0
    assert "\x1b.log" in tomllib.loads(path.read_text())["title"]


def test_what_becomes_of_each_log_is_said(tmp_path: Path) -> None:
    other = tmp_path / "gather.log"
    other.write_text("# all_gather_perf\n" + Path(LOGS[2]).read_text())
    alone = str(GOLDEN / "a100_azure_nd_v4_1gpus.log")
    done = run(alone, *LOGS, str(other), "--draws", "20", "--hold-out", ON_16, "--format", "json")
    assert done.exit_code == 0, done.output
    notes = " | ".join(json.loads(done.stdout)["notes"])
    assert f"{alone}: one GPU sends nothing: skipped" in notes
    assert f"{other}: 28 rows of all_gather of 8 GPUs on 1 node" in notes
    assert f"{LOGS[0]}: 28 rows of 2 GPUs on 1 node" in notes


def test_a_trace_is_shown_and_written_as_a_workload(tmp_path: Path) -> None:
    path = tmp_path / "traced.toml"
    done = run(str(GLOO), "--workload", str(path), "--batch", "32")
    assert done.exit_code == 0, done.output
    assert "communication" in done.stdout
    assert tomllib.loads(path.read_text())["batch_per_rank"] == 32
    check_part("workloads", str(path))


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    return rank_runs.measurement(tmp_path / "m.json", COMPUTE_S)


def test_json_is_what_was_fitted(measured: Path) -> None:
    done = run("--variation", measured, "--format", "json")
    fitted = variation.fit(variation_files.read([measured]))
    assert msgspec.json.decode(done.stdout, type=variation.RunVariation) == fitted


@pytest.mark.slow
def test_the_file_is_put_below_a_scenario_as_it_is(measured: Path, tmp_path: Path) -> None:
    written = tmp_path / "faults.toml"
    assert run("--variation", measured, "-o", written).exit_code == 0
    path = write(tmp_path / "pod.toml", pod(cluster__ranks_per_node=2, run={"iterations": 20, "draws": 0}))
    path.write_text(path.read_text() + "\n" + written.read_text())
    done = helpers.run("simulate", path)
    assert done.exit_code == 0, done.output
    assert "slow rank, jitter of compute" in done.stdout

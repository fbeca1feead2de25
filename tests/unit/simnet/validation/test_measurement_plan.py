"""What must be measured is said before it is: commands that run, at settings that validate then takes."""

from pathlib import Path

import pytest

from simnet.engine.scenario import load_experiment
from simnet.validation import measurement_plan
from tests.helpers.cli import assert_refused, run

EXPERIMENT = """cluster = "generic_10gbit"
workload = "bert_base"
calibration = "calibration.toml"
strategy = { kind = "qsgd", bits = 4 }
baseline = "all_reduce"
[sweep]
"cluster.num_nodes" = [4, 8]
"""
FITTED = """kind = "measured"
[[fitted_to]]
file = "training_4.json"
digest = "x"
measured = ["training"]
num_nodes = 4
ranks_per_node = 8
nic = "10 Gbit/s"
"""


@pytest.fixture
def experiment(tmp_path: Path) -> str:
    (tmp_path / "calibration.toml").write_text('kind = "estimate"')
    (tmp_path / "mine.toml").write_text(EXPERIMENT)
    return str(tmp_path / "mine.toml")


def test_settings_that_were_fitted_are_left_out(experiment: str) -> None:
    (Path(experiment).parent / "calibration.toml").write_text(FITTED)
    found = measurement_plan.plan(load_experiment(experiment), None)
    assert found.nodes == (8,)
    assert "4 nodes: the calibration was fitted to steps or links there (training_4.json)" in found.unfit
    assert not found.needs_links


def test_what_no_measured_training_runs_is_said(experiment: str) -> None:
    path = Path(experiment)
    path.write_text(EXPERIMENT.replace('"all_reduce"', '{ kind = "all_reduce", bucketing = "fused", overlap = false }'))
    assert (
        "not judged: all_reduce: simnet measure training cannot run it so"
        in run("validate", "--plan", experiment).stdout
    )
    path.write_text(path.read_text().replace('kind = "qsgd", bits = 4', 'kind = "all_reduce", bucketing = "fused"'))
    assert_refused(run("validate", "--plan", experiment), "--plan: nothing to judge: all_reduce")

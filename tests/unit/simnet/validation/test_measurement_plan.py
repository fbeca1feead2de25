"""What must be measured is said before it is: commands that run, at settings that validate then takes."""

import shlex
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


def test_the_plan_names_runs_commands_and_the_nic(experiment: str) -> None:
    told = run("validate", "--plan", experiment)
    assert told.exit_code == 0, told.output
    text = " ".join(told.stdout.split())
    assert "8 x 8 qsgd bits=4" in text
    assert "--nic-gbit-per-s 10 --strategy qsgd:bits=4 --strategy all_reduce -o training_8.json" in text
    assert "on 2 nodes: torchrun ... -m binsgdm measure collectives --nic-gbit-per-s 10 -o links_2.json" in text
    assert "kernels --system qsgd:bits=4 -o kernels.json" in text
    assert f"simnet validate {experiment} training_4.json training_8.json --draws 200 --mean 10" in text
    assert "--nic-gbit-per-s 25" in run("validate", "--plan", experiment, "--nic-gbit-per-s", "25").stdout


def test_every_command_of_a_plan_is_one_that_is_there(experiment: str) -> None:
    lines = [line.strip() for line in run("validate", "--plan", experiment).stdout.splitlines()]
    commands = [line for line in lines if line.startswith("simnet ")]
    assert len(commands) == 5
    for command in commands:
        words = shlex.split(command)
        end = 3 if words[1] == "measure" else 2
        known = run(*words[1:end], "--help").stdout
        assert all(word in known for word in words if word.startswith("--"))


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


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "--plan: needs EXPERIMENT alone; drop --plan, or name one"),
        (("speedup", "x.json"), "drop MEASUREMENTS"),
        (("speedup", "--published", "-o", "x"), "drop --published, -o"),
        (("no_such",), "'no_such': unknown experiment"),
        (("speedup", "--nic-gbit-per-s", "nan"), "'nan' is no number"),
        (("speedup", "--nic-gbit-per-s", "1e-300"), "is not in the range"),
    ],
)
def test_a_plan_is_of_one_experiment(args: tuple[str, ...], message: str) -> None:
    assert_refused(run("validate", "--plan", *args), message)

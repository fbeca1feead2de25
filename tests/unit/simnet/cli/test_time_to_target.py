"""`simnet advise --time-to-target` by its former name on the command line."""

import json

import pytest

from tests.helpers.cli import run
from tests.helpers.time_to_target_samples import write_trainings

RESNET50 = 25_557_032
"""Parameters of the workload of resnet50_10gbit."""


@pytest.fixture
def file(tmp_path):
    return str(write_trainings(tmp_path / "trainings.json", num_parameters=RESNET50))


def test_json_and_a_figure_are_written(file, tmp_path):
    out, figure = tmp_path / "times.json", tmp_path / "times.png"
    options = ("--at", "10 Gbit/s", "--draws", "0", "--format", "json", "-o", out, "--plot", figure)
    assert run("time-to-target", "resnet50_10gbit", file, *options).exit_code == 0
    assert len(json.loads(out.read_text())["bandwidths"]) == 1
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_check_and_show_know_such_a_file(file):
    assert "ok: convergence" in run("check", file).stdout
    assert 'task = "a made-up task"' in run("show", file).stdout
    assert "--time-to-target" in run("advise", "--help").stdout


def test_the_axes_of_an_experiment_are_said_not_to_matter(file):
    at = ("--at", "10 Gbit/s", "--same-task", "--draws", "0")
    note = "note: this is one point, without the sweep over cluster.slow_nodes; choose another with --set"
    assert note in run("time-to-target", "straggler", file, *at).stderr
    assert "note: this is one point" not in run("time-to-target", "bert_base_10gbit", file, *at).stderr

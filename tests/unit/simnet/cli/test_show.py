"""`simnet show` of a recorded step, and of what is none."""

import json

import pytest
from click.testing import CliRunner

from simnet.cli.main import cli
from tests.helpers import step_files
from tests.helpers.scenario_samples import pod, write


def run(*args):
    return CliRunner().invoke(cli, list(map(str, args)), prog_name="simnet")


@pytest.fixture
def step(tmp_path):
    return step_files.write(tmp_path / "step.json", step_files.step(step_files.layout(step_files.ddp())))


def test_a_recorded_step_is_shown_in_three_forms(step):
    assert "all_reduce  group 0 (16 ranks)" in run("show", step).output
    assert run("show", step, "--format", "csv").output.startswith("layout,stream,operations,")
    assert json.loads(run("show", step, "--format", "json").output)["layouts"][0]["ranks_per_node"] == 8


def test_a_form_has_no_effect_on_a_part(tmp_path):
    found = run("show", write(tmp_path / "pod.toml", pod()), "--format", "csv")
    assert found.exit_code == 2
    assert "--format: 'csv': has no effect" in found.output


def test_a_step_is_checked_and_refused_as_a_scenario(step):
    assert run("check", step).output == f"{step}: ok: recorded step\n"
    found = run("simulate", step)
    assert found.exit_code == 2
    assert "a recorded step, not a scenario" in found.output


def test_a_damaged_step_is_refused_in_one_sentence(step):
    step.write_text(step.read_text().replace('"all_reduce"', '"all_redcue"'))
    found = run("show", step)
    assert found.exit_code == 2
    assert found.output.count("\n") == 1
    assert "Did you mean 'all_reduce'?" in found.output

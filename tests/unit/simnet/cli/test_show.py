"""`simnet show`, and `list` and `check` as it was called: shipped parts, files of every kind, recorded steps."""

import json
from pathlib import Path

import pytest

from simnet.core import files
from tests.helpers import step_files
from tests.helpers.cli import assert_refused, run
from tests.helpers.scenario_samples import SWEEP, pod, write
from tests.helpers.time_to_target_samples import write_trainings


def test_an_experiment_is_shown_with_its_parts_and_can_be_used_again(tmp_path: Path) -> None:
    write(tmp_path / "wide.toml", {**pod()["cluster"], "source": "a page"})
    path = write(tmp_path / "named.toml", pod(cluster="./wide.toml", sweep=SWEEP))
    path.write_text(shown := run("show", path).stdout)
    assert 'source = "a page"' in shown
    assert run("check", path).stdout.endswith("ok: experiment, 6 points\n")


def test_a_part_is_shown_by_kind_and_name_and_a_name_of_several_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("show", "gradients/bert_base").stdout.startswith("# workloads/gradients/bert_base.json\n")
    monkeypatch.setattr(files, "names", lambda _: ("same",))
    rule = "'same': several kinds have this name; write one of clusters/same, workloads/same"
    assert_refused(run("show", "same"), rule)


def test_a_recorded_step_is_shown_in_three_forms_and_checked(tmp_path: Path) -> None:
    step = step_files.write(tmp_path / "step.json", step_files.step(step_files.layout(step_files.ddp())))
    assert "all_reduce  group 0 (16 ranks)" in run("show", step).output
    assert run("show", step, "--format", "csv").output.startswith("layout,stream,operations,")
    assert json.loads(run("show", step, "--format", "json").output)["layouts"][0]["ranks_per_node"] == 8
    assert run("check", step).output == f"{step}: ok: recorded step\n"


def test_a_part_is_known_by_its_keys(tmp_path: Path) -> None:
    for kind in ("cluster", "workload", "calibration"):
        path = write(tmp_path / "part.toml", pod()[kind])
        assert run("check", path).stdout == f"{path}: ok: {kind}\n"
    curves = write_trainings(tmp_path / "trainings.json")
    assert "ok: convergence" in run("check", curves).stdout
    assert 'task = "a made-up task"' in run("show", curves).stdout


def test_every_wrong_file_is_told_and_the_others_are_checked(file: str, tmp_path: Path) -> None:
    wrong = str(write(tmp_path / "wrong.toml", pod(cluster__num_nodes=0)))
    result = run("check", wrong, "nonesuch", file)
    assert result.exit_code == 2
    assert [line.split(":")[1] for line in result.stderr.splitlines()] == [f" {wrong}", " 'nonesuch'"]
    assert result.stdout == f"{file}: ok: experiment, 6 points\n"


def test_the_results_of_a_sweep_are_told(file: str, tmp_path: Path) -> None:
    run("sweep", file, "-o", tmp_path)
    assert_refused(run("check", tmp_path / "results.json"), "results of a sweep, not a scenario")

"""`simnet show --check` by its former name: files of every kind."""

from pathlib import Path

import pytest

from tests.helpers.cli import assert_refused, run
from tests.helpers.scenario_samples import SWEEP, pod, write


@pytest.mark.parametrize(
    ("part", "kind"), [("cluster", "cluster"), ("workload", "workload"), ("calibration", "calibration")]
)
def test_a_part_is_known_by_its_keys(tmp_path: Path, part: str, kind: str) -> None:
    path = write(tmp_path / "part.toml", pod()[part])
    assert run("check", str(path)).stdout == f"{path}: ok: {kind}\n"


def test_every_wrong_file_is_told_and_the_others_are_checked(file: str, tmp_path: Path) -> None:
    wrong = str(write(tmp_path / "wrong.toml", pod(cluster__num_nodes=0)))
    result = run("check", wrong, "nonesuch", file)
    assert result.exit_code == 2
    assert [line.split(":")[1] for line in result.stderr.splitlines()] == [f" {wrong}", " 'nonesuch'"]
    assert result.stdout == f"{file}: ok: experiment, 6 points\n"


def test_parts_that_contradict_are_found(tmp_path: Path) -> None:
    contradiction = pod(workload__gradient="1 GB")
    for changes in ({}, {"sweep": SWEEP}):
        path = write(tmp_path / "wrong.toml", contradiction | changes)
        assert_refused(run("check", str(path)), "must be given once")


def test_the_results_of_a_sweep_are_told(file: str, tmp_path: Path) -> None:
    run("sweep", file, "-o", str(tmp_path))
    assert_refused(run("check", str(tmp_path / "results.json")), "results of a sweep, not a scenario")


def test_gradients_are_left_to_their_workload() -> None:
    assert_refused(run("check", "gradients/bert_base"), "checked only with a workload")

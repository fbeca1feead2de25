"""A streamed sweep has the points of one that is held in memory, and resumes as it does."""

from pathlib import Path
from typing import Any

import pytest

import simnet
from simnet.analysis import results_file, sweeps
from simnet.analysis.journal import Journal
from simnet.engine.result import to_json
from simnet.engine.scenario import Scenario, load_experiment
from simnet.report.frame import read_frame
from tests.helpers.needs import needs
from tests.helpers.refusals import refused
from tests.helpers.scenario_samples import pod, write

needs("pyarrow")
NODES, BATCH = "cluster.num_nodes", "workload.batch_per_rank"
AXES: dict[str, list[Any]] = {NODES: [1, 0, 2, 3, 2], BATCH: [8, 64]}


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    return str(write(tmp_path / "pod.toml", pod(run__draws=20)))


@pytest.mark.parametrize("window", [1, 3, 5_000])
def test_the_file_holds_what_a_sweep_in_memory_finds(
    scenario: str, tmp_path: Path, window: int, simulated: list[Scenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "WINDOW", window)
    told: list[int] = []
    path = simnet.sweep_to_parquet(scenario, AXES, output=tmp_path / "out", progress=told.append)
    assert len(simulated) == len({to_json(one) for one in simulated}) == 6  # the repeated ones once
    simnet.sweep_to_parquet(scenario, AXES, output=tmp_path / "out", progress=told.append)
    assert sum(told) == 2 * 10
    held = simnet.sweep(scenario, AXES, progress=False)
    assert to_json(results_file.read(path)) == to_json(held)
    assert [point.set[NODES] for point in held.points] == [1, 1, 2, 2, 3, 3, 2, 2]
    assert [point.set[NODES] for point in held.refused] == [0, 0]


def test_a_data_frame_of_it_is_that_of_the_other_form(scenario: str, tmp_path: Path) -> None:
    simnet.sweep_to_parquet(scenario, AXES, output=tmp_path, progress=False)
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "results.json").write_bytes(to_json(simnet.sweep(scenario, AXES, progress=False)))
    from pandas.testing import assert_frame_equal

    flat, plain = read_frame(tmp_path), read_frame(tmp_path / "json")
    assert list(flat) == list(plain)
    kept = [name for name in plain if not plain[name].isna().all()]
    assert_frame_equal(flat[kept], plain[kept], check_dtype=False)
    assert flat.drop(columns=kept).isna().all(axis=None)


def test_a_point_that_comes_again_was_not_there_before(
    scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "WINDOW", 1)
    experiment = load_experiment(scenario, axes={NODES: [1, 2, 1]})
    for before in (0, 3):
        with Journal(tmp_path / "out") as journal:
            sweep = sweeps.streamed(experiment, journal)
            sweep.simulate()
            assert sweep.num_before == before


def test_more_points_than_can_be_streamed_are_refused_at_once(scenario: str, tmp_path: Path) -> None:
    axes = {NODES: list(range(1, 4002)), BATCH: list(range(1, 4002))}
    with refused("sweep: 16008001 points: at most 10000000; split it into several sweeps"):
        simnet.sweep_to_parquet(scenario, axes, output=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()

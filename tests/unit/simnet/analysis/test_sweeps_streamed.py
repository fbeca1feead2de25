"""A streamed sweep has the points of one that is held in memory, and resumes as it does."""

from pathlib import Path
from typing import Any

import pytest

import simnet
from simnet.analysis import results_file, sweeps
from simnet.analysis.journal import NAME, Journal
from simnet.core.errors import SimnetError
from simnet.engine.result import to_json
from simnet.engine.scenario import Scenario, load_experiment
from simnet.report.frame import read_frame
from tests.helpers.journals import rows
from tests.helpers.needs import needs
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
    path = simnet.sweep_to_parquet(scenario, AXES, output=tmp_path / "out", progress=False)
    assert len(simulated) == len({to_json(one) for one in simulated}) == 6  # the repeated ones once
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


def test_a_stopped_stream_goes_on_where_it_stopped(
    scenario: str, tmp_path: Path, simulated: list[Scenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "PART_S", 0)
    whole = simnet.sweep_to_parquet(scenario, AXES, output=tmp_path / "whole", progress=False).read_bytes()
    out, told = tmp_path / "out", []

    def stop(count: int) -> None:
        told.append(count)
        if len(told) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simnet.sweep_to_parquet(scenario, AXES, output=out, progress=stop)
    assert not (out / "results.parquet").exists()
    finished = set(rows(out))
    assert len(finished) == 2 + 3
    simulated.clear()
    assert simnet.sweep_to_parquet(scenario, AXES, output=out, progress=False).read_bytes() == whole
    keys = [row.key for row in rows(out)]
    assert len(keys) == len(set(keys)) == 6 + 2  # those that were asked for twice are there once
    assert finished < set(rows(out))
    assert len(simulated) == 8 - len(finished)


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


def test_progress_counts_every_point_once(scenario: str, tmp_path: Path) -> None:
    told: list[int] = []
    simnet.sweep_to_parquet(scenario, AXES, output=tmp_path, progress=told.append)
    assert sum(told) == 10
    told.clear()
    simnet.sweep_to_parquet(scenario, AXES, output=tmp_path, progress=told.append)
    assert sum(told) == 10


def test_a_stream_of_nothing_but_refused_points_is_refused(scenario: str, tmp_path: Path) -> None:
    with pytest.raises(SimnetError, match=r"cluster.num_nodes: 0: .* \(all 2 points are refused\)$"):
        simnet.sweep_to_parquet(scenario, {NODES: [0], BATCH: [8, 64]}, output=tmp_path, progress=False)
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".toml"] == [NAME]


def test_more_points_than_can_be_streamed_are_refused_at_once(scenario: str, tmp_path: Path) -> None:
    axes = {NODES: list(range(1, 4002)), BATCH: list(range(1, 4002))}
    with pytest.raises(SimnetError, match=r"sweep: 16008001 points: at most 10000000; split it into several sweeps"):
        simnet.sweep_to_parquet(scenario, axes, output=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_points_have_draws_of_their_own_accord_up_to_the_same_number_as_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = str(write(tmp_path / "pod.toml", pod(sweep={NODES: [1, 2]}, calibration="a100_tcp_estimate")))
    for most, has_intervals in ((2, True), (1, False)):
        monkeypatch.setattr(sweeps, "MOST_DRAWN", most)
        path = simnet.sweep_to_parquet(scenario, output=tmp_path / str(most), progress=False)
        assert ("speedup_low" in read_frame(path)) is has_intervals

"""One experiment to many results."""

import json
from pathlib import Path
from typing import Any

import pytest

from simnet.analysis import sweeps
from simnet.analysis.journal import NAME, Journal
from simnet.analysis.sweeps import collect_results, expand, points_of
from simnet.engine.result import SweepResult
from simnet.engine.scenario import Experiment, Scenario, load_experiment
from tests.helpers.journals import change, rows
from tests.helpers.refusals import refused
from tests.helpers.scenario_samples import SWEEP, pod, write


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return load_experiment(str(write(tmp_path / "pod.toml", pod(sweep=SWEEP))))


NODES = "cluster.num_nodes"
REASON = "must be a multiple of 24 ranks x 1 samples = 24"


def fixed_batch(tmp_path: Path, **changes: Any) -> Experiment:
    """Return a sweep over 1, 2, 3 and 4 nodes of 8 ranks whose 64 samples 3 nodes do not divide."""
    data = pod(run__global_batch=64, sweep={NODES: [1, 2, 3, 4]}, **changes)
    return load_experiment(str(write(tmp_path / "pod.toml", data)))


def whole(experiment: Experiment, out: Path | None = None) -> SweepResult:
    points = points_of(experiment)
    return collect_results(experiment, points, sweeps.run(points, out))


def test_a_part_that_has_changed_meanwhile_is_read_again(tmp_path: Path) -> None:
    part = write(tmp_path / "part.toml", pod()["cluster"])
    experiment = load_experiment(str(write(tmp_path / "pod.toml", pod(sweep={"cluster": ["part.toml"]}))))
    assert experiment.at({"cluster": "part.toml"}).cluster.num_nodes == 2
    write(part, pod(cluster__num_nodes=16)["cluster"])
    assert experiment.at({"cluster": "part.toml"}).cluster.num_nodes == 16


@pytest.mark.slow
def test_workers_give_the_same_as_this_process(
    experiment: Experiment, simulated: list[Scenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    points = expand(experiment)
    expected = sweeps.run(points)
    simulated.clear()
    for name in ("PART_S", "PROBE_S", "WORKERS_PAY_S"):
        monkeypatch.setattr(sweeps, name, 0)
    assert sweeps.run(points, jobs=2) == expected
    assert len(simulated) == 1  # the probe


def test_finished_points_are_not_simulated_again_and_results_share_the_scenarios_of_their_points(
    experiment: Experiment, tmp_path: Path, simulated: list[Scenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "PART_S", 0)
    points = expand(experiment)
    sweeps.run(points[:2], tmp_path)
    progress: list[int] = []
    first = sweeps.run(points, tmp_path, progress=progress.append)
    assert progress == [2, 1, 1, 1, 1], "first what needs no simulation"
    simulated.clear()
    again = sweeps.run(points, tmp_path)
    assert (again, simulated) == (first, [])
    for results in (first, again):
        assert all(result.scenario is point.scenario for result, point in zip(results, points, strict=True))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"breakdown":{', '"breakdown":null,"more":{'),
        ('"baseline":{"strategy"', '"baseline":3,"more":{"strategy"'),
        ('"result":{', '"result":['),
        ('"world_size":8', '"world_size":0'),
        ('"speedup":', '"speedup":1e999,"more":'),
        ('"notes":[', '"notes":7,"more":['),
    ],
)
def test_a_result_that_the_simulator_did_not_write_is_refused(
    experiment: Experiment, tmp_path: Path, old: str, new: str
) -> None:
    points = expand(experiment)[:1]
    sweeps.run(points, tmp_path)
    (row,) = rows(tmp_path)
    assert old in str(row.result)
    change(tmp_path, "UPDATE points SET result = ?", str(row.result).replace(old, new, 1))
    damaged = (tmp_path / NAME).read_bytes()
    with refused(": is damaged, or no journal; delete ", start=f"{tmp_path / NAME}: point 1: "):
        sweeps.run(points, tmp_path)
    assert (tmp_path / NAME).read_bytes() == damaged


def test_a_result_of_a_strategy_that_is_not_installed_is_told_with_its_place(
    experiment: Experiment, tmp_path: Path
) -> None:
    sweeps.run(expand(experiment)[:1], tmp_path)
    change(tmp_path, """UPDATE points SET result = replace(result, '"kind":"binsgdm"', '"kind":"elsewhere"')""")
    rule = "scenario.strategy.kind: 'elsewhere': unknown strategy; install the package that provides it"
    with Journal(tmp_path) as journal, refused(start=f"{tmp_path / NAME}: point 1: {rule}"):
        journal.outcome_at(1)


def test_another_gradients_file_is_another_point(tmp_path: Path) -> None:
    gradients = tmp_path / "mine.json"
    workload = {"gradients": "./mine.json", "forward": "1 s", "backward": "1 s"}
    path = write(tmp_path / "pod.toml", pod(workload=workload, sweep={NODES: [2]}))
    keys = []
    for content in ("1", "2"):
        gradients.write_text(content)
        keys.append(expand(load_experiment(str(path)))[0].key)
    assert keys[0] != keys[1]


def test_points_are_refused_that_only_the_simulation_can_judge(tmp_path: Path) -> None:
    data = pod(sweep={"workload.gradients": ["bert_base", "./nonesuch.json"]})
    del data["workload"]["num_elements"]
    swept = whole(load_experiment(str(write(tmp_path / "pod.toml", data))), tmp_path / "out")
    assert [point.set for point in swept.points] == [{"workload.gradients": "bert_base"}]
    assert "nonesuch.json': no such file" in swept.refused[0].reason
    contradicting = pod(sweep={"workload.gradient": ["1 GB", "2 GB"]})
    with refused(start="workload: gradient and num_elements: must be given once"):
        whole(load_experiment(str(write(tmp_path / "pod.toml", contradicting))))
    with refused(REASON):
        expand(fixed_batch(tmp_path))


def test_the_journal_has_refused_points_once_and_a_resumed_sweep_the_same(
    tmp_path: Path, simulated: list[Scenario]
) -> None:
    experiment, out = fixed_batch(tmp_path), tmp_path / "out"
    first = whole(experiment, out)
    lines = rows(out)
    (missing,) = (row for row in lines if row.refused)
    assert (json.loads(str(missing.point)), missing.refused) == ({NODES: 3}, first.refused[0].reason)
    simulated.clear()
    assert whole(experiment, out) == first
    assert (simulated, rows(out)) == ([], lines)
    progress: list[int] = []
    sweeps.run(points_of(experiment), out, progress=progress.append)
    assert progress == [4]
    change(out, "DELETE FROM points WHERE refused IS NOT NULL")  # as a kill may undo it
    assert whole(experiment, out) == first
    assert len(rows(out)) == 4


def test_more_points_than_a_file_takes_are_refused_before_any_is_made() -> None:
    for most, rule in ((100, "at most 100000, or 1000000 with --format parquet"), (1000, "at most 1000000")):
        axes = {"cluster.num_nodes": [*range(1, 1002)], "workload.batch_per_rank": [*range(1, most + 1)]}
        experiment = load_experiment("bert_base_10gbit", axes=axes)
        with refused(f"sweep: {1001 * most} points: {rule}; split it into several sweeps"):
            points_of(experiment, most * 1000)

"""Points that do not hold together are skipped, and told with their reasons; lists of points; fixed global batches."""

import json
from pathlib import Path
from typing import Any

import pytest

from simnet.analysis import sweeps
from simnet.analysis.results_file import decode
from simnet.analysis.sweeps import SweepPoint, collect_results, expand, points_of
from simnet.core.errors import SimnetError
from simnet.core.units import format_seconds
from simnet.engine.axes import PointList
from simnet.engine.result import RefusedPoint, RunResult, SweepResult, to_json
from simnet.engine.scenario import Experiment, load_experiment
from simnet.report.sweep_page import sweep_page
from simnet.report.text import nodes_text
from tests.helpers.journals import change, rows
from tests.helpers.scenario_samples import pod, write

NODES = "cluster.num_nodes"
REASON = "must be a multiple of 24 ranks x 1 samples = 24"
POINTS = [{NODES: 2, "workload.batch_per_rank": 8}, {NODES: 4, "workload.batch_per_rank": 4}]


def fixed_batch(tmp_path: Path, **changes: Any) -> Experiment:
    """Return a sweep over 1, 2, 3 and 4 nodes of 8 ranks whose 64 samples 3 nodes do not divide."""
    data = pod(run__global_batch=64, sweep={NODES: [1, 2, 3, 4]}, **changes)
    return load_experiment(str(write(tmp_path / "pod.toml", data)))


def whole(experiment: Experiment, out: Path | None = None) -> SweepResult:
    points = points_of(experiment)
    return collect_results(experiment, points, sweeps.run(points, out))


def test_the_fastest_point_is_named_where_all_iterations_do_the_same(tmp_path: Path) -> None:
    found = whole(fixed_batch(tmp_path))
    best = min(found.points, key=lambda point: point.result.iteration_s)
    (line,) = (line for line in str(sweep_page(found)).splitlines() if line.startswith("fastest"))
    place = f"on {nodes_text(best.num_nodes)} at 25 Gbit/s."
    assert line == f"fastest with binsgdm: {format_seconds(best.result.iteration_s)} per iteration, {place}"
    weak = whole(load_experiment(str(write(tmp_path / "weak.toml", pod(sweep={NODES: [1, 2]})))))
    assert "fastest" not in str(sweep_page(weak))


def test_what_does_not_divide_is_skipped_with_the_reason(tmp_path: Path) -> None:
    found = whole(fixed_batch(tmp_path))
    assert [(point.num_nodes, point.scenario.grad_accumulation) for point in found.points] == [(1, 8), (2, 4), (4, 2)]
    (refused,) = found.refused
    assert refused.set == {NODES: 3}
    assert refused.reason.startswith(f"{tmp_path}/pod.toml: run.global_batch: 64: {REASON}")


def test_results_with_refused_points_are_read_back(tmp_path: Path) -> None:
    found = whole(fixed_batch(tmp_path))
    assert decode(to_json(found)) == found
    document = json.loads(to_json(found))
    del document["refused"]
    assert decode(json.dumps(document).encode()).refused == (), "as sweeps before this key wrote it"


def test_points_are_refused_that_only_the_simulation_can_judge(tmp_path: Path) -> None:
    data = pod(sweep={"workload.gradients": ["bert_base", "./nonesuch.json"]})
    del data["workload"]["num_elements"]
    found = whole(load_experiment(str(write(tmp_path / "pod.toml", data))), tmp_path / "out")
    assert [point.set for point in found.points] == [{"workload.gradients": "bert_base"}]
    assert "nonesuch.json': no such file" in found.refused[0].reason
    contradicting = pod(sweep={"workload.gradient": ["1 GB", "2 GB"]})
    with pytest.raises(SimnetError, match=r"^workload: gradient and num_elements: must be given once"):
        whole(load_experiment(str(write(tmp_path / "pod.toml", contradicting))))


def test_the_journal_has_them_once_and_a_resumed_sweep_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, out = fixed_batch(tmp_path), tmp_path / "out"
    first = whole(experiment, out)
    lines = rows(out)
    (refused,) = (row for row in lines if row.refused)
    assert (json.loads(str(refused.point)), refused.refused) == ({NODES: 3}, first.refused[0].reason)
    monkeypatch.setattr("simnet.engine.simulation.simulate", None)  # nothing is simulated again
    assert whole(experiment, out) == first
    assert rows(out) == lines
    told: list[int] = []
    sweeps.run(points_of(experiment), out, progress=told.append)
    assert told == [4]


def test_a_refused_point_that_a_kill_has_undone_is_told_again(tmp_path: Path) -> None:
    experiment, out = fixed_batch(tmp_path), tmp_path / "out"
    first = whole(experiment, out)
    change(out, "DELETE FROM points WHERE refused IS NOT NULL")
    assert whole(experiment, out) == first
    assert len(rows(out)) == 4


def test_all_points_refused_is_a_refusal(tmp_path: Path) -> None:
    path = str(write(tmp_path / "pod.toml", pod(sweep={NODES: [0, "2", 10**30]})))
    with pytest.raises(
        SimnetError, match=r"num_nodes: 0: must .* \(at cluster.num_nodes = 0; all 3 points are refused"
    ):
        points_of(load_experiment(path))
    path = str(write(tmp_path / "pod.toml", pod(sweep={"cluster.num_node": [1, 2]})))
    with pytest.raises(SimnetError, match=r"unknown key 'num_node'. Did you mean 'num_nodes'\?$"):
        points_of(load_experiment(path))


def test_expanding_strictly_refuses_the_first(tmp_path: Path) -> None:
    with pytest.raises(SimnetError, match=REASON):
        expand(fixed_batch(tmp_path))


def test_a_value_that_no_json_holds_is_kept_as_text(tmp_path: Path) -> None:
    path = str(write(tmp_path / "pod.toml", pod(sweep={NODES: [1, 10**30], "calibration": [{}, {"kernels": 10**20}]})))
    found = whole(load_experiment(path), tmp_path / "out")
    assert [point.set[NODES] for point in found.refused] == [1, str(10**30), str(10**30)]
    assert decode(to_json(found)) == found


class TestListedPoints:
    def test_each_is_swept_over_the_grid(self, tmp_path: Path) -> None:
        data = pod(sweep={"strategy": ["binsgdm", "one_bit_adam"], "points": POINTS})
        points = expand(load_experiment(str(write(tmp_path / "pod.toml", data))))
        assert [(point.scenario.cluster.num_nodes, point.scenario.strategy.kind) for point in points] == [
            (2, "binsgdm"), (2, "one_bit_adam"), (4, "binsgdm"), (4, "one_bit_adam")
        ]  # fmt: skip
        assert [point.values["workload.batch_per_rank"] for point in points] == [8, 8, 4, 4]

    def test_without_a_grid_they_are_the_sweep(self, tmp_path: Path) -> None:
        found = whole(load_experiment(str(write(tmp_path / "pod.toml", pod(sweep={"points": POINTS})))))
        assert [point.set for point in found.points] == POINTS
        assert found.axes == ()
        assert decode(to_json(found)) == found

    def test_those_of_the_command_line_take_the_place_of_the_whole_sweep(self, tmp_path: Path) -> None:
        path = str(write(tmp_path / "pod.toml", pod(sweep={"strategy": ["binsgdm", "qsgd"], "points": POINTS})))
        listed = PointList(keys=(NODES,), rows=((1,), (8,)), origin="--point")
        points = expand(load_experiment(path, axes={"run.grad_accumulation": [1, 2]}, listed=listed))
        assert [point.values for point in points] == [
            {NODES: nodes, "run.grad_accumulation": count} for nodes in (1, 8) for count in (1, 2)
        ]

    def test_a_key_that_is_set_is_no_longer_listed(self, tmp_path: Path) -> None:
        path = str(write(tmp_path / "pod.toml", pod(sweep={"points": POINTS})))
        experiment = load_experiment(path, {NODES: 16})
        assert [point.values for point in expand(experiment)] == [
            {"workload.batch_per_rank": 8}, {"workload.batch_per_rank": 4}
        ]  # fmt: skip
        assert {point.scenario.cluster.num_nodes for point in expand(experiment)} == {16}

    def test_a_key_that_is_set_beside_given_points_is_refused(self, tmp_path: Path) -> None:
        path = str(write(tmp_path / "pod.toml", pod()))
        listed = PointList(keys=(NODES,), rows=((1,),), origin="--point")
        with pytest.raises(SimnetError, match=r"^--set: 'cluster.num_nodes': is a key of the points, too"):
            load_experiment(path, {NODES: 2}, listed=listed)

    def test_relative_paths_start_at_the_file_of_the_points(self, tmp_path: Path) -> None:
        write(tmp_path / "model.toml", pod()["workload"])
        path = write(tmp_path / "pod.toml", pod(sweep={"points": [{"workload": "./model.toml"}]}))
        assert expand(load_experiment(str(path)))[0].scenario.workload.name == "model"


def test_points_and_refusals_keep_the_order_of_the_sweep(tmp_path: Path) -> None:
    results = sweeps.run(points_of(fixed_batch(tmp_path)))
    assert [type(result) for result in results] == [RunResult, RunResult, RefusedPoint, RunResult]
    assert [type(point) for point in points_of(fixed_batch(tmp_path))] == [
        SweepPoint, SweepPoint, RefusedPoint, SweepPoint
    ]  # fmt: skip

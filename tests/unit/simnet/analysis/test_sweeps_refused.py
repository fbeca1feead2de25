"""Points that do not hold together are skipped, and told with their reasons; lists of points; fixed global batches."""

import json
from pathlib import Path
from typing import Any

import pytest

from simnet.analysis import sweeps
from simnet.analysis.sweeps import collect_results, expand, points_of
from simnet.core.errors import SimnetError
from simnet.engine.result import SweepResult
from simnet.engine.scenario import Experiment, load_experiment
from tests.helpers.journals import change, rows
from tests.helpers.scenario_samples import pod, write

NODES = "cluster.num_nodes"
REASON = "must be a multiple of 24 ranks x 1 samples = 24"


def fixed_batch(tmp_path: Path, **changes: Any) -> Experiment:
    """Return a sweep over 1, 2, 3 and 4 nodes of 8 ranks whose 64 samples 3 nodes do not divide."""
    data = pod(run__global_batch=64, sweep={NODES: [1, 2, 3, 4]}, **changes)
    return load_experiment(str(write(tmp_path / "pod.toml", data)))


def whole(experiment: Experiment, out: Path | None = None) -> SweepResult:
    points = points_of(experiment)
    return collect_results(experiment, points, sweeps.run(points, out))


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


def test_expanding_strictly_refuses_the_first(tmp_path: Path) -> None:
    with pytest.raises(SimnetError, match=REASON):
        expand(fixed_batch(tmp_path))

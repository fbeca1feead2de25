"""Sweep results as a data frame."""

import pytest

from simnet.analysis.sweeps import collect_results, expand, run
from simnet.engine.result import to_json
from simnet.engine.scenario import load_experiment
from simnet.report.frame import read_frame


def test_a_sweep_becomes_one_row_a_point_with_units_in_the_names(tmp_path):
    experiment = load_experiment("reference_ddp_step")
    points = expand(experiment)
    (tmp_path / "results.json").write_bytes(to_json(collect_results(experiment, points, run(points))))
    frame = read_frame(tmp_path)
    assert list(frame["cluster.num_nodes"]) == [8, 64]
    assert frame["iteration_s"].tolist() == pytest.approx([0.669397, 0.756477], rel=1e-5)
    assert frame["speedup"].dtype == float

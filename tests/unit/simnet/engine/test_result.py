"""The one form of a result: what is written is read back, in this format and the one before."""

import json
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

from simnet.analysis import results_file
from simnet.core import schema
from simnet.core.errors import SimnetError
from simnet.engine.result import PointResult, RunResult, SweepResult, point_result, to_json
from simnet.engine.scenario import build
from tests.helpers.report_samples import run_result

KEYS = {
    "scenario", "world_size", "result", "baseline", "speedup", "end_to_end_speedup", "gradient_bytes", "version",
    "notes", "intervals", "hangs_on", "references",
}  # fmt: skip
METRICS = {
    "strategy", "fidelity", "algorithm", "iterations_s", "samples_per_s", "breakdown", "comm_s", "overlap",
    "nic_bytes_per_node", "compression_ratio", "num_buckets",
}  # fmt: skip
PARTS = ["forward_s", "backward_s", "encode_s", "decode_s", "exposed_comm_s", "optimizer_s"]


def test_a_result_is_read_back_as_it_was_without_its_spans() -> None:
    result = run_result().without_spans()
    assert schema.decode(RunResult, to_json(result), "result") == result
    assert result.result.spans == ()
    assert run_result().result.spans != ()


@pytest.mark.parametrize("indent", [None, 2])
def test_json_has_every_metric_with_its_unit(indent: int | None) -> None:
    found = json.loads(to_json(run_result().without_spans(), indent))
    assert set(found) == KEYS
    assert set(found["result"]) == set(found["baseline"]) == METRICS
    assert list(found["result"]["breakdown"]) == PARTS
    assert build({key: value for key, value in found["scenario"].items() if value is not None}) == run_result().scenario


def test_without_a_baseline_json_says_null() -> None:
    found = json.loads(to_json(run_result(baseline=False).without_spans()))
    assert found["baseline"] is None
    assert found["speedup"] is None


def test_the_time_of_an_iteration_is_the_mean_of_all() -> None:
    result = run_result().result
    assert result.iteration_s == result.iterations_s[0]
    assert replace(result, iterations_s=(1.0, 2.0, 6.0)).iteration_s == 3.0


def test_a_sweep_is_read_back_as_it_was(tmp_path: Path) -> None:
    point = point_result({"cluster.num_nodes": 8}, run_result().without_spans())
    sweep = SweepResult(name="made up", axes=(), points=(point,))
    (tmp_path / "results.json").write_bytes(to_json(sweep, indent=1))
    assert results_file.read(tmp_path) == results_file.read(tmp_path / "results.json") == sweep
    assert isinstance(point, PointResult)
    assert asdict(point).keys() - asdict(run_result()).keys() == {"set"}


@pytest.mark.parametrize(
    ("key", "value"), [("world_size", 7), ("speedup", 0.0), ("result", {}), ("intervals", {"speedup": [1.0]})]
)
def test_what_no_figure_can_be_drawn_of_is_refused_wherever_it_is_read(key: str, value: object) -> None:
    data = json.loads(to_json(run_result().without_spans())) | {key: value}
    with pytest.raises(SimnetError, match=f"^result: .*{key}"):
        schema.decode(RunResult, json.dumps(data).encode(), "result")

"""The one form of a result: what is written is read back, in this format and the one before."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from simnet.analysis import results_file
from simnet.core import schema
from simnet.core.errors import SimnetError
from simnet.engine.result import PointResult, RunResult, SweepResult, point_result, to_json
from simnet.engine.scenario import build
from tests.helpers.report_samples import run_result, sweep_document, sweep_of

KEYS = {
    "scenario", "world_size", "result", "baseline", "speedup", "end_to_end_speedup", "gradient_bytes", "version",
    "notes", "intervals", "hangs_on",
}  # fmt: skip
METRICS = {
    "strategy", "fidelity", "algorithm", "iterations_s", "samples_per_s", "breakdown", "comm_s", "overlap",
    "nic_bytes_per_node", "compression_ratio", "num_buckets",
}  # fmt: skip
FORMER_KEYS = {"payload": "wire_dtype", "intra": "intra_node_dtype", "agreement": "finite_check"}
PARTS = ["forward_s", "backward_s", "encode_s", "decode_s", "exposed_comm_s", "optimizer_s"]


def as_format_1(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document as versions with format 1 wrote it: the strategy's metrics at the level of the run."""
    return {**document, "format": 1, "points": [_point_as_format_1(point) for point in document["points"]]}


def as_format_2(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document as versions with format 2 wrote it: keys of strategies by their former names."""
    text = json.dumps({**document, "format": 2})
    for former, present in FORMER_KEYS.items():
        text = text.replace(f'"{present}"', f'"{former}"').replace(f'strategy.{present}"', f'strategy.{former}"')
    return json.loads(text)


def _point_as_format_1(point: dict[str, Any]) -> dict[str, Any]:
    flat = {key: value for key, value in point.items() if key not in ("result", "baseline", "intervals")}
    baseline = point["baseline"] and _strategy_as_format_1(point["baseline"])
    return flat | _strategy_as_format_1(point["result"]) | {"baseline": baseline, "question": "Does it?"}


def _strategy_as_format_1(result: dict[str, Any]) -> dict[str, Any]:
    (seconds,) = result["iterations_s"]
    kept = {key: value for key, value in result.items() if key != "iterations_s"}
    return kept | {"iteration_s": seconds, "dense_iteration_s": None, "total_s": None}


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


@pytest.mark.parametrize("baseline", [True, False])
def test_format_1_is_read_as_this_one(baseline: bool) -> None:
    document = sweep_document(("bert_base",), (10, 100), (1, 8), baseline=baseline)
    assert sweep_of(as_format_1(document)) == sweep_of(document)


@pytest.mark.parametrize("as_former", [as_format_2, lambda document: as_format_1(as_format_2(document))])
@pytest.mark.parametrize(
    ("kind", "key", "values"),
    [("all_reduce", "wire_dtype", ["bf16", "fp32"]), ("binsgdm", "intra_node_dtype", ["bf16", None])],
)
def test_former_keys_of_strategies_are_read_as_the_present_ones(
    as_former: Any, kind: str, key: str, values: list[str | None]
) -> None:
    document = sweep_document(("bert_base",), (10,), (2, 8))
    document["axes"].append({"key": f"strategy.{key}", "values": values})
    for point, value in zip(document["points"], values, strict=True):
        point["set"][f"strategy.{key}"] = value
        # Older files have no rounding: it was random.
        point["scenario"]["strategy"] = {
            "kind": kind,
            key: value,
            **({"rounding": "random"} if kind == "binsgdm" else {}),
        }
        point["scenario"]["baseline"] = {"kind": "all_reduce", "wire_dtype": "fp16"}
    former = as_former(document)
    assert key not in json.dumps(former)
    found = sweep_of(former)
    assert found == sweep_of(document)
    assert [getattr(point.scenario.strategy, key) for point in found.points] == values
    assert [point.set[found.axes[-1].key] for point in found.points] == values


@pytest.mark.parametrize("form", [2, 3, 4])
def test_a_file_without_a_rounding_that_could_not_have_one_is_of_random_rounding(form: int) -> None:
    document = sweep_document(("bert_base",), (10,), (8,)) | {"format": form}
    document["points"][0]["scenario"]["strategy"] = {"kind": "binsgdm"}
    wanted = "shaped" if form == 4 else "random"
    assert [point.scenario.strategy.rounding for point in sweep_of(document).points] == [wanted]


def test_format_1_of_scenarios_that_are_no_longer_read_is_refused_with_the_repair() -> None:
    document = as_format_1(sweep_document(("bert_base",), (10,), (8,)))
    document["points"][0]["scenario"]["strategy"]["overlapp"] = True
    with pytest.raises(SimnetError, match=r"'overlapp'.* of an older version whose scenarios .*; run the sweep again$"):
        sweep_of(document)


@pytest.mark.parametrize(
    ("key", "value"), [("world_size", 7), ("speedup", 0.0), ("result", {}), ("intervals", {"speedup": [1.0]})]
)
def test_what_no_figure_can_be_drawn_of_is_refused_wherever_it_is_read(key: str, value: object) -> None:
    data = json.loads(to_json(run_result().without_spans())) | {key: value}
    with pytest.raises(SimnetError, match=f"^result: .*{key}"):
        schema.decode(RunResult, json.dumps(data).encode(), "result")

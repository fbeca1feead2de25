"""The JSON object of a run, and its row in a CSV file."""

import json
from dataclasses import dataclass

import pytest

from simnet.show.metrics import nic_gbit_per_s, to_object, to_row
from tests.unit.report_samples import run_result

KEYS = {
    "scenario", "question", "strategy", "fidelity", "algorithm", "world_size", "iteration_s", "samples_per_s",
    "breakdown", "comm_s", "overlap", "nic_bytes_per_node", "compression_ratio", "num_buckets", "dense_iteration_s",
    "total_s", "baseline", "speedup", "end_to_end_speedup", "notes", "version", "gradient_bytes",
}  # fmt: skip
OF_THE_RUN = {
    "scenario", "question", "world_size", "gradient_bytes", "baseline", "speedup", "end_to_end_speedup", "notes",
    "version",
}  # fmt: skip
PARTS = ["forward_s", "backward_s", "encode_s", "decode_s", "exposed_comm_s", "optimizer_s"]


def test_the_object_has_every_metric_flat_at_the_top_and_the_baselines_below() -> None:
    obj = to_object(run_result())
    assert set(obj) == KEYS
    assert set(obj["baseline"]) == KEYS - OF_THE_RUN
    assert list(obj["breakdown"]) == PARTS


def test_the_object_holds_the_numbers_of_the_result() -> None:
    run = run_result(num_nodes=4)
    obj = to_object(run)
    assert run.baseline is not None
    assert obj["iteration_s"] == run.result.iteration_s
    assert obj["baseline"]["iteration_s"] == run.baseline.iteration_s
    assert sum(obj["breakdown"].values()) == pytest.approx(obj["iteration_s"], rel=1e-12)
    assert obj["speedup"] == run.baseline.iteration_s / run.result.iteration_s
    assert obj["world_size"] == 32
    assert obj["gradient_bytes"] == to_row({}, obj)["gradient_bytes"] == 440e6


def test_the_object_is_json_as_it_stands() -> None:
    obj = to_object(run_result())
    assert json.loads(json.dumps(obj, allow_nan=False)) == obj


def test_without_a_baseline_the_object_says_null() -> None:
    obj = to_object(run_result(baseline=False))
    assert obj["baseline"] is None
    assert obj["speedup"] is None


def test_a_row_begins_with_what_the_sweep_set() -> None:
    row = to_row({"run.grad_accumulation": 2, "cluster.num_nodes": 8}, to_object(run_result()))
    assert list(row)[:2] == ["run.grad_accumulation", "cluster.num_nodes"]


def test_a_row_names_the_parts_and_holds_plain_values_only() -> None:
    row = to_row({}, to_object(run_result(gbit_per_s=25)))
    assert row["cluster"] == "made_up"
    assert row["workload"] == "bert_base"
    assert row["calibration"] == "made_up_2020"
    assert (row["strategy"], row["baseline"]) == ("binsgdm", "all_reduce")
    assert (row["num_nodes"], row["ranks_per_node"], row["nic_gbit_per_s"]) == (8, 8, 25.0)
    assert all(isinstance(value, str | int | float | None) for value in row.values())


@pytest.mark.parametrize("prefix", ["", "baseline_"])
def test_a_row_has_the_metrics_and_the_breakdown_of_both_strategies(prefix: str) -> None:
    obj = to_object(run_result())
    row = to_row({}, obj)
    metrics = obj["baseline"] if prefix else obj
    assert row[f"{prefix}comm_s"] == metrics["comm_s"]
    assert [row[f"{prefix}breakdown_{part}"] for part in PARTS] == [metrics["breakdown"][part] for part in PARTS]


def test_a_row_without_a_baseline_has_the_same_columns() -> None:
    with_baseline = to_row({}, to_object(run_result()))
    without = to_row({}, to_object(run_result(baseline=False)))
    assert list(with_baseline) == list(without)
    assert without["baseline"] is None
    assert without["baseline_iteration_s"] is None


@dataclass(frozen=True)
class Nics:
    bandwidth: str
    count: int
    gbit_per_s: float


@pytest.mark.parametrize("nics", [Nics("10 Gbit/s", 1, 10.0), Nics("200 Gbit/s", 8, 1600.0), Nics("1 GB/s", 2, 16.0)])
def test_the_rate_of_a_node_counts_all_its_nics(nics: Nics) -> None:
    cluster = {"inter_node": {"bandwidth": nics.bandwidth}, "nics_per_node": nics.count}
    assert nic_gbit_per_s(cluster) == pytest.approx(nics.gbit_per_s, rel=1e-12)

"""A run as a row of a CSV file."""

import csv
import io

import pytest
from msgspec.structs import replace

from simnet.core.units import Bandwidth
from simnet.report.rows import row, table
from tests.helpers.report_samples import run_result

PARTS = ["forward_s", "backward_s", "encode_s", "decode_s", "exposed_comm_s", "optimizer_s"]


def test_a_row_begins_with_what_the_sweep_set() -> None:
    found = row(run_result(), {"run.grad_accumulation": 2, "cluster.num_nodes": 8})
    assert list(found)[:2] == ["run.grad_accumulation", "cluster.num_nodes"]


def test_a_row_names_the_parts_and_holds_plain_values_only() -> None:
    found = row(run_result(gbit_per_s=25))
    assert found["cluster"] == "made_up"
    assert found["workload"] == "bert_base"
    assert found["calibration"] == "made_up_2020"
    assert (found["strategy"], found["baseline"]) == ("binsgdm", "all_reduce")
    assert (found["num_nodes"], found["ranks_per_node"], found["nic_gbit_per_s"]) == (8, 8, 25.0)
    assert found["gradient_bytes"] == 440e6
    assert all(isinstance(value, str | int | float | None) for value in found.values())


@pytest.mark.parametrize("prefix", ["", "baseline_"])
def test_a_row_has_the_metrics_and_the_breakdown_of_both_strategies(prefix: str) -> None:
    result = run_result()
    found = row(result)
    metrics = result.baseline if prefix else result.result
    assert metrics is not None
    assert found[f"{prefix}iteration_s"] == metrics.iterations_s[0]
    assert found[f"{prefix}comm_s"] == metrics.comm_s
    assert [found[f"{prefix}breakdown_{part}"] for part in PARTS] == [
        getattr(metrics.breakdown, part) for part in PARTS
    ]


def test_a_row_without_a_baseline_has_the_same_columns() -> None:
    without = row(run_result(baseline=False))
    assert list(row(run_result())) == list(without)
    assert without["baseline"] is None
    assert without["baseline_iteration_s"] is None


def test_an_interval_is_two_columns() -> None:
    found = row(replace(run_result(), intervals={"speedup": (1.5, 2.5)}))
    assert (found["speedup_low"], found["speedup_high"]) == (1.5, 2.5)


@pytest.mark.parametrize(
    ("bandwidth", "count", "gbit_per_s"), [("10 Gbit/s", 1, 10.0), ("200 Gbit/s", 8, 1600.0), ("1 GB/s", 2, 16.0)]
)
def test_the_rate_of_a_node_counts_all_its_nics(bandwidth: str, count: int, gbit_per_s: float) -> None:
    result = run_result()
    cluster = result.scenario.cluster
    link = replace(cluster.inter_node, bytes_per_s=Bandwidth.parse(bandwidth))
    given = replace(result.scenario, cluster=replace(cluster, inter_node=link, nics_per_node=count))
    assert row(replace(result, scenario=given))["nic_gbit_per_s"] == pytest.approx(gbit_per_s, rel=1e-12)


def test_a_number_of_a_table_reads_back_as_exactly_that_number() -> None:
    result = run_result(num_nodes=4)
    (read,) = csv.DictReader(io.StringIO(table([row(result)]).csv()))
    assert float(read["iteration_s"]) == result.result.iteration_s
    assert read["dense_iteration_s"] == ""

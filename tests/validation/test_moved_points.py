"""Bandwidths on few numbers of nodes move those of the base on others: 1-bit Adam's Table 1 upon its Fig 5a."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from simnet.calibration import merged_calibration, step_part
from simnet.calibration.fit import FittedPart
from simnet.calibration.step_model import Trained
from simnet.calibration.step_rows import StepTable, TimedStep
from simnet.cluster.hardware import Calibration
from simnet.cluster.network_costs import NodesPoint
from simnet.core.schema import build
from simnet.core.units import Bandwidth, Duration, Size
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from simnet.validation import shipped_parts
from simnet.validation.published import one_bit_adam as paper
from simnet.validation.published_rows import PublishedRow
from simnet.workload.workload import Workload

Table = dict[str, Any]
ALGORITHM = "hierarchical"
"""Whose bytes explain Fig 5a best."""
START: Table = {"title": "links in a node are free", "kind": "estimate", "source": "none", "all_reduce": ALGORITHM}


def trained(compute_s: float) -> Trained:
    """Return steps of the paper's model: compute, then one all-reduce over NICs, and next to nothing inside nodes."""
    cluster = shipped_parts.cluster(paper.ETHERNET.part, 2)
    inside = replace(cluster.intra_node, bytes_per_s=Bandwidth(1e15), alpha_s=Duration(0))
    workload = Workload(
        num_elements=paper.NUM_ELEMENTS,
        dtype="fp16",
        forward_s=Duration(compute_s),
        backward_s=Duration(1e-9),
        optimizer_s=Duration(0),
        batch_per_rank=paper.BATCH,
    )
    scenario = Scenario(cluster=replace(cluster, intra_node=inside), workload=workload, strategy=paper.dense(ALGORITHM))
    return Trained(lambda _: scenario, lambda given: simulate(given).result.iteration_s)


def steps(rows: Sequence[PublishedRow], seconds: Mapping[PublishedRow, float]) -> list[TimedStep]:
    found = [
        TimedStep(
            where=row.key, num_nodes=row.nodes, ranks_per_node=row.gpus_per_node, batch=paper.BATCH,
            strategy="all_reduce", step_s=seconds[row],
        )
        for row in rows
    ]  # fmt: skip
    return sorted(found, key=lambda one: one.num_nodes)


def table_1(*nodes: int) -> list[TimedStep]:
    found = paper.table_rows(paper.ETHERNET, paper.ALL_REDUCE, batch_per_gpu=str(paper.BATCH))
    rows = [row for row in found if paper.accumulation(row) == 1 and row.nodes in nodes]
    return steps(rows, {row: paper.table_s(row) for row in rows})


def fitted(rows: Sequence[TimedStep], base: Table, compute_s: float, held_out: Sequence[TimedStep] = ()) -> FittedPart:
    tables = [StepTable(path=Path("steps.csv"), rows=tuple(some), unread=(), digest="") for some in (rows, held_out)]
    return step_part.fit_tables(tables[:1], tables[1:], trained(compute_s), base)


@cache
def fig_5a() -> FittedPart:
    times = paper.compute_times(paper.ETHERNET)
    compute_s = times.forward_s + times.backward_s + times.optimizer_s
    rows = [row for row in paper.figure_rows(paper.ETHERNET, "Adam") if row.nodes > 1]
    return fitted(steps(rows, {row: paper.figure_s(row) for row in rows}), START, compute_s)


def base() -> Table:
    return {**START, **fig_5a().table}


def errors(*nodes: int, upon: Table) -> list[float]:
    """Return the errors of Table 1 on other numbers of nodes than these, which are fitted."""
    others = [one for one in (2, 4, 8, 16) if one not in nodes]
    found = fitted(table_1(*nodes), upon, 1e-9, table_1(*others))
    return [abs(one.error) for one in found.residuals if one.role == "held out"]


def bandwidths(points: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    return {point["nodes"]: point["efficiency"] for point in points}


@pytest.mark.parametrize(("nodes", "before", "after"), [((2,), 0.475, 0.308), ((2, 4), 0.159, 0.209)])
def test_table_1_is_predicted_from_few_nodes(nodes: tuple[int, ...], before: float, after: float) -> None:
    without = {key: value for key, value in base().items() if key != "by_nodes"}
    assert np.mean(errors(*nodes, upon=without)) == pytest.approx(before, abs=0.003)
    assert np.mean(errors(*nodes, upon=base())) == pytest.approx(after, abs=0.003)


MEASURED: Table = {"inter_node": {"efficiency": 0.4}, "by_nodes": [{"nodes": 4, "efficiency": 0.4}]}
GIVEN: Table = {"by_nodes": [{"nodes": 2, "efficiency": 0.9, "latency": "5 us"}]}


def test_one_point_stands_beyond_the_largest_measured_number() -> None:
    found = merged_calibration.lay_over(MEASURED, GIVEN)["by_nodes"]
    moved = round(0.9 * (0.4 / 0.9) ** 0.5, 4)
    assert bandwidths(found) == {2: moved, 4: 0.4, 8: moved}
    assert "latency" not in found[0], "it goes with the bandwidth of the base"
    day, width = 1.25, np.hypot(np.log(1.25), np.log(1.17) * np.sqrt(2))
    assert found[0]["intervals"]["efficiency"] == pytest.approx([1 / day, day], abs=1e-4)
    assert found[1].get("intervals") is None
    assert found[2]["intervals"]["efficiency"] == pytest.approx([np.exp(-width), np.exp(width)], abs=1e-4)


def test_beyond_eight_nodes_another_day_counts_for_less() -> None:
    many = {"by_nodes": [{"nodes": nodes, "efficiency": 0.9} for nodes in (8, 9, 64)]}
    _, eight, nine, most = merged_calibration.lay_over(MEASURED, many)["by_nodes"]
    assert [one["intervals"]["efficiency"][1] for one in (eight, nine, most)] == [1.25, 1.03, 1.03]


def test_a_curve_moves_as_a_whole_and_stays_a_fraction() -> None:
    curve = [["64 KiB", 0.2], ["16 MiB", 0.8]]
    given = {"by_nodes": [{"nodes": 4, "efficiency": curve}, {"nodes": 8, "efficiency": curve}]}
    fast = {**MEASURED, "by_nodes": [{"nodes": 4, "efficiency": [["64 KiB", 0.8], ["16 MiB", 1.0]]}]}
    (_, eight) = merged_calibration.lay_over(fast, given)["by_nodes"]
    factor = np.exp((np.log(0.8 / 0.2) + np.log(1.0 / 0.8)) / 4)
    point = build(NodesPoint, eight, "x")
    assert point.efficiency == ((Size(65536), pytest.approx(0.2 * factor, rel=1e-3)), (Size(2**24), 1.0))


@pytest.mark.parametrize(
    ("measured", "given"),
    [
        ({**MEASURED, "nccl": {}}, GIVEN),
        (MEASURED, {**GIVEN, "all_reduce": "tree"}),
        (MEASURED, {"by_nodes": [{"nodes": 2, "latency": "5 us"}]}),
        (MEASURED, {"inter_node": {"efficiency": 0.9}}),
    ],
)
def test_points_of_another_all_reduce_or_beside_costs_of_nccl_or_without_bandwidths_do_not_stay(
    measured: Table, given: Table
) -> None:
    assert merged_calibration.lay_over(measured, given)["by_nodes"] == MEASURED["by_nodes"]


def test_what_stays_is_said_with_the_base() -> None:
    calibration = build(Calibration, {"title": "t", "kind": "estimate", "source": "s", **GIVEN}, "x")
    given = merged_calibration.Base(name="mine", table={**GIVEN, "kind": "estimate"}, calibration=calibration)
    (note,) = merged_calibration.notes({"codec_efficiency": 0.5, **MEASURED}, given)
    assert note == "bandwidths on 2, 8 nodes are those of mine, times 0.6667"

"""Charts of sweeps and of searches: what is drawn is what was simulated."""

import pytest

import simnet
from simnet.report import charts
from simnet.report.chart import Chart, Curve

BERT = "bert_base_10gbit"
RATE = "cluster.inter_node.bandwidth"
ROLES = ("BinSGDM", "DDP (fp32, ring)")


@pytest.fixture(scope="module")
def sweep() -> simnet.SweepAnswer:
    axes = {"cluster.num_nodes": [1, 2, 4, 8, 16], RATE: ["10 Gbit/s", "100 Gbit/s", "400 Gbit/s"]}
    return simnet.sweep(BERT, axes, draws=20)


def lines(found: Chart) -> dict[str, Curve]:
    return {curve.name: curve for curve in found.curves}


def test_a_line_is_the_speedups_of_its_points_in_order(sweep: simnet.SweepAnswer) -> None:
    drawn = lines(charts.speedups(sweep.points, charts.NODES, roles=ROLES))
    for rate in (10.0, 100.0, 400.0):
        mine = [point for point in sweep.points if point.nic_gbit_per_s == rate]
        assert drawn[f"{rate:g} Gbit/s"].x == [1, 2, 4, 8, 16]
        assert drawn[f"{rate:g} Gbit/s"].y == [point.speedup for point in mine]


def test_up_to_four_lines_have_their_intervals_of_more_only_the_one_asked_about(sweep: simnet.SweepAnswer) -> None:
    assert len([one for one in charts.speedups(sweep.points, charts.NODES, roles=ROLES).curves if one.ends]) == 3
    own = sweep.points[4]  # two nodes
    (one,) = [one for one in charts.speedups(sweep.points, charts.BANDWIDTH, own=own, roles=ROLES).curves if one.ends]
    mine = [point for point in sweep.points if point.num_nodes == own.num_nodes]
    assert one.ends == [point.intervals["speedup"] for point in mine]
    assert one.name == "2 nodes"


def test_the_stacks_of_a_point_add_up_to_its_steps(sweep: simnet.SweepAnswer) -> None:
    points = [point for point in sweep.points if point.num_nodes == 8]
    found = charts.breakdown_over(points, RATE, roles=ROLES)
    heights: dict[float, float] = {}
    for bars in found.bars:
        for at, length in zip(bars.at, bars.lengths, strict=True):
            heights[at] = heights.get(at, 0.0) + length
    steps = [one.iteration_s * 1e3 for point in points for one in (point.result, point.baseline) if one]
    assert [heights[at] for at in sorted(heights)] == pytest.approx(steps)

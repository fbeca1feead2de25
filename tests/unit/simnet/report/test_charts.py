"""Charts of sweeps and of searches: what is drawn is what was simulated."""

import pytest

import simnet
from simnet.report import charts
from simnet.report.chart import Chart, Curve
from tests.helpers.report_samples import sweep_document, sweep_of

BERT = "bert_base_10gbit"
RATE = "cluster.inter_node.bandwidth"
ROLES = ("BinSGDM", "DDP (fp32, ring)")
TWO_NICS = {"cluster.nics_per_node": 2, "run.draws": 0}


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


def test_axes_say_whether_a_bandwidth_is_that_of_one_nic_or_of_all(sweep: simnet.SweepAnswer) -> None:
    two = simnet.sweep(BERT, {"cluster.num_nodes": [2, 4], RATE: ["100 Gbit/s", "200 Gbit/s"]}, settings=TWO_NICS)
    for points, label in (
        (sweep.points, "NIC bandwidth [Gbit/s]"),
        (two.points, "bandwidth of all NICs of a node [Gbit/s]"),
    ):
        over_rate = charts.speedups(points, charts.BANDWIDTH, roles=ROLES).x
        assert over_rate.title == charts.heat_map(points, roles=ROLES).y.title == label
        assert list(over_rate.ticks) == sorted({point.nic_gbit_per_s for point in points})


def test_the_cells_are_the_speedups_and_the_slower_ones_are_counted(sweep: simnet.SweepAnswer) -> None:
    found = charts.heat_map(sweep.points, roles=ROLES)
    assert found.cells is not None
    rates, nodes = (list(scale.ticks.values()) for scale in (found.y, found.x))
    for point in sweep.points:
        row, column = rates.index(f"{point.nic_gbit_per_s:g}"), nodes.index(str(point.num_nodes))
        assert found.cells.speedups[row][column] == point.speedup
    assert f"slower, at {sum((point.speedup or 0) < 1 for point in sweep.points)} of 15" in found.sentence
    gap = charts.heat_map(sweep.points[1:], roles=ROLES).cells
    assert gap is not None
    assert [list(row).count(None) for row in gap.speedups] == [1, 0, 0]


def test_a_sweep_over_quantities_is_drawn_in_their_order() -> None:
    document = sweep_document(("bert_base",), (10, 100), (1, 8))
    first = document["points"][0]
    values = ["25 MiB", "900 KiB", "1 GB"]
    points = [
        {**first, "set": {"strategy.bucket_cap": value}, "speedup": 1 / place} for place, value in enumerate(values, 1)
    ]
    found = charts.speedups(sweep_of({**document, "points": points}).points, "strategy.bucket_cap", roles=ROLES)
    assert list(found.x.ticks.values()) == ["900 KiB", "25 MiB", "1 GB"]
    assert list(found.curves[0].y) == pytest.approx([1 / 2, 1, 1 / 3])


def test_throughput_is_drawn_at_every_bandwidth() -> None:
    found = charts.throughput(sweep_of(sweep_document(("bert_base",), (10, 25, 100), (1, 8))).points, roles=ROLES)
    assert [curve.dash for curve in found.curves if curve.x] == ["-", "--"] * 3 + [":"]
    assert [curve.name for curve in found.curves if curve.name] == [
        "10 Gbit/s", "25 Gbit/s", "100 Gbit/s", "BinSGDM", "DDP (fp32, ring)", "linear (compute alone)"
    ]  # fmt: skip


def test_the_ideal_of_a_fixed_global_batch_is_linear_in_its_own_compute() -> None:
    document = sweep_document(("bert_base",), (10,), (1, 2))
    for point, count in zip(document["points"], (4, 2), strict=True):
        point["scenario"]["run"] |= {"global_batch": 4 * 8 * 32, "grad_accumulation": None}
        parts = point["baseline"]["breakdown"] | {"forward_s": count * 0.04, "backward_s": count * 0.08}
        point["baseline"]["breakdown"] = parts | {"exposed_comm_s": 0.0}
        point["result"] |= {"samples_per_s": 1024 / point["result"]["iterations_s"][0]}
    ideal = charts.ideal_samples_per_s(sweep_of(document).points)
    assert ideal == {1: pytest.approx(1024 / 0.486), 2: pytest.approx(1024 / 0.246)}


def test_the_stacks_of_a_point_add_up_to_its_steps(sweep: simnet.SweepAnswer) -> None:
    points = [point for point in sweep.points if point.num_nodes == 8]
    found = charts.breakdown_over(points, RATE, roles=ROLES)
    heights: dict[float, float] = {}
    for bars in found.bars:
        for at, length in zip(bars.at, bars.lengths, strict=True):
            heights[at] = heights.get(at, 0.0) + length
    steps = [one.iteration_s * 1e3 for point in points for one in (point.result, point.baseline) if one]
    assert [heights[at] for at in sorted(heights)] == pytest.approx(steps)

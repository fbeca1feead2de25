"""Charts of sweeps, of one step and of comparisons: what is drawn is what was simulated."""

import math

import pytest

import simnet
from simnet.calibration.comparison import Comparison
from simnet.core.units import format_seconds
from simnet.engine.result import RunResult
from simnet.report import charts, comparison_charts, step_charts
from simnet.report.chart import Chart, Curve
from tests.helpers.report_samples import uneven_run

BERT = "bert_base_10gbit"
RATE = "cluster.inter_node.bandwidth"
ROLES = ("BinSGDM", "DDP (fp32, ring)")


@pytest.fixture(scope="module")
def sweep() -> simnet.SweepAnswer:
    axes = {"cluster.num_nodes": [1, 2, 4, 8, 16], RATE: ["10 Gbit/s", "100 Gbit/s", "400 Gbit/s"]}
    return simnet.sweep(BERT, axes, draws=20)


def lines(chart: Chart) -> dict[str, Curve]:
    return {curve.name: curve for curve in chart.curves}


def test_a_line_is_the_speedups_of_its_points_in_order(sweep: simnet.SweepAnswer) -> None:
    drawn = lines(charts.speedups(sweep.points, charts.NODES, roles=ROLES))
    for rate in (10.0, 100.0, 400.0):
        points = [point for point in sweep.points if point.nic_gbit_per_s == rate]
        assert drawn[f"{rate:g} Gbit/s"].x == [1, 2, 4, 8, 16]
        assert drawn[f"{rate:g} Gbit/s"].y == [point.speedup for point in points]


def test_up_to_four_lines_have_their_intervals_of_more_only_the_one_asked_about(sweep: simnet.SweepAnswer) -> None:
    over_nodes = charts.speedups(sweep.points, charts.NODES, roles=ROLES).curves
    assert [bool(curve.ends) for curve in over_nodes] == [True] * 3
    asked = sweep.points[4]  # two nodes
    over_rates = charts.speedups(sweep.points, charts.BANDWIDTH, asked=asked, roles=ROLES).curves
    points = [point for point in sweep.points if point.num_nodes == asked.num_nodes]
    intervals = [point.intervals["speedup"] for point in points]
    assert {curve.name: curve.ends for curve in over_rates if curve.ends} == {"2 nodes": intervals}


def test_the_stacks_of_a_point_add_up_to_its_steps(sweep: simnet.SweepAnswer) -> None:
    points = [point for point in sweep.points if point.num_nodes == 8]
    chart = charts.breakdown_over(points, RATE, roles=ROLES)
    heights: dict[float, float] = {}
    for bars in chart.bars:
        for at, length in zip(bars.at, bars.lengths, strict=True):
            heights[at] = heights.get(at, 0.0) + length
    steps = [side.iteration_s * 1e3 for point in points for side in (point.result, point.baseline) if side]
    assert [heights[at] for at in sorted(heights)] == pytest.approx(steps)


@pytest.fixture
def uneven() -> RunResult:
    return uneven_run()


@pytest.fixture(scope="module")
def run() -> RunResult:
    return simnet.simulate("bert_base_10gbit")


def test_the_parts_of_a_bar_add_up_to_the_step(run: RunResult) -> None:
    chart = step_charts.breakdown([run])
    assert run.baseline is not None
    for index, step in enumerate((run.result, run.baseline)):
        assert sum(bars.lengths[index] for bars in chart.bars) * 1e-3 == pytest.approx(step.iteration_s)
        assert chart.table.rows[-1][1 + index] == format_seconds(step.iteration_s)


def test_every_bar_of_the_tornado_starts_at_the_prediction(run: RunResult) -> None:
    chart = step_charts.tornado(run)
    lower, upper = chart.bars
    middle = run.speedup or 0.0
    assert {*lower.starts, *upper.starts} == {middle}
    for influence, low, high in zip(run.sensitive_to, lower.lengths, upper.lengths, strict=True):
        assert low <= 0 <= high
        ends = sorted([*influence.values, middle])
        assert (middle + low, middle + high) == (pytest.approx(ends[0]), pytest.approx(ends[-1]))
    assert list(chart.y.ticks.values())[-1] == step_charts.ALL
    assert chart.curves[0].x == run.intervals["speedup"]
    first, last = chart.x.ends or (0, 0)
    assert first < min(run.intervals["speedup"]) < max(run.intervals["speedup"]) < last


def test_percentiles_are_marked_where_the_result_has_them(uneven: RunResult) -> None:
    marks = {curve.name: (curve.x[0], curve.y[0]) for curve in step_charts.distribution(uneven).curves if curve.marker}
    assert marks["p95: 95.05 ms"] == (pytest.approx(uneven.result.p95_s * 1e3), pytest.approx(math.log10(19)))
    assert marks["p99: 198 ms"] == (pytest.approx(198.02), pytest.approx(math.log10(99)))


def test_bars_of_lost_time_are_in_ms_and_in_per_cent_of_the_own_step(uneven: RunResult) -> None:
    absolute, of_step = (step_charts.lost_time(uneven, relative=relative) for relative in (False, True))
    assert [list(bars.lengths) for bars in absolute.bars] == [
        pytest.approx([20, 10, 50, 20]), pytest.approx([-20, -10, -50, -20])
    ]  # fmt: skip
    assert list(of_step.bars[0].lengths) == pytest.approx([100 * lost / 50.5 for lost in (20, 10, 50, 20)])
    assert list(of_step.bars[1].lengths) == pytest.approx([-100 * lost / 101 for lost in (20, 10, 50, 20)])
    assert list(absolute.y.ticks.values()) == [
        "slow rank: node 1, compute slowdown 1.5", "jitter of compute: cv 0.1", "all together", "of it by interaction"
    ]  # fmt: skip


def test_what_is_predicted_lies_over_what_was_measured() -> None:
    rows = [
        Comparison(series="a", label="1", measured=1.0, predicted=1.1, interval=(0.9, 1.3)),
        Comparison(series="b", label="2", measured=2.0, predicted=1.8),
    ]
    chart = comparison_charts.predicted_over_measured(rows, "time [ms]", 1e3)
    line, first, second = chart.curves
    assert line.x == line.y
    assert (first.x, first.y, first.ends) == ([1000.0], [1100.0], [(900.0, 1300.0)])
    assert (second.x, second.y, second.ends) == ([2000.0], [1800.0], ())
    assert chart.x.ends == chart.y.ends


def test_residuals_that_were_held_out_are_filled() -> None:
    rows = [
        Comparison(series="a", label="1", measured=1.0, predicted=1.02, role="fitted"),
        Comparison(series="a", label="2", measured=2.0, predicted=1.6, role="held out"),
    ]
    fitted, held_out = comparison_charts.residuals(rows).curves
    assert (fitted.is_open, held_out.is_open) == (True, False)
    assert (fitted.y, held_out.y) == ([pytest.approx(0.02)], [pytest.approx(-0.2)])
    low, high = comparison_charts.residuals(rows).y.ends or (0, 0)
    assert low < -0.2 < 0.2 < high

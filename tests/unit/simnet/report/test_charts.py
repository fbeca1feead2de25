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


@pytest.fixture
def uneven() -> RunResult:
    return uneven_run()


@pytest.fixture(scope="module")
def run() -> RunResult:
    return simnet.simulate("bert_base_10gbit")


def test_the_parts_of_a_bar_add_up_to_the_step(run: RunResult) -> None:
    found = step_charts.breakdown([run])
    assert run.baseline is not None
    for index, step in enumerate((run.result, run.baseline)):
        assert sum(bars.lengths[index] for bars in found.bars) * 1e-3 == pytest.approx(step.iteration_s)
        assert found.table.rows[-1][1 + index] == format_seconds(step.iteration_s)


def test_every_bar_of_the_tornado_starts_at_the_prediction(run: RunResult) -> None:
    found = step_charts.tornado(run)
    lower, upper = found.bars
    middle = run.speedup or 0.0
    assert {*lower.starts, *upper.starts} == {middle}
    for one, low, high in zip(run.sensitive_to, lower.lengths, upper.lengths, strict=True):
        assert low <= 0 <= high
        ends = sorted([*one.values, middle])
        assert (middle + low, middle + high) == (pytest.approx(ends[0]), pytest.approx(ends[-1]))
    assert list(found.y.ticks.values())[-1] == step_charts.ALL
    assert found.curves[0].x == run.intervals["speedup"]
    first, last = found.x.ends or (0, 0)
    assert first < min(run.intervals["speedup"]) < max(run.intervals["speedup"]) < last


def test_percentiles_are_marked_where_the_result_has_them(uneven: RunResult) -> None:
    marks = {curve.name: (curve.x[0], curve.y[0]) for curve in step_charts.distribution(uneven).curves if curve.marker}
    assert marks["p95: 95.05 ms"] == (pytest.approx(uneven.result.p95_s * 1e3), pytest.approx(math.log10(19)))
    assert marks["p99: 198 ms"] == (pytest.approx(198.02), pytest.approx(math.log10(99)))


def test_bars_of_lost_time_are_in_ms_and_in_per_cent_of_the_own_step(uneven: RunResult) -> None:
    absolute, relative = (step_charts.lost_time(uneven, relative=one) for one in (False, True))
    assert [list(bars.lengths) for bars in absolute.bars] == [
        pytest.approx([20, 10, 50, 20]), pytest.approx([-20, -10, -50, -20])
    ]  # fmt: skip
    assert list(relative.bars[0].lengths) == pytest.approx([100 * one / 50.5 for one in (20, 10, 50, 20)])
    assert list(relative.bars[1].lengths) == pytest.approx([-100 * one / 101 for one in (20, 10, 50, 20)])
    assert list(absolute.y.ticks.values()) == [
        "slow rank: node 1, compute slowdown 1.5", "jitter of compute: cv 0.1", "all together", "of it by interaction"
    ]  # fmt: skip


def test_what_is_predicted_lies_over_what_was_measured() -> None:
    rows = [
        Comparison(series="a", label="1", measured=1.0, predicted=1.1, interval=(0.9, 1.3)),
        Comparison(series="b", label="2", measured=2.0, predicted=1.8),
    ]
    found = comparison_charts.predicted_over_measured(rows, "time [ms]", 1e3)
    line, first, second = found.curves
    assert line.x == line.y
    assert (first.x, first.y, first.ends) == ([1000.0], [1100.0], [(900.0, 1300.0)])
    assert (second.x, second.y, second.ends) == ([2000.0], [1800.0], ())
    assert found.x.ends == found.y.ends


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

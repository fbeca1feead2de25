"""Charts of one step: parts that add up, ends of uncertain values, the distribution of iterations, lost time."""

import math

import pytest

import simnet
from simnet.core.units import format_seconds
from simnet.engine.result import RunResult
from simnet.report import step_charts
from tests.helpers.report_samples import uneven_run


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
    for one, low, high in zip(run.hangs_on, lower.lengths, upper.lengths, strict=True):
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

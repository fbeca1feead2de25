"""Races: steps measured times seconds simulated, dense stages and first steps counted, who is first and how sure."""

import math
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from simnet.analysis.convergence import load
from simnet.analysis.time_to_target import TimesToTarget, times_to_target
from simnet.analysis.tuned_steps import StepCost, step_costs
from simnet.cluster.hardware import Calibration, LinkCalibration
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth
from simnet.report import figures
from simnet.report.rows import row_of
from simnet.report.time_to_target import FIELDS, time_to_target_page
from simnet.strategies import Marsit, OneBitAdam
from tests.helpers.golden import assert_golden
from tests.helpers.time_to_target_samples import scenario, simple_costs, trainings, write_trainings

RATE = Bandwidth(1.25e9)


@pytest.fixture
def measured(tmp_path):
    return load(str(write_trainings(tmp_path / "t.json")))


def run(measured, *, costs=simple_costs, rates=(RATE,), **options) -> TimesToTarget:
    return times_to_target(options.pop("given", scenario()), measured, bandwidths=rates, costs=costs, **options)


def by_name(times: TimesToTarget, rate: int = 0) -> dict:
    return {system.name: system for system in times.bandwidths[rate].systems}


def test_the_time_to_a_target_is_the_measured_steps_times_the_simulated_ones(measured):
    times = run(measured)
    runners = by_name(times)
    assert (runners["dense"].steps, runners["quick"].steps) == (30, 40)
    assert runners["dense"].time_s == 0.5 + 30 * 3.0
    assert runners["quick"].time_s == 0.5 + 40 * 2.0
    # 4 bits an element and a scale of 4 bytes for 8192 of them: each of 4 nodes sends its own to three others.
    assert runners["quick"].sent_bytes == pytest.approx(40 * 3 * 10_000_000 * (4 / 8 + 4 / 8192), rel=1e-5)
    (at_rate,) = row_of(FIELDS, times)["bandwidths"]
    assert at_rate["bandwidth_bytes_per_s"] == 1.25e9
    assert [system["name"] for system in at_rate["systems"]] == ["quick", "dense", "adam"]
    assert at_rate["systems"][0]["time_to_target_s"] == 80.5


def test_the_dense_stage_of_1_bit_adam_and_every_so_manieth_step_of_marsit_take_dense_steps():
    times = {"first_s": 0.5, "step_s": 1.0, "dense_s": 3.0}
    adam = StepCost(strategy=OneBitAdam(dense_steps=15), **times)
    assert [adam.elapsed_s(steps) for steps in (10, 40)] == [0.5 + 10 * 3.0, 0.5 + 15 * 3.0 + 25 * 1.0]
    marsit = StepCost(strategy=Marsit(sync_period=10), **times)
    assert [marsit.elapsed_s(steps) for steps in (9, 25)] == [0.5 + 9.0, 0.5 + 23 * 1.0 + 2 * 3.0]
    assert StepCost(strategy=Marsit(sync_period=None), first_s=0.0, step_s=1.0).elapsed_s(25) == 25.0


def test_of_two_trainings_the_interval_holds_the_time_and_of_unequal_ones_the_longest_counts(measured):
    two = replace(measured, curves=tuple(curve for curve in measured.curves if curve.seed < 2))
    runner = by_name(run(two))["dense"]
    assert runner.time_s == 0.5 + 40 * 3.0
    assert runner.interval_s == (0.5 + 30 * 3.0, runner.time_s)
    short = tuple(
        replace(curve, steps=curve.steps[:3], values=curve.values[:3]) if curve.seed == 0 else curve
        for curve in measured.curves
    )
    times = run(replace(measured, curves=short))
    assert times.baseline_training_s(times.bandwidths[0]) == 0.5 + 40 * 3.0
    assert by_name(times)["dense"].num_reached == 3


def test_draws_widen_the_intervals(measured):
    link = LinkCalibration(efficiency=0.5)
    calibration = Calibration(inter_node=link, intervals={"inter_node.efficiency": (0.7, 1.4)})
    exact, drawn = (
        by_name(run(measured, costs=step_costs, given=replace(scenario(draws=draws), calibration=calibration)))
        for draws in (0, 40)
    )
    for name in ("dense", "quick"):
        (low, high), (drawn_low, drawn_high) = exact[name].interval_s, drawn[name].interval_s
        assert drawn_low < low
        assert drawn_high > high
        assert exact[name].time_s == drawn[name].time_s


def test_a_system_that_cannot_be_predicted_is_left_out_with_the_reason(tmp_path):
    systems = {**trainings()["systems"], "quick": {"title": "EF", "strategy": {"kind": "ef_sign_sgd"}}}
    measured = load(str(write_trainings(tmp_path / "t.json", systems=systems)))
    bare = replace(scenario().workload, tensors=(), num_elements=10_000_000)
    times = run(measured, costs=step_costs, given=replace(scenario(), workload=bare))
    assert set(by_name(times)) == {"dense", "adam"}
    ((name, reason),) = times.left_out
    assert name == "quick"
    assert "needs the shapes of the tensors" in reason


def on_16_ranks() -> dict[str, Any]:
    """Return trainings of which those without compression were made on other ranks, too."""
    curves = trainings()["curves"]
    return {"curves": curves + [{**curve, "ranks": 16} for curve in curves if curve["system"] == "dense"]}


PAGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "usual": ({}, {"price_per_gpu_hour": 2.5}),
    "surely first": ({}, {"costs": partial(simple_costs, qsgd=0.5), "steps": 4000}),
    "days": ({}, {"steps": 4_000_000}),
    "kernels without an estimate": ({}, {"given": replace(scenario(), calibration=Calibration())}),
    "all alike": ({}, {"costs": partial(simple_costs, all_reduce=1.0, qsgd=1.0)}),
    "a baseline that never gets there": ({}, {"target": 0.5}),
    "first and missed by some": ({}, {"target": 1.9}),
    "of another model": ({"num_parameters": 121_153}, {}),
    "on other ranks": (on_16_ranks(), {}),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_the_committed_one(name, tmp_path):
    changes, options = PAGES[name]
    page = str(time_to_target_page(run(load(str(write_trainings(tmp_path / "t.json", **changes))), **options)))
    assert_golden(f"race_{name.replace(' ', '_')}.txt", page)


def test_a_price_is_that_of_all_gpus_for_the_time(measured):
    times = run(measured, price_per_gpu_hour=2.5, steps=4000)
    assert times.price_of(7200.0) == 4 * 2 * 2.5
    quick = by_name(times)["quick"].time_s / 3600 * 4 * 2.5
    (at_rate,) = row_of(FIELDS, times)["bandwidths"]
    assert at_rate["systems"][0]["price_to_target"] == pytest.approx(quick)
    assert at_rate["systems"][0]["price_to_target_interval"][0] <= at_rate["systems"][0]["price_to_target"]
    assert run(measured).price_of(7200.0) is None


def ending_in_null(measured):
    first = measured.curves[0]
    return replace(measured, curves=(replace(first, values=(*first.values[:-1], None)), *measured.curves[1:]))


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        (lambda trainings: trainings, {"ranks": 8}, "--ranks: 8: must be one of 4"),
        (lambda trainings: trainings, {"target": math.nan}, "--target: nan: must be finite"),
        (lambda trainings: replace(trainings, target=None), {}, "target: missing; give one with --target"),
        (ending_in_null, {}, "curves of 'dense': end in null for some seed"),
    ],
)
def test_what_was_not_measured_is_refused(measured, change, options, said):
    with pytest.raises(SimnetError, match=said):
        run(change(measured), **options)


def test_a_curve_of_one_point_is_seen(measured):
    curves = tuple(replace(curve, steps=curve.steps[:1], values=curve.values[:1]) for curve in measured.curves)
    axes = figures.time_to_target(run(replace(measured, curves=curves, target=4.6))).axes[0]
    assert {line.get_marker() for line in axes.get_lines() if len(line.get_xdata()) == 1} == {"o"}

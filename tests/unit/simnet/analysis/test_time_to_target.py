"""Races: steps measured times seconds simulated, dense stages and first steps counted, who is first and how sure."""

import math

import pytest
from msgspec.structs import replace

from simnet.analysis.convergence import load
from simnet.analysis.step_cost import StepCost
from simnet.analysis.time_to_target import TimesToTarget, times_to_target
from simnet.analysis.whatif import SLOW_KERNEL_FACTOR
from simnet.cluster.hardware import Calibration, LinkCalibration
from simnet.cluster.kernel_times import KernelTime
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth, Duration
from simnet.engine.simulation import simulate
from simnet.report import figures
from simnet.report.time_to_target import time_to_target_object, time_to_target_page, verdict
from simnet.strategies import QSGD, Marsit, OneBitAdam
from simnet.strategies.base import every_kernel
from tests.helpers.time_to_target_samples import scenario, simple_simulate, trainings, write_trainings

RATE = Bandwidth(1.25e9)


@pytest.fixture
def measured(tmp_path):
    return load(str(write_trainings(tmp_path / "t.json")))


def run(measured, *, simulator=simple_simulate, rates=(RATE,), **options) -> TimesToTarget:
    return times_to_target(options.pop("given", scenario()), measured, simulator, bandwidths=rates, **options)


def by_name(found: TimesToTarget, rate: int = 0) -> dict:
    return {system.name: system for system in found.bandwidths[rate].systems}


def test_the_time_to_a_target_is_the_measured_steps_times_the_simulated_ones(measured):
    runners = by_name(run(measured))
    assert (runners["dense"].steps, runners["quick"].steps) == (30, 40)
    assert runners["dense"].time_s == 0.5 + 30 * 3.0
    assert runners["quick"].time_s == 0.5 + 40 * 2.0
    assert runners["quick"].sent_bytes == 40 * 20.0


def test_the_dense_stage_of_1_bit_adam_takes_dense_steps():
    cost = StepCost(
        strategy=OneBitAdam(dense_steps=15), first_s=0.5, step_s=1.0, step_bytes=10, dense_s=3.0, dense_bytes=30
    )
    assert cost.elapsed_s(10) == 0.5 + 10 * 3.0
    assert cost.elapsed_s(40) == 0.5 + 15 * 3.0 + 25 * 1.0
    assert cost.sent_bytes(40) == 15 * 30 + 25 * 10


def test_every_so_manieth_step_of_marsit_is_dense():
    cost = StepCost(strategy=Marsit(sync_period=10), first_s=0.0, step_s=1.0, step_bytes=1, dense_s=5.0, dense_bytes=32)
    assert cost.elapsed_s(9) == 9.0
    assert cost.elapsed_s(25) == 23 * 1.0 + 2 * 5.0
    never = StepCost(strategy=Marsit(sync_period=None), first_s=0.0, step_s=1.0, step_bytes=1)
    assert never.elapsed_s(25) == 25.0


def test_1_bit_adam_is_simulated_in_both_stages(measured):
    cost = by_name(run(measured))["adam"].cost
    # The dense stage is tuned, too: DDP forms its buckets.
    assert (cost.step_s, cost.dense_s, cost.first_s) == (1.0, 3.0, 0.5)


def test_a_stretched_training_has_a_longer_dense_stage(measured):
    found = run(measured, steps=4000)
    runners = by_name(found)
    assert found.scale == 100
    assert runners["adam"].cost.strategy.dense_steps == 1500
    assert runners["dense"].time_s == 0.5 + 3000 * 3.0


def test_a_system_that_fails_in_half_of_its_trainings_never_gets_there(measured):
    runner = by_name(run(measured))["adam"]
    assert (runner.num_reached, runner.num_seeds) == (1, 3)
    assert (runner.steps, runner.time_s, runner.interval_s, runner.speedup) == (None, None, None, None)
    assert runner.final is None


def test_one_failed_training_leaves_the_interval_open(measured):
    runner = by_name(run(measured, target=1.9))["quick"]
    assert (runner.num_reached, runner.steps) == (2, 40)
    assert runner.interval_s == (80.5, None)


def test_speedups_compare_trainings_of_one_seed(measured):
    """dense reaches 2.0 after 30, 40 and 20 steps, quick after 40, 40 and 30."""
    runner = by_name(run(measured))["quick"]
    ratios = sorted([90.5 / 80.5, 120.5 / 80.5, 60.5 / 60.5])
    assert runner.speedup.value == pytest.approx(ratios[1])
    low, high = runner.speedup.interval
    assert (low, high) == (ratios[0], ratios[2])


def test_the_first_to_the_target_comes_first_at_every_bandwidth(measured):
    found = run(measured, rates=(RATE, Bandwidth(12.5e9)))
    assert [there.bandwidth for there in found.bandwidths] == [RATE, Bandwidth(12.5e9)]
    for there in found.bandwidths:
        times = [math.inf if one.time_s is None else one.time_s for one in there.systems]
        assert times == sorted(times)
    assert by_name(found, 1)["dense"].time_s == pytest.approx(by_name(found)["dense"].time_s / 10)


def test_draws_widen_the_intervals(measured):
    link = LinkCalibration(efficiency=0.5)
    calibration = Calibration(inter_node=link, intervals={"inter_node.efficiency": (0.7, 1.4)})
    exact, drawn = (
        by_name(run(measured, simulator=simulate, given=replace(scenario(draws=draws), calibration=calibration)))
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
    found = run(measured, simulator=simulate, given=replace(scenario(), workload=bare))
    assert set(by_name(found)) == {"dense", "adam"}
    ((name, reason),) = found.left_out
    assert name == "quick"
    assert "needs the shapes of the tensors" in reason


def test_a_system_that_was_trained_on_other_ranks_is_left_out_with_where_it_is(tmp_path):
    curves = trainings()["curves"]
    on_16 = [{**curve, "ranks": 16} for curve in curves if curve["system"] == "dense"]
    found = run(load(str(write_trainings(tmp_path / "t.json", curves=curves + on_16))))
    assert found.left_out == tuple((name, "not trained on 16 ranks; --ranks 4 has it") for name in ("quick", "adam"))
    assert "not predicted: quick, adam: not trained on 16 ranks; --ranks 4 has it" in str(time_to_target_page(found))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ranks": 8}, "--ranks: 8: must be one of 4"),
        ({"target": math.nan}, "--target: nan: must be finite"),
    ],
)
def test_what_was_not_measured_is_refused(measured, options, said):
    with pytest.raises(SimnetError, match=said):
        run(measured, **options)


def test_without_a_target_one_is_asked_for(tmp_path):
    measured = load(str(write_trainings(tmp_path / "t.json", target=None)))
    with pytest.raises(SimnetError, match="target: missing; give one with --target"):
        run(measured)


def test_the_verdict_names_who_is_surely_first(measured):
    found = run(measured)
    assert "QSGD is first and within uncertainty: 1.12" in verdict(found, found.bandwidths[0])

    def faster(given):
        result = simple_simulate(given)
        is_quick = isinstance(given.strategy, QSGD)
        return replace(result, result=replace(result.result, iterations_s=(0.5,))) if is_quick else result

    found = run(measured, simulator=faster)
    assert "QSGD is first and pays: 4." in verdict(found, found.bandwidths[0])


def test_a_system_whose_kernels_have_no_estimate_is_marked(measured):
    bare = replace(scenario(), calibration=Calibration())
    found = run(measured, given=bare)
    assert by_name(found)["quick"].unmeasured
    assert verdict(found, found.bandwidths[0]).endswith("Sooner, if their kernels are fast: QSGD.")
    assert "QSGD *" in str(time_to_target_page(found))


def test_slow_kernels_can_turn_a_sure_gain_into_an_unsure_one(measured):
    """In the simple simulator kernels take no time; here they take all of it."""

    def slower(given):
        result = simple_simulate(given)
        factor = 1 / given.calibration.codec_efficiency if isinstance(given.strategy, QSGD) else 1.0
        return replace(result, result=replace(result.result, iterations_s=(0.5 * factor * result.result.iteration_s,)))

    runner = by_name(run(measured, simulator=slower))["quick"]
    speedup = runner.speedup
    assert speedup.if_kernels_slow == pytest.approx(speedup.value / SLOW_KERNEL_FACTOR)
    assert speedup.least == pytest.approx(min(speedup.if_kernels_slow, speedup.interval[0]))


def test_the_verdict_says_when_none_is_sooner(measured):
    def alike(given):
        result = simple_simulate(given)
        return replace(result, result=replace(result.result, iterations_s=(1.0,)))

    found = run(measured, simulator=alike)
    assert verdict(found, found.bandwidths[0]) == "10 Gbit/s a NIC: no system is sooner than DDP fp32 (30 s)."


def test_a_baseline_that_never_gets_there_is_told(measured):
    found = run(measured, target=0.5)
    assert "misses the target" in verdict(found, found.bandwidths[0])


def test_a_report_tells_what_it_stands_on(measured):
    text = str(time_to_target_page(run(measured, steps=4000)))
    assert "validation loss of at most 2 nats, trained on 4 ranks" in text
    assert "1 of 3" in text
    assert "never" in text
    assert "one measured step stands for 100 steps" in text
    assert "curves and steps are of one model by its number of parameters, 10,000,000" in text
    assert "a note on qsgd" in text


def test_an_object_holds_the_same_as_the_report(measured):
    found = time_to_target_object(run(measured))
    (at_rate,) = found["bandwidths"]
    assert at_rate["bandwidth_bytes_per_s"] == 1.25e9
    assert [system["name"] for system in at_rate["systems"]] == ["quick", "dense", "adam"]
    assert at_rate["systems"][0]["time_to_target_s"] == 80.5


def test_of_two_trainings_the_interval_holds_the_time_that_is_told(measured):
    curves = tuple(one for one in measured.curves if one.seed < 2)
    runner = by_name(run(replace(measured, curves=curves)))["dense"]
    assert runner.time_s == 0.5 + 40 * 3.0
    assert runner.interval_s == (0.5 + 30 * 3.0, runner.time_s)


def test_a_baseline_without_a_value_at_its_end_is_not_said_to_be_missing(measured):
    first = measured.curves[0]
    curves = (replace(first, values=(*first.values[:-1], None)), *measured.curves[1:])
    with pytest.raises(SimnetError, match=r"curves of 'dense': end in null for some seed"):
        run(replace(measured, curves=curves))


def test_times_are_told_without_powers_of_ten(measured):
    lines = str(time_to_target_page(run(measured, steps=4_000_000))).splitlines()
    assert any("2,500" in line for line in lines)  # hours of 3,000,000 steps of 3 s
    assert not [line for line in lines if "e+0" in line]


@pytest.mark.parametrize("num_heats", [1, 2, 3, 7])
def test_a_figure_has_a_panel_for_each_bandwidth_and_no_other(measured, num_heats):
    rates = tuple(Bandwidth.parse(f"{10 * (1 + number)} Gbit/s") for number in range(num_heats))
    figure = figures.time_to_target(times_to_target(scenario(), measured, simple_simulate, bandwidths=rates))
    assert [axes.get_title() for axes in figure.axes] == [f"NIC {rate.text()}" for rate in rates]


def test_a_legend_names_others_only_if_there_are_some(measured):
    def names(found: TimesToTarget) -> list[str]:
        return sorted(text.get_text() for text in figures.time_to_target(found).legends[0].get_texts())

    quick = "QSGD (kernels estimated)"
    assert names(run(measured)) == ["DDP fp32 (baseline)", quick, "others (kernels estimated)", "target 2"]
    two = replace(measured, curves=tuple(one for one in measured.curves if one.system != "adam"))
    assert names(run(two)) == ["DDP fp32 (baseline)", quick, "target 2"]


def test_a_title_of_any_length_and_with_any_character_is_cut_to_fit(measured):
    systems = {**measured.systems, "quick": replace(measured.systems["quick"], title="Q\n\x1b" + 500 * "x")}
    legend = figures.time_to_target(run(replace(measured, systems=systems))).legends[0]
    assert "Q ?" + 30 * "x" + "... (kernels estimated)" in [text.get_text() for text in legend.get_texts()]


def test_a_curve_of_one_point_is_seen(measured):
    curves = tuple(replace(one, steps=one.steps[:1], values=one.values[:1]) for one in measured.curves)
    axes = figures.time_to_target(run(replace(measured, curves=curves, target=4.6))).axes[0]
    assert {line.get_marker() for line in axes.get_lines() if len(line.get_xdata()) == 1} == {"o"}


@pytest.mark.parametrize(
    ("calibration", "title", "style"),
    [
        (scenario().calibration, "QSGD (kernels estimated)", "--"),
        (Calibration(), "QSGD (kernels: measure first)", "-."),
        (
            Calibration(kernels={name: KernelTime(s_per_element=Duration(0)) for name in every_kernel()}),
            "QSGD",
            "-",
        ),
    ],
    ids=["estimated", "unmeasured", "timed"],
)
def test_the_figure_marks_systems_whose_kernels_have_no_time(calibration, title, style, measured):
    figure = figures.time_to_target(run(measured, given=replace(scenario(), calibration=calibration)))
    (entry,) = [line for line in figure.legends[0].legend_handles if line.get_label() == title]
    assert entry.get_linestyle() == style
    assert style in {line.get_linestyle() for line in figure.axes[0].get_lines() if len(line.get_xdata()) > 1}


def test_the_table_marks_systems_whose_kernels_are_estimated(measured):
    text = str(time_to_target_page(run(measured)))
    assert "QSGD ~" in text
    assert "~ kernels of this system are estimated" in text
    assert "DDP fp32 ~" not in text


def test_a_price_is_that_of_all_gpus_for_the_time(measured):
    found = run(measured, price_per_gpu_hour=2.5, steps=4000)
    assert found.price_of(7200.0) == 4 * 2 * 2.5
    quick, dense = (by_name(found)[name].time_s / 3600 * 4 * 2.5 for name in ("quick", "dense"))
    text = verdict(found, found.bandwidths[0])
    assert f", 2.22 h for {quick:.4g} in place of 2.5 h for {dense:.4g}." in text
    rows = str(time_to_target_page(found)).partition("cost of 4 GPUs up to the target, at 2.5 a GPU-hour:")[2]
    assert [line.split()[:2] for line in rows.splitlines() if line.startswith("QSGD")] == [["QSGD", f"{quick:.3g}"]]
    (at_rate,) = time_to_target_object(found)["bandwidths"]
    assert at_rate["systems"][0]["price_to_target"] == pytest.approx(quick)
    assert at_rate["systems"][0]["price_to_target_interval"][0] <= at_rate["systems"][0]["price_to_target"]
    assert run(measured).price_of(7200.0) is None


def test_long_times_are_told_in_hours_and_days(measured):
    found = run(measured, steps=4_000_000)
    assert "2,222 h (92.6 days) in place of 2,500 h (104 days)" in verdict(found, found.bandwidths[0])


def test_a_first_system_that_misses_the_target_with_some_seeds_is_not_named_without_that(measured):
    found = run(measured, target=1.9)
    assert "only 2 of its 3 trainings reach the target" in verdict(found, found.bandwidths[0])


def test_a_verdict_on_curves_of_another_model_says_what_it_assumes(measured):
    found = run(replace(measured, num_parameters=121_153))
    assert verdict(found, found.bandwidths[0]).startswith(
        "10 Gbit/s a NIC, if 10 M parameters trained as a made-up task does: "
    )
    text = " ".join(str(time_to_target_page(found)).split())
    assert "10,000,000 parameters" in text
    assert "a made-up task (121,153" in text


def test_of_trainings_of_unequal_length_the_longest_counts(measured):
    short = tuple(
        replace(one, steps=one.steps[:3], values=one.values[:3]) if one.seed == 0 else one for one in measured.curves
    )
    found = run(replace(measured, curves=short))
    assert found.baseline_training_s(found.bandwidths[0]) == 0.5 + 40 * 3.0
    assert by_name(found)["dense"].num_reached == 3

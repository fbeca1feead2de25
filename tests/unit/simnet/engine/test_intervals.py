"""Calibrations drawn from intervals, the intervals of results that follow, and what a result hangs on."""

import math

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from simnet.analysis.tune import compared
from simnet.cli.main import cli
from simnet.cluster.faults import ComputeJitter
from simnet.cluster.hardware import Calibration, LinkCalibration, SlowNode
from simnet.cluster.kernel_times import KernelTime
from simnet.core import files
from simnet.core.schema import build
from simnet.core.units import Bandwidth, Duration, Size
from simnet.engine import intervals
from simnet.engine.intervals import drawn_calibrations, drawn_scenarios, with_default_draws
from simnet.engine.scenario import RunSettings, load
from simnet.engine.simulation import simulate, with_influences
from simnet.report.result_page import result_page
from simnet.report.rows import row
from simnet.strategies import BinSGDM, DenseAllReduce, OneBitAdam
from simnet.workload import training_step
from simnet.workload.workload import ComputeTime, Workload
from tests.helpers.refusals import refused
from tests.helpers.step_samples import scenario

UNSURE = Calibration(
    name="given",
    inter_node=LinkCalibration(efficiency=0.9, alpha_s=Duration(20e-6)),
    intra_node=LinkCalibration(efficiency=((Size(1e3), 0.4), (Size(1e6), 0.99))),
    backward_slowdown=1.01,
    memory_bytes_per_s=Bandwidth(1e12),
    kernels={"mean": KernelTime(s_per_element=Duration(1e-12))},
    intervals={
        "inter_node.efficiency": (0.9, 1.05),
        "inter_node.latency": (0.5, 3.0),
        "intra_node.efficiency": (0.8, 1.2),
        "backward_slowdown": (0.9, 1.1),
        "memory_bandwidth": (0.95, 1.05),
        "kernels.mean.time_per_element": (1.0, 1.5),
    },
)
NUMBER = 400


def test_a_tenth_of_the_draws_lies_outside_the_interval_half_on_either_side():
    drawn = [calibration.inter_node.alpha_s / 20e-6 for calibration in drawn_calibrations(UNSURE, NUMBER)]
    assert sum(value < 0.5 for value in drawn) == 0.05 * NUMBER
    assert sum(value > 3.0 for value in drawn) == 0.05 * NUMBER
    assert sum(value < 1.0 for value in drawn) == 0.5 * NUMBER
    assert intervals.middle_90_percent(drawn) == pytest.approx((0.5, 3.0), rel=0.05)
    assert intervals.middle_90_percent([0.0, 0.0, 1.0, 2.0], 1.2)[0] == 0
    assert intervals.middle_90_percent([1.0, 2.0, math.inf, math.inf], 1.2)[1] == math.inf, "never reached"


def test_draws_keep_types_and_bounds_and_are_the_same_again():
    for drawn, again in zip(drawn_calibrations(UNSURE, 200), drawn_calibrations(UNSURE, 200), strict=True):
        assert drawn == again
        assert isinstance(drawn.inter_node.alpha_s, Duration)
        assert isinstance(drawn.memory_bytes_per_s, Bandwidth)
        assert drawn.backward_slowdown >= 1
        assert 0 < drawn.inter_node.efficiency <= 1
        first, second = (share for _, share in drawn.intra_node.efficiency)
        assert second == pytest.approx(min(1.0, 0.99 * first / 0.4)), "one factor for the whole curve"
        assert drawn.kernels["mean"].launch_s == 0


def test_a_result_has_intervals_that_hold_it_and_reports_show_them():
    whole = scenario(BinSGDM(), calibration=UNSURE, baseline=DenseAllReduce(), run=RunSettings(draws=60))
    result = simulate(whole)
    plain = simulate(replace(whole, run=RunSettings()))
    assert result.speedup == plain.speedup, "draws change no result"
    assert plain.intervals == {}
    assert result.intervals.keys() == {"iteration_s", "baseline_iteration_s", "speedup"}
    low, high = result.intervals["speedup"]
    assert low < result.speedup < high
    assert "90 % interval" in str(result_page(result))
    assert "90 % interval" not in str(result_page(plain))
    columns = row(result)
    assert (columns["speedup_low"], columns["speedup_high"]) == (low, high)
    same = replace(whole, strategy=DenseAllReduce())
    assert simulate(same).intervals["speedup"] == (1.0, 1.0), "errors that both sides share cancel"


def test_the_error_of_the_model_is_in_every_interval_and_smaller_where_the_cluster_was_measured():
    widths = []
    for kind in ("measured", "published"):
        certain = replace(UNSURE, intervals={"inter_node.latency": (1.0, 1.0)}, kind=kind)
        asked = scenario(BinSGDM(), calibration=certain, baseline=DenseAllReduce(), run=RunSettings(draws=200))
        result, known = simulate(asked), intervals.model_error(certain)
        for name, value, error in (
            ("speedup", result.speedup, known.speedup),
            ("iteration_s", result.result.iteration_s, known.time),
        ):
            assert result.intervals[name] == pytest.approx((value / error, value * error), rel=0.02)
            low, high = simulate(asked, with_model_error=False).intervals[name]
            assert low == high == value
        widths.append(known.speedup)
    assert 1 < widths[0] < widths[1]


def test_compute_rows_are_drawn_within_their_interval_and_what_scaling_may_be_off():
    row = ComputeTime(gpu="G", precision="", batch=16, samples_per_s=100.0, optimizer="adam", source="s")
    workload = Workload(num_elements=10, compute=(row,), batch_per_rank=16)
    cluster = replace(scenario().cluster, gpu="G")
    assert training_step.compute_interval(workload, cluster) is None
    assert training_step.compute_interval(replace(workload, batch_per_rank=4), cluster) == pytest.approx((1.0, 2.0))
    sure = replace(workload, compute=(replace(row, interval=(0.8, 1.25)),))
    assert training_step.compute_interval(sure, cluster) == pytest.approx((0.8, 1.25))
    whole = replace(scenario(), cluster=cluster, workload=sure)
    drawn = [lane.workload.compute[0].samples_per_s for lane in drawn_scenarios(whole, 200)]
    low, high = intervals.middle_90_percent(drawn)
    assert (low, high) == pytest.approx((100 / 1.25, 100 / 0.8), rel=0.02)
    times = replace(row, samples_per_s=None, step_s=Duration(0.16))
    assert times.slower_by(2.0).step_s == 0.32


@pytest.mark.parametrize("name", ["a100_tcp_estimate", "a100_tcp_untuned_estimate", "v100_tcp_estimate"])
def test_the_shipped_estimates_of_gpus_hold_what_was_published_of_them(name):
    calibration = build(Calibration, {"name": name, **files.read("calibrations", name)}, name)
    copy_low, copy_high = calibration.intervals["memory_bandwidth"]
    assert copy_low <= 0.75
    assert copy_high == 1.0, "no copy is faster than the data sheet"
    codec_low, codec_high = (
        calibration.codec_efficiency * factor for factor in calibration.intervals["codec_efficiency"]
    )
    assert codec_low < 0.058
    assert codec_high > 0.9
    launch_low, launch_high = (
        calibration.kernel_launch_s * factor for factor in calibration.intervals["kernel_launch"]
    )
    assert launch_low < 2.8e-6
    assert launch_high > 49e-6
    assert calibration.intervals["backward_slowdown"][1] >= 1.4
    drawn = list(drawn_calibrations(calibration, 50))
    for field in ("codec_efficiency", "memory_bytes_per_s", "kernel_launch_s", "backward_slowdown"):
        assert len({getattr(lane, field) for lane in drawn}) > 20, field


@pytest.mark.parametrize(
    ("count", "key", "message"),
    [
        (1, "inter_node.latency", "run.draws: 1: must be 0, for no intervals, or at least 20"),
        (19, "inter_node.latency", "run.draws: 19: must be 0, for no intervals, or at least 20"),
        (20, "inter_node.latencies", "intervals: 'inter_node.latencies': unknown key"),
        (20, "kernels.merge.launch", "intervals: 'kernels.merge': unknown key"),
        (20, "title", "intervals: 'title': holds no number to draw"),
    ],
)
def test_an_interval_of_nothing_and_too_few_draws_for_one_are_refused(count: int, key: str, message: str) -> None:
    with refused(message):
        simulate(scenario(calibration=replace(UNSURE, intervals={key: (0.9, 1.1)}), run=RunSettings(draws=count)))


def test_an_unsure_compute_factor_widens_the_interval_of_the_result():
    widths = []
    for ends in ((1.0, 1.0), (0.5, 2.0)):
        asked = scenario(DenseAllReduce(), 1, 1, run=RunSettings(draws=60))
        workload = replace(asked.workload, compute_factor=1.4, intervals={"compute_factor": ends})
        low, high = simulate(replace(asked, workload=workload), with_model_error=False).intervals["iteration_s"]
        widths.append(high / low)
    assert widths[0] == 1
    assert widths[1] == pytest.approx(4, rel=0.1)


LINKS = Calibration(
    kind="published",
    inter_node=LinkCalibration(efficiency=0.5),
    kernels={"compress": KernelTime(s_per_element=Duration(1e-10))},
    intervals={
        "inter_node.efficiency": (0.5, 1.5),
        "kernels.compress.time_per_element": (0.999, 1.001),
    },
)
ASKED = scenario(OneBitAdam(), calibration=LINKS, baseline=DenseAllReduce(), run=RunSettings(draws=20))


@pytest.mark.parametrize(
    "left",
    [
        replace(ASKED, run=RunSettings(draws=0)),
        replace(ASKED, run=RunSettings(draws=21)),
        replace(ASKED, run=RunSettings(), calibration=Calibration()),
        replace(ASKED, run=RunSettings(fidelity="exact")),
    ],
    ids=["none asked for", "some asked for", "ideal", "exact"],
)
def test_what_says_how_many_or_has_no_use_for_draws_is_left(left):
    assert with_default_draws(left) is left


def test_ranks_that_are_not_alike_get_draws_and_very_many_of_them_none():
    slow = replace(ASKED, run=RunSettings(), cluster=replace(ASKED.cluster, slow_nodes=(SlowNode(node=0),)))
    assert with_default_draws(slow).run.draws == intervals.DRAWS
    assert with_default_draws(slow, 2) is slow
    many = replace(slow, cluster=replace(slow.cluster, num_nodes=intervals.MOST_DRAWN_RANKS + 1))
    assert with_default_draws(many) is many


def test_a_slow_node_changes_intervals_as_it_changes_the_result():
    slow = replace(ASKED, cluster=replace(ASKED.cluster, slow_nodes=(SlowNode(node=0, compute_slowdown=1.5),)))
    plain = simulate(slow)
    jitter = ComputeJitter(cv=0.2)
    varied = simulate(
        replace(slow, cluster=replace(slow.cluster, faults=(jitter,)), run=replace(slow.run, iterations=9))
    )
    for run in (plain, varied):
        low, high = run.intervals["speedup"]
        assert low < run.speedup < high
    ratio = varied.result.iteration_s / plain.result.iteration_s
    assert ratio > 1.01
    scaled = [ratio * end for end in plain.intervals["iteration_s"]]
    assert varied.intervals["iteration_s"] == pytest.approx(scaled, rel=1e-9), "its own jitter is not drawn again"


def test_a_result_is_sensitive_to_what_changes_it_at_the_ends_of_its_interval() -> None:
    run = with_influences(simulate(ASKED))
    (influence,) = run.sensitive_to
    assert (influence.key, influence.interval) == ("calibration.inter_node.efficiency", (0.5, 1.5))
    for factor, value in zip(influence.interval, influence.values, strict=True):
        link = replace(LINKS.inter_node, efficiency=0.5 * factor)
        there = replace(ASKED, calibration=replace(LINKS, inter_node=link), run=RunSettings())
        assert value == pytest.approx(simulate(there).speedup, rel=1e-12)
    assert influence.effect(run.speedup) >= intervals.LEAST_EFFECT
    alone = with_influences(simulate(replace(ASKED, baseline=None)))
    slow, fast = alone.sensitive_to[0].values
    assert slow > alone.result.iteration_s > fast, "without a baseline, the time of an iteration does"
    certain = replace(LINKS, intervals={})
    assert with_influences(simulate(replace(ASKED, calibration=certain))).sensitive_to == ()
    many = with_influences(compared(load("bert_base_10gbit", {"run.draws": 20})))
    effects = [influence.effect(many.speedup) for influence in many.sensitive_to]
    assert len(effects) > 2
    assert effects == sorted(effects, reverse=True)


def test_a_run_rank_by_rank_says_that_it_has_no_intervals():
    slow = ["--set", "cluster.slow_nodes=[{node = 0, compute_slowdown = 1.5}]", "--set", "cluster.num_nodes=2"]
    slow += ["--set", "cluster.ranks_per_node=1", "--set", "run.fidelity=exact"]
    answer = CliRunner().invoke(cli, ["simulate", "bert_base_10gbit", *slow])
    assert answer.exit_code == 0
    assert "90 % interval" not in answer.stdout
    assert "no intervals; --draws 20 makes them" in answer.stderr

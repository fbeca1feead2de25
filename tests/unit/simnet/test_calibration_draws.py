"""Calibrations drawn from intervals, and the intervals of results that follow."""

import json
import math

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from simnet import calibration_draws, files
from simnet.commands.main import cli
from simnet.errors import SimnetError
from simnet.hardware import Calibration, KernelTime, LinkCalibration
from simnet.scenario import RunSettings
from simnet.schema import build
from simnet.show.result_page import result_page
from simnet.show.rows import row
from simnet.simulate import simulate
from simnet.strategies import BinSGDM, DenseAllReduce
from simnet.units import Bandwidth, Duration, Size
from tests.helpers.step_samples import scenario

GIVEN = Calibration(
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
NUMBER = 4000


def test_a_tenth_of_the_draws_lies_outside_the_interval_half_on_either_side():
    drawn = [calibration_draws.draw_calibration(GIVEN, number).inter_node.alpha_s / 20e-6 for number in range(NUMBER)]
    deviation = math.sqrt(0.05 * 0.95 / NUMBER)
    assert abs(sum(value < 0.5 for value in drawn) / NUMBER - 0.05) < 4 * deviation
    assert abs(sum(value > 3.0 for value in drawn) / NUMBER - 0.05) < 4 * deviation
    assert abs(sum(value < 1.0 for value in drawn) / NUMBER - 0.5) < 4 * math.sqrt(0.25 / NUMBER)
    assert calibration_draws.middle_90_percent(drawn) == pytest.approx((0.5, 3.0), rel=0.1)


def test_draws_keep_types_and_bounds_and_are_the_same_again():
    for number in range(200):
        drawn = calibration_draws.draw_calibration(GIVEN, number)
        assert drawn == calibration_draws.draw_calibration(GIVEN, number)
        assert isinstance(drawn.inter_node.alpha_s, Duration)
        assert isinstance(drawn.memory_bytes_per_s, Bandwidth)
        assert drawn.backward_slowdown >= 1
        assert 0 < drawn.inter_node.efficiency <= 1
        first, second = (share for _, share in drawn.intra_node.efficiency)
        assert second == pytest.approx(min(1.0, 0.99 * first / 0.4)), "one factor for the whole curve"
        assert drawn.kernels["mean"].launch_s == 0


def test_a_value_is_drawn_alike_whatever_else_has_an_interval():
    alone = replace(GIVEN, intervals={"inter_node.latency": (0.5, 3.0)})
    for number in range(20):
        one, two = (calibration_draws.draw_calibration(given, number).inter_node.alpha_s for given in (GIVEN, alone))
        assert one == two


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("inter_node.latencies", "intervals: 'inter_node.latencies': 'latencies': unknown key.*latency"),
        ("kernels.merge.launch", "intervals: 'kernels.merge.launch': 'merge': unknown key"),
        ("title", "intervals: 'title': holds no number to draw"),
    ],
)
def test_an_interval_of_nothing_is_refused(key, message):
    given = replace(GIVEN, intervals={key: (0.9, 1.1)})
    with pytest.raises(SimnetError, match=message):
        simulate(scenario(calibration=given, run=RunSettings(draws=1)))


def test_a_result_has_intervals_that_hold_it_and_reports_show_them():
    whole = scenario(BinSGDM(), calibration=GIVEN, baseline=DenseAllReduce(), run=RunSettings(draws=60))
    result = simulate(whole)
    plain = simulate(replace(whole, run=RunSettings()))
    assert result.speedup == plain.speedup, "draws change no result"
    assert plain.intervals == {}
    assert result.intervals.keys() == {"iteration_s", "baseline_iteration_s", "speedup"}
    low, high = result.intervals["speedup"]
    assert low < result.speedup < high
    assert "90 % interval" in str(result_page(result))
    assert "90 % interval" not in str(result_page(plain))
    found = row(result)
    assert (found["speedup_low"], found["speedup_high"]) == (low, high)


def test_no_uncertainty_gives_no_width_and_strategy_and_baseline_share_the_draws():
    same = scenario(DenseAllReduce(), calibration=GIVEN, baseline=DenseAllReduce(), run=RunSettings(draws=30))
    assert simulate(same).intervals["speedup"] == (1.0, 1.0)
    certain = replace(GIVEN, intervals={"inter_node.latency": (1.0, 1.0)})
    low, high = simulate(scenario(calibration=certain, run=RunSettings(draws=5))).intervals["iteration_s"]
    assert low == high


def test_a_calibration_without_intervals_is_noted():
    result = simulate(scenario(run=RunSettings(draws=5)))
    assert result.intervals == {}
    assert any(note.startswith("no intervals: calibration") for note in result.notes)


@pytest.mark.parametrize("name", ["a100_tcp_estimate", "a100_tcp_untuned_estimate", "v100_tcp_estimate"])
def test_the_shipped_estimates_of_gpus_hold_what_was_published_of_them(name):
    given = build(Calibration, {"name": name, **files.read("calibrations", name)}, name)
    copy_low, copy_high = given.intervals["memory_bandwidth"]
    assert copy_low <= 0.75
    assert copy_high == 1.0, "no copy is faster than the data sheet"
    codec_low, codec_high = (given.codec_efficiency * factor for factor in given.intervals["codec_efficiency"])
    assert codec_low < 0.058
    assert codec_high > 0.9
    launch_low, launch_high = (given.kernel_launch_s * factor for factor in given.intervals["kernel_launch"])
    assert launch_low < 2.8e-6
    assert launch_high > 49e-6
    assert given.intervals["backward_slowdown"][1] >= 1.4
    drawn = [calibration_draws.draw_calibration(given, number) for number in range(50)]
    for field in ("codec_efficiency", "memory_bytes_per_s", "kernel_launch_s", "backward_slowdown"):
        assert len({getattr(one, field) for one in drawn}) > 20, field


def test_the_commands_take_draws(tmp_path):
    calibration = tmp_path / "c.toml"
    calibration.write_text(
        'title = "c"\n[inter_node]\nefficiency = 0.8\n[intervals]\n"inter_node.efficiency" = [0.9, 1.1]\n'
    )
    chosen = ["--set", f"calibration={calibration}", "--draws", "20"]
    runner = CliRunner()
    table = runner.invoke(cli, ["simulate", "bert_base_10gbit", *chosen])
    assert table.exit_code == 0
    assert "90 % interval" in table.stdout
    grid = ["sweep", "bert_base_10gbit", *chosen, "--set", "cluster.num_nodes=2,4", "-o", str(tmp_path / "out")]
    assert runner.invoke(cli, grid).exit_code == 0
    points = json.loads((tmp_path / "out" / "results.json").read_text())["points"]
    assert all(low < point["speedup"] < high for point in points for low, high in [point["intervals"]["speedup"]])
    assert runner.invoke(cli, ["plot", str(tmp_path / "out"), "-o", str(tmp_path / "out")]).exit_code == 0

"""How many draws are made where nobody says, and what a result hangs on."""

import json

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from simnet.cli.main import cli
from simnet.cluster.faults import ComputeJitter
from simnet.cluster.hardware import Calibration, LinkCalibration, SlowNode
from simnet.cluster.kernel_times import KernelTime
from simnet.core.units import Duration
from simnet.engine import intervals
from simnet.engine.intervals import with_default_draws
from simnet.engine.scenario import RunSettings, load
from simnet.engine.simulation import simulate, with_influences
from simnet.strategies import DenseAllReduce, OneBitAdam
from tests.helpers.step_samples import scenario

LINKS = Calibration(
    kind="published",
    inter_node=LinkCalibration(efficiency=0.5),
    kernels={"compress": KernelTime(s_per_element=Duration(1e-10))},
    intervals={
        "inter_node.efficiency": (0.5, 1.5),
        "kernels.compress.time_per_element": (0.999, 1.001),
    },
)
GIVEN = scenario(OneBitAdam(), calibration=LINKS, baseline=DenseAllReduce(), run=RunSettings(draws=20))


def test_a_speedup_is_drawn_by_default():
    asked = replace(GIVEN, run=RunSettings())
    assert with_default_draws(asked).run.draws == with_default_draws(asked, 10).run.draws == intervals.DRAWS


@pytest.mark.parametrize(
    "left",
    [
        replace(GIVEN, run=RunSettings(draws=0)),
        replace(GIVEN, run=RunSettings(draws=21)),
        replace(GIVEN, run=RunSettings(), baseline=None),
        replace(GIVEN, run=RunSettings(), calibration=Calibration()),
        replace(GIVEN, run=RunSettings(fidelity="exact")),
    ],
    ids=["none asked for", "some asked for", "no speedup", "ideal", "exact"],
)
def test_what_says_how_many_or_has_no_use_for_draws_is_left(left):
    assert with_default_draws(left) is left


def test_ranks_that_are_not_alike_get_draws_and_very_many_of_them_none():
    slow = replace(GIVEN, run=RunSettings(), cluster=replace(GIVEN.cluster, slow_nodes=(SlowNode(node=0),)))
    assert with_default_draws(slow).run.draws == intervals.DRAWS
    assert with_default_draws(slow, 2) is slow
    many = replace(slow, cluster=replace(slow.cluster, num_nodes=intervals.MOST_DRAWN_RANKS + 1))
    assert with_default_draws(many) is many


def test_a_slow_node_changes_intervals_as_it_changes_the_result():
    slow = replace(GIVEN, cluster=replace(GIVEN.cluster, slow_nodes=(SlowNode(node=0, compute_slowdown=1.5),)))
    plain = simulate(slow)
    jitter = ComputeJitter(cv=0.2)
    varied = simulate(
        replace(slow, cluster=replace(slow.cluster, faults=(jitter,)), run=replace(slow.run, iterations=9))
    )
    for found in (plain, varied):
        low, high = found.intervals["speedup"]
        assert low < found.speedup < high
    ratio = varied.result.iteration_s / plain.result.iteration_s
    assert ratio > 1.01
    scaled = [ratio * end for end in plain.intervals["iteration_s"]]
    assert varied.intervals["iteration_s"] == pytest.approx(scaled, rel=1e-9), "its own jitter is not drawn again"


def test_a_result_hangs_on_what_changes_it_at_the_ends_of_its_interval():
    found = with_influences(simulate(GIVEN))
    (one,) = found.hangs_on
    assert (one.key, one.interval) == ("calibration.inter_node.efficiency", (0.5, 1.5))
    for factor, value in zip(one.interval, one.values, strict=True):
        link = replace(LINKS.inter_node, efficiency=0.5 * factor)
        there = replace(GIVEN, calibration=replace(LINKS, inter_node=link), run=RunSettings())
        assert value == pytest.approx(simulate(there).speedup, rel=1e-12)
    assert one.effect(found.speedup) >= intervals.LEAST_EFFECT


def test_without_a_baseline_the_time_of_an_iteration_hangs_on_it():
    found = with_influences(simulate(replace(GIVEN, baseline=None)))
    slow, fast = found.hangs_on[0].values
    assert slow > found.result.iteration_s > fast


def test_the_largest_effect_comes_first():
    found = with_influences(simulate(load("bert_base_10gbit", {"run.draws": 20})))
    effects = [one.effect(found.speedup) for one in found.hangs_on]
    assert len(effects) > 2
    assert effects == sorted(effects, reverse=True)


def test_a_result_that_hangs_on_nothing_holds_nothing():
    certain = replace(LINKS, intervals={})
    assert with_influences(simulate(replace(GIVEN, calibration=certain))).hangs_on == ()


def test_the_command_draws_says_what_it_hangs_on_and_plot_draws_it(tmp_path):
    runner, run = CliRunner(), tmp_path / "run.json"
    told = runner.invoke(cli, ["simulate", "bert_base_10gbit"]).stdout
    assert "90 % interval" in told
    assert "it hangs on: if " in told
    silent = runner.invoke(cli, ["simulate", "bert_base_10gbit", "--draws", "0"]).stdout
    assert "90 % interval" not in silent
    assert "hangs on" not in silent
    runner.invoke(cli, ["simulate", "bert_base_10gbit", "--format", "json", "-o", str(run)])
    assert json.loads(run.read_text())["hangs_on"][0]["key"].startswith("calibration.")
    drawn = runner.invoke(cli, ["plot", str(run), "-o", str(tmp_path)])
    assert drawn.exit_code == 0, drawn.output
    assert (tmp_path / "hangs_on.png").read_bytes().startswith(b"\x89PNG")
    runner.invoke(cli, ["simulate", "bert_base_10gbit", "--draws", "0", "--format", "json", "-o", str(run)])
    refused = runner.invoke(cli, ["plot", str(run), "-o", str(tmp_path), "--figure", "hangs_on"])
    assert refused.exit_code == 2
    assert "'hangs_on': needs intervals" in refused.output


def test_a_run_rank_by_rank_says_that_it_has_no_intervals():
    slow = ["--set", "cluster.slow_nodes=[{node = 0, compute_slowdown = 1.5}]", "--set", "cluster.num_nodes=2"]
    slow += ["--set", "cluster.ranks_per_node=1", "--set", "run.fidelity=exact"]
    told = CliRunner().invoke(cli, ["simulate", "bert_base_10gbit", *slow])
    assert told.exit_code == 0
    assert "90 % interval" not in told.stdout
    assert "no intervals; --draws 20 makes them" in told.stderr

"""What a report holds, of a scenario and of a sweep, and what that rests on."""

import math
import re

import pytest
from msgspec import structs

import simnet
from simnet.core.units import format_seconds
from simnet.engine.intervals import ModelError
from simnet.engine.result import RunResult
from simnet.report import contents, step_charts
from tests.helpers.refusals import refused

BERT = "bert_base_10gbit"
DRAWS = {"run.draws": 20}


def quiet(_: int) -> None:
    """Take no notice of progress."""


def keys(found: contents.Contents) -> list[str]:
    return [section.key for section in found.sections]


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate little around the scenario."""
    monkeypatch.setattr(contents, "RATES", contents.RATES[2:4])
    monkeypatch.setattr(contents, "MOST_NODES", 1)


@pytest.fixture(scope="module")
def report() -> contents.Contents:
    return contents.of_scenario(simnet.load(BERT, DRAWS), quiet, systems=["BinSGDM", "int8"])


def test_a_report_answers_what_where_why_what_else_and_on_what_it_rests(report: contents.Contents) -> None:
    assert keys(report) == ["speedup", "crossover", "step", "alternatives", "assumptions"]
    drawn = [chart.key for section in report.sections for chart in section.charts]
    wanted = "speedup-over-bandwidth speedup-over-nodes heat-map crossover breakdown tornado ranking"
    assert drawn == wanted.split()
    assert report.judgement == "pays"


@pytest.mark.slow
def test_the_verdict_is_over_tuned_ddp_with_flat_ddp_beside_it(report: contents.Contents) -> None:
    advice = simnet.advise(BERT, draws=0, systems=["BinSGDM"])
    assert f"{advice.flat_name} ({format_seconds(advice.plain_iteration_s)} a step)" in report.over_flat
    assert f"{format_seconds(advice.baseline_system.iteration_s)} with tuned DDP" in report.verdict


@pytest.mark.slow
def test_title_and_axes_agree_on_the_bandwidth_of_several_nics() -> None:
    several = {"cluster.nics_per_node": 2, "cluster.inter_node.bandwidth": "200 Gbit/s", "run.draws": 0}
    found = contents.of_scenario(simnet.load(BERT, several), quiet, systems=None)
    assert found.title.endswith("on 8 nodes at 2 x 200 Gbit/s")
    axes = {chart.key: chart.x.title for section in found.sections for chart in section.charts}
    assert axes["speedup-over-bandwidth"] == "bandwidth of all NICs of a node [Gbit/s]"
    assert axes["crossover"] == "each NIC's bandwidth [Gbit/s]"


@pytest.mark.slow
@pytest.mark.usefixtures("little")
def test_a_result_that_is_known_is_not_simulated_again() -> None:
    known = simnet.simulate(BERT, draws=0)
    changed = structs.replace(known, result=structs.replace(known.result, iterations_s=(1.2345,)))
    found = contents.of_scenario(simnet.load(BERT, DRAWS), quiet, systems=None, known=changed)
    assert "1.234 s" in found.verdict or "1.235 s" in found.verdict


@pytest.mark.slow
@pytest.mark.usefixtures("little")
def test_iterations_that_differ_are_drawn_as_a_distribution() -> None:
    known = simnet.simulate(BERT, draws=0)
    steps = structs.replace(known.result, iterations_s=(0.07, 0.08, 0.09))
    found = contents.of_scenario(
        simnet.load(BERT, DRAWS), quiet, systems=None, known=structs.replace(known, result=steps)
    )
    charts = {chart.key: chart for section in found.sections for chart in section.charts}
    # Percentiles are interpolated: the 95th lies nine tenths of the way from the second to the third.
    assert charts["distribution"].table.rows[0][1:] == ("80 ms", "80 ms", "89 ms", "89.8 ms", "90 ms")
    curve, *marks = charts["distribution"].curves
    assert list(curve.x) == pytest.approx([70, 80, 90])
    assert list(curve.y) == pytest.approx([math.log10(1 / 5), 0, math.log10(5)]), "odds of 1 : 5, 1 : 1 and 5 : 1"
    assert [mark.x[0] for mark in marks[:3]] == pytest.approx([80, 89, 89.8])


@pytest.mark.slow
@pytest.mark.usefixtures("little")
def test_a_report_on_a_cluster_with_faults_says_what_each_costs_and_counts_its_simulations() -> None:
    slow = {"kind": "slow_rank", "node": 0, "compute_slowdown": 2.0}
    # Every send is simulated: on a small cluster.
    small = {"cluster.num_nodes": 2, "cluster.ranks_per_node": 2, "strategy": "one_bit_adam"}
    scenario = simnet.load(BERT, {**small, "run.draws": 0, "cluster.faults": [slow]})
    done: list[int] = []
    found = contents.of_scenario(scenario, done.append, systems=None)
    charts = {chart.key: chart for section in found.sections for chart in section.charts}
    asked = simnet.simulate(scenario, lost_time=True)
    assert asked.result.lost_time is not None
    rows = charts["lost-time"].table.rows
    assert rows == step_charts.lost_time(asked).table.rows
    assert len(rows) == len([asked.result, asked.baseline])
    assert sum(done) == contents.num_ticks(scenario, None)
    done.clear()
    contents.of_scenario(scenario, done.append, systems=None, known=asked)
    assert sum(done) == contents.num_ticks(scenario, None)


def test_points_that_no_axis_joins_stand_in_one_figure_and_without_a_baseline_there_is_none() -> None:
    sweep = simnet.sweep(BERT, {"workload.batch_per_rank": [32, 64, 128]}, draws=0)
    (section,) = [one for one in contents.of_sweep(sweep).sections if one.key == "speedup"]
    (chart,) = section.charts
    assert len(chart.y.ticks) == 6
    points = tuple(structs.replace(point, speedup=None, baseline=None) for point in sweep.points)
    with refused("nothing to compare with: tuned DDP is not known"):
        contents.of_sweep(structs.replace(sweep, points=points))


@pytest.mark.slow
def test_what_does_not_fit_as_written_is_shown_as_it_fits() -> None:
    settings = {"workload": "llama_1b", "workload.batch_per_rank": 16, "run.draws": 0}
    scenario = simnet.load(BERT, settings)
    assert not simnet.fits(scenario, "binsgdm")
    found = contents.of_scenario(scenario, quiet, systems=None)
    assert re.match(
        r"As written it takes [\d.]+ GB of 80 GB; here with micro-batch \d+ x \d+.*: a step takes", found.verdict
    )
    assert found.judgement != "does not fit"


def assumed(result: RunResult) -> dict[str, tuple[str, ...]]:
    return {row[0]: tuple(row) for row in contents.parts_table(result).rows}


def test_every_part_says_where_it_comes_from_and_whether_it_was_measured() -> None:
    result = simnet.simulate(BERT, draws=0)
    found = assumed(result)
    for part in ("cluster", "workload", "calibration", "links inside nodes", "links between nodes"):
        assert found[part][3], part
        assert found[part][2], part
    assert found["calibration"][2] == "no, an estimate"
    assert found["links between nodes"][1:3] == ("91.9 % of the nominal rate", "yes, by others, on 10 Gbit/s")
    assert found["links between nodes"][3] == result.scenario.calibration.inter_node.source
    timed = {f"compute, {one.gpu} {one.precision}" for one in result.scenario.workload.compute}
    assert {name for name in found if name.startswith("compute,")} == {
        "compute, A100-80GB tf32",
        "compute, A100-80GB amp",
    }
    assert len(timed) > 2  # those of other GPUs say nothing here


def test_every_value_with_an_interval_is_named() -> None:
    result = simnet.simulate(BERT, draws=20)
    table = contents.uncertain_table(result)
    named = [row[0] for row in table.rows]
    assert {"encode and decode", "links between nodes", "compute", "the model itself, of a time"} <= set(named)
    assert dict(table.rows)["the GPU's memory"] == "up to 1.3 times slower"  # [0.75, 1]
    assert dict(table.rows)["compute during communication"] == "up to 1.4 times as long"  # [1, 1.4]


def test_the_models_own_error_goes_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    result = simnet.simulate(BERT, draws=0)
    monkeypatch.setattr(contents.intervals, "model_error", lambda _: ModelError(time=2.0, speedup=4.0, source=""))
    shown = dict(contents.uncertain_table(result).rows)
    assert shown["the model itself, of a time"] == "0.5 to 2 times as long"
    assert shown["the model itself, of a speedup"] == "0.25 to 4 times as large"

"""Figures of a report: what is drawn is what was simulated, and what their tables say."""

import json
import math
from typing import Any

import pytest
from msgspec import structs

import simnet
from simnet.calibration.comparison import Comparison
from simnet.core.units import format_seconds
from simnet.engine.result import Influence, RunResult
from simnet.report import chart, charts, comparison_charts, step_charts

BERT = "bert_base_10gbit"
RATE = "cluster.inter_node.bandwidth"
TWO_NICS = {"cluster.nics_per_node": 2, "run.draws": 0}


@pytest.fixture(scope="module")
def sweep() -> simnet.SweepAnswer:
    axes = {"cluster.num_nodes": [1, 2, 4, 8], RATE: ["10 Gbit/s", "100 Gbit/s", "400 Gbit/s"]}
    return simnet.sweep(BERT, axes, draws=20)


@pytest.fixture(scope="module")
def run() -> simnet.RunAnswer:
    return simnet.simulate(BERT)


def lines(found: chart.Chart) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in found.traces if trace.get("mode") == "lines+markers"}


def test_a_line_is_the_speedups_of_its_points_in_order(sweep: simnet.SweepAnswer) -> None:
    drawn = lines(charts.speedups(sweep.points, "nodes"))
    for rate in (10.0, 100.0, 400.0):
        mine = [point for point in sweep.points if point.nic_gbit_per_s == rate]
        assert drawn[f"{rate:g} Gbit/s"]["x"] == [1, 2, 4, 8]
        assert drawn[f"{rate:g} Gbit/s"]["y"] == [point.speedup for point in mine]


def test_up_to_three_lines_have_their_intervals_of_more_only_the_one_asked_about(sweep: simnet.SweepAnswer) -> None:
    bands = [trace for trace in charts.speedups(sweep.points, "nodes").traces if trace.get("fill")]
    assert len(bands) == 3
    own = sweep.points[4]  # two nodes
    (one,) = [trace for trace in charts.speedups(sweep.points, "bandwidth", own).traces if trace.get("fill")]
    mine = [point for point in sweep.points if point.num_nodes == own.num_nodes]
    high = [point.intervals["speedup"][1] for point in mine]
    low = [point.intervals["speedup"][0] for point in mine]
    assert one["y"] == [*high, *reversed(low)]


def test_twelve_lines_differ_in_colour_and_in_symbol() -> None:
    drawn = [chart.line(index, "", [1], [1.0], "") for index in range(12)]
    for key in ("color", "symbol"):
        assert len({trace["marker"][key] for trace in drawn}) == 12
    assert len({trace["line"]["color"] for trace in drawn}) == 12


def test_axes_say_whether_a_bandwidth_is_that_of_one_nic_or_of_all(sweep: simnet.SweepAnswer) -> None:
    two = simnet.sweep(BERT, {"cluster.num_nodes": [2, 4], RATE: ["100 Gbit/s", "200 Gbit/s"]}, settings=TWO_NICS)
    for points, label in (
        (sweep.points, "NIC bandwidth [Gbit/s]"),
        (two.points, "bandwidth of all NICs of a node [Gbit/s]"),
    ):
        over_rate = charts.speedups(points, "bandwidth").layout["xaxis"]
        assert over_rate["title"]["text"] == charts.heat_map(points).layout["yaxis"]["title"]["text"] == label
        assert over_rate["tickvals"] == sorted({point.nic_gbit_per_s for point in points})


def test_the_map_is_apart_at_one(sweep: simnet.SweepAnswer) -> None:
    found = charts.heat_map(sweep.points)
    trace = found.traces[0]
    assert trace["zmin"] == -trace["zmax"]
    cells = {
        (rate, nodes): z
        for rate, row in zip(trace["y"], trace["z"], strict=True)
        for nodes, z in zip(trace["x"], row, strict=True)
    }
    for point in sweep.points:
        assert cells[f"{point.nic_gbit_per_s:g}", str(point.num_nodes)] == pytest.approx(math.log(point.speedup or 0))
    assert f"slower, at {sum((point.speedup or 0) < 1 for point in sweep.points)} of 12" in found.sentence


@pytest.mark.parametrize("share", [value / 20 for value in range(-20, 21)])
def test_numbers_in_a_map_are_readable_on_every_colour(share: float) -> None:
    ends = [charts._rgb(colour) for colour in (chart.DIVERGING[1][1], chart.DIVERGING[2 if share > 0 else 0][1])]
    ground = charts._luminance([(1 - abs(share)) * low + abs(share) * high for low, high in zip(*ends, strict=True)])
    text = charts._luminance(charts._rgb(charts.LIGHT if charts._is_dark(share) else charts.DARK))
    low, high = sorted((ground, text))
    assert (high + 0.05) / (low + 0.05) >= 4.5  # Web Content Accessibility Guidelines, level AA


def test_a_missing_point_leaves_its_cell_empty(sweep: simnet.SweepAnswer) -> None:
    trace = charts.heat_map(sweep.points[1:]).traces[0]
    assert [row.count(None) for row in trace["z"]] == [1, 0, 0]


def test_the_parts_of_a_bar_add_up_to_the_step(run: RunResult) -> None:
    found = step_charts.breakdown([run])
    assert run.baseline is not None
    for index, step in enumerate((run.result, run.baseline)):
        assert sum(trace["x"][index] for trace in found.traces) * 1e-3 == pytest.approx(step.iteration_s)
        assert found.table.rows[-1][1 + index] == format_seconds(step.iteration_s)


def test_every_bar_of_the_tornado_starts_at_the_prediction(run: RunResult) -> None:
    worse, better = step_charts.tornado(run).traces
    for one, low, high in zip(run.hangs_on, worse["x"], better["x"], strict=True):
        assert low <= 0 <= high
        ends = sorted([*one.values, run.speedup or 0.0])
        assert (run.speedup or 0) + low == pytest.approx(ends[0])
        assert (run.speedup or 0) + high == pytest.approx(ends[-1])


def test_the_ranking_holds_the_baseline_and_every_choice() -> None:
    advice = simnet.advise(BERT, draws=0, systems=["BinSGDM", "int8", "local_sgd", "PowerSGD rank 4"])
    drawn = {label for trace in comparison_charts.ranking(advice).traces for label in trace["y"]}
    assert {advice.baseline_system.label, *(one.system.label for one in advice.choices)} <= drawn


def test_what_is_predicted_lies_over_what_was_measured() -> None:
    rows = [
        Comparison(series="a", label="1", measured=1.0, predicted=1.1, interval=(0.9, 1.3)),
        Comparison(series="b", label="2", measured=2.0, predicted=1.8),
    ]
    first, second = comparison_charts.predicted_over_measured(rows).traces
    assert (first["x"], first["y"], first["error_y"]["array"]) == ([1.0], [1.1], [pytest.approx(0.2)])
    assert (second["x"], second["y"], second["error_y"]["array"]) == ([2.0], [1.8], [0.0])


@pytest.mark.parametrize(("low", "high"), [(0.5, 50.0), (0.98, 1.02), (3.0, 3.1), (0.02, 4000.0)])
def test_ticks_hold_both_ends_and_are_few(low: float, high: float) -> None:
    ticks = chart.tick_values(low, high)["ticks"]
    assert min(ticks) <= low
    assert max(ticks) >= high
    assert 2 <= len(ticks) <= 25


def test_text_of_a_file_is_no_markup_of_plotly() -> None:
    assert chart.name("<b>a</b> & \x1b[31m") == "&lt;b&gt;a&lt;/b&gt; &amp; ?[31m"
    assert len(chart.name("x" * 10_000)) < 100


def test_names_of_kernels_are_no_markup_in_a_tornado(run: RunResult) -> None:
    kernel = Influence(key="calibration.kernels.<a href='x'>&.time", interval=(0.5, 2.0), values=(9.0, 11.0))
    (bars, _) = step_charts.tornado(structs.replace(run, hangs_on=(kernel,))).traces
    assert "<" not in bars["y"][0] + bars["customdata"][0]
    assert "&lt;a href" in bars["y"][0]


def test_a_figure_is_plain_json(sweep: simnet.SweepAnswer, run: RunResult) -> None:
    for found in (charts.speedups(sweep.points, "nodes"), charts.heat_map(sweep.points), step_charts.tornado(run)):
        assert json.loads(json.dumps(found.figure, allow_nan=False)) == found.figure

"""Charts as figures of plotly: what is drawn is what the chart holds, and text of files is no markup."""

import json

import pytest
from msgspec import structs

import simnet
from simnet.engine.result import Influence
from simnet.report import chart_plotly, step_charts
from simnet.report.chart import Chart, Curve, Guide, Scale, number_scale

BERT = "bert_base_10gbit"


def test_marks_have_their_intervals_as_bars() -> None:
    curve = Curve(x=[1.0, 2.0], y=[1.1, 1.8], ends=[(0.9, 1.3), (1.8, 1.8)], dash="", marker="o")
    (drawn,) = chart_plotly.figure(Chart(x=Scale(), y=Scale(), curves=[curve]))["data"]
    assert drawn["error_y"]["array"] == [pytest.approx(0.2), 0.0]
    assert drawn["error_y"]["arrayminus"] == [pytest.approx(0.2), 0.0]


def test_an_entry_of_the_legend_alone_has_a_trace_without_points() -> None:
    (drawn,) = chart_plotly.figure(Chart(x=Scale(), y=Scale(), curves=[Curve(name="others")]))["data"]
    assert (drawn["name"], drawn["x"], drawn["showlegend"]) == ("others", [None], True)


def test_scales_and_guides_are_those_of_the_chart() -> None:
    chart = Chart(
        x=number_scale("nodes", {1.0: "1", 8.0: "8"}),
        y=Scale(title="speedup"),
        guides=[Guide(value=1.0), Guide(value=2.0, end=3.0, is_upright=True, colour="band")],
    )
    layout = chart_plotly.figure(chart)["layout"]
    assert layout["xaxis"]["type"] == "log"
    assert (layout["xaxis"]["tickvals"], layout["xaxis"]["ticktext"]) == ([1.0, 8.0], ["1", "8"])
    across, span = layout["shapes"]
    assert (across["type"], across["y0"], across["y1"], across["xref"]) == ("line", 1.0, 1.0, "paper")
    assert (span["type"], span["x0"], span["x1"], span["yref"]) == ("rect", 2.0, 3.0, "paper")


def test_text_of_a_file_is_no_markup() -> None:
    assert chart_plotly.name("<b>a</b> & \x1b[31m") == "&lt;b&gt;a&lt;/b&gt; &amp; ?[31m"
    assert len(chart_plotly.name("x" * 10_000)) < 100


def test_names_of_kernels_are_no_markup_in_a_tornado() -> None:
    run = simnet.simulate(BERT)
    kernel = Influence(key="calibration.kernels.<a href='x'>&.time", interval=(0.5, 2.0), values=(9.0, 11.0))
    drawn = chart_plotly.figure(step_charts.tornado(structs.replace(run, hangs_on=(kernel,))))
    assert "<a" not in json.dumps(drawn)
    assert "&lt;a href" in drawn["layout"]["yaxis"]["ticktext"][0]

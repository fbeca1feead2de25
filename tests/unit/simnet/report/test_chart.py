"""Charts as data, and drawn: both renderers draw the same, scales and colours are readable, text is no markup."""

import json

import pytest
from msgspec import structs

import simnet
from simnet.engine.result import Influence
from simnet.report import chart, chart_matplotlib, chart_plotly, figure, step_charts
from simnet.report.chart import (
    Bars,
    Cells,
    Chart,
    Curve,
    Guide,
    Scale,
    Words,
    line,
    log_scale,
    name_scale,
    number_scale,
    speedup_scale,
)


@pytest.mark.parametrize(("low", "high"), [(0.5, 50.0), (0.98, 1.02), (3.0, 3.1), (0.02, 4000.0), (1e-30, 1e30)])
def test_ticks_hold_both_ends_and_are_few(low: float, high: float) -> None:
    ticks = chart.log_ticks(low, high)
    assert ticks == sorted(ticks)
    assert min(ticks) <= low
    assert max(ticks) >= high
    assert 2 <= len(ticks) <= 25


@pytest.mark.parametrize("share", [value / 20 for value in range(-20, 21)])
def test_numbers_in_cells_are_readable_on_every_colour(share: float) -> None:
    ends = [chart.rgb(colour) for colour in (chart.DIVERGING[1], chart.DIVERGING[2 if share > 0 else 0])]
    ground = chart.luminance([(1 - abs(share)) * low + abs(share) * high for low, high in zip(*ends, strict=True)])
    text = chart.luminance(chart.rgb(chart.LIGHT if chart.is_dark(share) else chart.DARK))
    low, high = sorted((ground, text))
    assert (high + 0.05) / (low + 0.05) >= 4.5  # Web Content Accessibility Guidelines, level AA


def test_the_border_stands_between_what_is_faster_and_what_is_not() -> None:
    line = chart.border(chart.Cells(speedups=[[0.5, 2.0], [0.996, 2.0]]))
    # Between the columns of the first row; between the first two rows; the second row is faster throughout.
    assert list(line.x) == [0.5, 0.5, None, -0.5, 0.5, None]
    assert list(line.y) == [-0.5, 0.5, None, 0.5, 0.5, None]


def a_chart(values: tuple[float, float] = (2.0, 4.0)) -> Chart:
    low, high = values
    return Chart(
        x=log_scale("nodes", [1, 8], margin=1.0),
        y=speedup_scale("speedup", values),
        curves=[
            line(0, "a", [1, 8], values, ends=[(low / 2, low), (high / 2, high)]),
            Curve(name="b", x=[1, 8], y=[high, low], colour="ink", dash=":"),
        ],
        guides=[Guide(value=1.0, name="same")],
        words=[Words(x=1, y=2, text="here")],
    )


def test_both_renderers_draw_the_same_points() -> None:
    with figure.styled():
        axes = figure.new(3, 2).subplots()
        chart_matplotlib.draw(axes, a_chart())
    drawn = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()}
    plotly = {one["name"]: (one["x"], one["y"]) for one in chart_plotly.figure(a_chart())["data"] if one.get("name")}
    assert plotly == {name: drawn[name] for name in ("a", "b")}
    assert axes.texts[0].get_text() == "here"
    (band,) = axes.collections
    assert {y for _, y in band.get_paths()[0].vertices} == {1.0, 2.0, 4.0}


def test_bars_stand_where_the_chart_says_in_both() -> None:
    bars = Bars(name="part", at=[0, 1], lengths=[2.0, -1.0], starts=[1.0, 5.0])
    chart = Chart(x=Scale(), y=name_scale(["up", "down"], is_reversed=True), bars=[bars], is_of_rows=True)
    with figure.styled():
        axes = figure.new(3, 2).subplots()
        chart_matplotlib.draw(axes, chart)
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(1.0, 2.0), (5.0, -1.0)]
    (drawn,) = chart_plotly.figure(chart)["data"]
    assert (drawn["base"], drawn["x"], drawn["y"], drawn["orientation"]) == ([1.0, 5.0], [2.0, -1.0], [0, 1], "h")
    assert [text.get_text() for text in axes.get_yticklabels()] == ["up", "down"]
    assert axes.get_ylim() == (1.5, -0.5)


def test_cells_have_their_numbers_and_a_gap_has_none() -> None:
    cells = Cells(speedups=[[0.5, None], [2.0, 4.0]])
    chart = Chart(x=name_scale(["1", "2"]), y=name_scale(["10", "100"]), cells=cells)
    with figure.styled():
        made = chart_matplotlib.figure_of({"": chart})
    assert [text.get_text() for text in made.axes[0].texts] == ["0.50", "-", "2.00", "4.00"]
    (cells_drawn, written, *_) = chart_plotly.figure(chart)["data"]
    assert [row.count(None) for row in cells_drawn["z"]] == [1, 0]
    assert written["text"] == ["0.50x", "2.00x", "4.00x"]


def test_panels_that_share_a_scale_have_its_range_and_name_it_once() -> None:
    panels = {"one": a_chart(), "two": a_chart((0.1, 30.0))}
    with figure.styled():
        made = chart_matplotlib.figure_of(panels, shared="y", title="A question?\nWhat", footer="Source.")
    first, second = made.axes
    assert first.get_ylim() == second.get_ylim()
    assert first.get_ylim()[0] < 0.1
    assert (first.get_ylabel(), second.get_ylabel()) == ("speedup", "")
    assert made.get_label() == "A question? What. Source."
    assert [axes.get_title() for axes in made.axes] == ["one", "two"]


def test_a_paper_has_no_title_in_the_figure_but_the_caption() -> None:
    with figure.styled(figure.PAPER):
        made = chart_matplotlib.figure_of({"": a_chart()}, title="What", footer="Source.")
    assert made.get_suptitle() == ""
    assert made.get_label() == "What. Source."


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
    drawn = chart_plotly.figure(step_charts.tornado(structs.replace(run, sensitive_to=(kernel,))))
    assert "<a" not in json.dumps(drawn)
    assert "&lt;a href" in drawn["layout"]["yaxis"]["ticktext"][0]

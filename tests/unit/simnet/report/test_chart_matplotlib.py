"""Charts drawn with matplotlib: both renderers draw the same data, and panels share what they are told to."""

from simnet.report import chart_matplotlib, chart_plotly, figure
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
    speedup_scale,
)


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

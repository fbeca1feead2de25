"""Charts as data: looks of series, scales and their ticks, colours of cells."""

import pytest

from simnet.report import chart
from simnet.report.figure import STYLES, FigureStyle


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_twelve_series_differ_in_colour_and_in_marker(style: FigureStyle) -> None:
    assert len(set(style.colours)) == len(style.colours) == 12
    for place in (0, 1):
        assert len({chart.series_style(index)[place] for index in range(12)}) == 12
    assert chart.series_style(0)[2] != chart.series_style(12)[2]


@pytest.mark.parametrize(("low", "high"), [(0.5, 50.0), (0.98, 1.02), (3.0, 3.1), (0.02, 4000.0), (1e-30, 1e30)])
def test_ticks_hold_both_ends_and_are_few(low: float, high: float) -> None:
    ticks = chart.log_ticks(low, high)
    assert ticks == sorted(ticks)
    assert min(ticks) <= low
    assert max(ticks) >= high
    assert 2 <= len(ticks) <= 25


def test_a_scale_of_speedups_holds_one_and_every_value() -> None:
    low, high = chart.speedup_scale("speedup", [0.3, 40.0]).ends or (0, 0)
    assert low < 0.3
    assert high > 40
    few = chart.speedup_scale("speedup", [1.01, 1.02]).ends or (0, 0)
    assert few == (pytest.approx(0.92 / 1.05), pytest.approx(2.0 * 1.05)), "a few percent do not look like much"


def test_numbers_that_span_much_stand_on_a_logarithmic_scale() -> None:
    assert chart.number_scale("nodes", {1.0: "1", 2.0: "2", 16.0: "16"}).is_log
    assert not chart.number_scale("slowdown", {1.0: "1", 1.5: "1.5"}).is_log
    many = chart.number_scale("batch", {float(one): str(one) for one in range(1, 40)})
    assert len(many.ticks) <= chart.MOST_TICKS


def test_a_scale_that_panels_share_holds_those_of_all() -> None:
    shared = chart.together([chart.log_scale("a", [1.0, 2.0]), chart.log_scale("a", [0.1, 1.0])])
    assert shared.ends == pytest.approx((0.1 / 1.12, 2.0 * 1.12))


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

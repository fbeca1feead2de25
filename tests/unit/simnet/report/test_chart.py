"""Charts as data: looks of series, scales and their ticks, colours of cells."""

import pytest

from simnet.report import chart


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

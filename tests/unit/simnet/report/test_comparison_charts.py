"""Charts that compare: alternatives, and predictions with measurements."""

import pytest

from simnet.calibration.comparison import Comparison
from simnet.report import comparison_charts


def test_what_is_predicted_lies_over_what_was_measured() -> None:
    rows = [
        Comparison(series="a", label="1", measured=1.0, predicted=1.1, interval=(0.9, 1.3)),
        Comparison(series="b", label="2", measured=2.0, predicted=1.8),
    ]
    found = comparison_charts.predicted_over_measured(rows, "time [ms]", 1e3)
    line, first, second = found.curves
    assert line.x == line.y
    assert (first.x, first.y, first.ends) == ([1000.0], [1100.0], [(900.0, 1300.0)])
    assert (second.x, second.y, second.ends) == ([2000.0], [1800.0], ())
    assert found.x.ends == found.y.ends


def test_residuals_that_were_held_out_are_filled() -> None:
    rows = [
        Comparison(series="a", label="1", measured=1.0, predicted=1.02, role="fitted"),
        Comparison(series="a", label="2", measured=2.0, predicted=1.6, role="held out"),
    ]
    fitted, held_out = comparison_charts.residuals(rows).curves
    assert (fitted.is_open, held_out.is_open) == (True, False)
    assert (fitted.y, held_out.y) == ([pytest.approx(0.02)], [pytest.approx(-0.2)])
    low, high = comparison_charts.residuals(rows).y.ends or (0, 0)
    assert low < -0.2 < 0.2 < high

"""Predicted against measured."""

import pytest

from simnet.calibration.comparison import (
    Comparison,
    coverage,
    mean_error,
    mean_signed_error,
    within,
    worst_error,
    worst_row,
)


def row(predicted: float, series: str = "a", interval: tuple[float, float] | None = None) -> Comparison:
    return Comparison(series=series, label="row", measured=2.0, predicted=predicted, interval=interval)


ROWS = [row(2.2), row(1.4, "b", (1.0, 1.9)), row(2.0, "a", (1.9, 2.1))]


def test_errors_are_relative_to_what_was_measured() -> None:
    assert [one.error for one in ROWS] == pytest.approx([0.1, -0.3, 0.0])
    assert mean_error(ROWS) == pytest.approx(0.4 / 3)
    assert mean_signed_error(ROWS) == pytest.approx(-0.2 / 3)
    assert worst_error(ROWS) == pytest.approx(0.3)
    assert worst_row(ROWS) is ROWS[1]


def test_of_no_rows_all_errors_are_zero() -> None:
    assert (mean_error([]), mean_signed_error([]), worst_error([])) == (0.0, 0.0, 0.0)


def test_only_rows_with_an_interval_are_covered_or_not() -> None:
    assert [one.is_inside for one in ROWS] == [None, False, True]
    assert coverage(ROWS) == (1, 2)


@pytest.mark.parametrize(
    ("mean", "worst", "is_within"),
    [(None, None, True), (14, None, True), (13, None, False), (None, 30.1, True), (None, 29, False), (14, 29, False)],
)
def test_limits_are_percent_and_may_be_missing(mean: float | None, worst: float | None, is_within: bool) -> None:
    assert within(ROWS, mean, worst) is is_within

"""The fit engine: models, numbers that meet their rows, the choice of costs, the bootstrap; how far fits are off."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from simnet.calibration import fit
from simnet.calibration.comparison import (
    Comparison,
    coverage,
    mean_error,
    mean_signed_error,
    within,
    worst_error,
    worst_row,
)
from simnet.calibration.fit import Fit, Floats, Linear, Values, check_errors, widen
from simnet.core.bounded_types import MAX_SPREAD
from simnet.core.errors import SimnetError
from tests.helpers.refusals import refused


class Line(Linear[float]):
    def columns(self, rows: Sequence[float]) -> dict[str, Floats]:
        return {"launch": np.ones(len(rows)), "rate": np.array(rows), "never": np.zeros(len(rows))}


def line(sizes: Floats, times: Floats) -> Fit[float]:
    return Fit(rows=sizes.tolist(), times=times, model=Line(), free={"launch": 0.0, "rate": 0.0})


def of(model: Callable[[Values], list[float]], free: Values, bounds: tuple[float, float] | None = None) -> Fit[int]:
    """Return the fit of a model to times of 1."""
    times = [1.0] * len(model(free))
    limits = {} if bounds is None else dict.fromkeys(free, bounds)
    return Fit(rows=range(len(times)), times=times, model=lambda values, _: model(values), free=free, bounds=limits)


def test_least_squares_of_a_met_problem_stays_where_it_is_and_bounds_hold() -> None:
    assert of(lambda v: [v["x"]], {"x": 1.0}).solve() == {"x": 1.0}
    assert of(lambda v: [v["x"]], {"x": 0.5}, (0.1, 0.8)).nearest() == 0.8


def test_costs_that_lower_the_error_are_chosen_and_an_empty_column_never_is() -> None:
    sizes = np.array([1.0, 2.0, 4.0, 8.0])
    assert set(line(sizes, 3.0 + 2.0 * sizes).chosen(["rate"], 0.01).free) == {"rate", "launch"}
    assert set(line(sizes, 2.0 * sizes).chosen(["rate", "never"], 0.01).free) == {"rate"}


def test_coefficients_are_never_negative_and_one_wild_time_does_not_bend_them() -> None:
    sizes = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    times = 3.0 + 2.0 * sizes
    assert min(line(sizes, sizes * 2.0 - 0.5).solve().values()) >= 0
    times[3] *= 10
    assert line(sizes, times).solve() == pytest.approx({"launch": 3.0, "rate": 2.0}, rel=0.05)


def test_intervals_stay_above_zero_and_within_what_a_calibration_can_hold() -> None:
    found = fit.interval_factors({"x": 1.0}, lambda rng: {"x": float(rng.integers(2))}, draws=50)
    assert found == {"x": (fit.MIN_FACTOR, 1.0)}
    found = fit.interval_factors({"launch": 1e-9}, lambda rng: {"launch": 1e-5 * rng.random()}, draws=50)
    assert found["launch"][1] == MAX_SPREAD
    scattered = Comparison(series="a", label="", measured=10.0, predicted=1.0, role="fitted")
    assert widen((0.5, 900.0), [scattered])[1] == MAX_SPREAD


def test_what_few_draws_can_fit_is_drawn_more_often_and_what_none_can_is_refused() -> None:
    def fits(share: float) -> Callable[[np.random.Generator], dict[str, float]]:
        def once(rng: np.random.Generator) -> dict[str, float]:
            if rng.random() > share:
                raise SimnetError("no")
            return {"x": 1.0}

        return once

    assert fit.interval_factors({"x": 1.0}, fits(0.25), draws=20) == {"x": (1.0, 1.0)}
    with refused("fewer than one resample in twenty has a fit"):
        fit.interval_factors({"x": 1.0}, fits(0.0), draws=20)


def test_a_poor_fit_is_refused_and_held_out_rows_do_not_count() -> None:
    good = Comparison(series="a", label="", measured=1.0, predicted=1.05, role="fitted")
    poor = Comparison(series="b", label="", measured=1.0, predicted=1.3, role="fitted")
    check_errors([good, replace(poor, role="held out")], 0.1)
    with refused("b: a mean error of 30.0%: at most 10%"):
        check_errors([good, poor], 0.1)
    with refused("no value between 0.5 and 1 meets the rows"):
        of(lambda values: [values["x"] + 1], {"x": 1.0}, (0.5, 1.0)).zero_mean_error()


def row(predicted: float, series: str = "a", interval: tuple[float, float] | None = None) -> Comparison:
    return Comparison(series=series, label="row", measured=2.0, predicted=predicted, interval=interval)


ROWS = [row(2.2), row(1.4, "b", (1.0, 1.9)), row(2.0, "a", (1.9, 2.1))]


def test_errors_are_relative_to_what_was_measured_and_only_rows_with_an_interval_are_covered_or_not() -> None:
    assert [one.error for one in ROWS] == pytest.approx([0.1, -0.3, 0.0])
    assert mean_error(ROWS) == pytest.approx(0.4 / 3)
    assert mean_signed_error(ROWS) == pytest.approx(-0.2 / 3)
    assert worst_error(ROWS) == pytest.approx(0.3)
    assert worst_row(ROWS) is ROWS[1]
    assert (mean_error([]), mean_signed_error([]), worst_error([])) == (0.0, 0.0, 0.0)
    assert [one.is_inside for one in ROWS] == [None, False, True]
    assert coverage(ROWS) == (1, 2)


@pytest.mark.parametrize(
    ("mean", "worst", "is_within"),
    [(None, None, True), (14, None, True), (13, None, False), (None, 30.1, True), (None, 29, False), (14, 29, False)],
)
def test_limits_are_percent_and_may_be_missing(mean: float | None, worst: float | None, is_within: bool) -> None:
    assert within(ROWS, mean, worst) is is_within

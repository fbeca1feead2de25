"""The fit engine: linear and other models, a number that meets its rows, the choice of costs, and the bootstrap."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from simnet.calibration import fit
from simnet.calibration.comparison import Comparison
from simnet.calibration.fit import Fit, Floats, Linear, Values, check_errors, relative_error, widen
from simnet.core.bounded_types import MAX_SPREAD
from simnet.core.errors import SimnetError


def line(sizes: Floats, times: Floats) -> Fit[float]:
    def columns(rows: Sequence[float]) -> dict[str, Floats]:
        return {"launch": np.ones(len(rows)), "rate": np.array(rows), "never": np.zeros(len(rows))}

    return Fit(rows=sizes.tolist(), times=times, model=Linear(columns=columns), free={"launch": 0.0, "rate": 0.0})


def of(model: Callable[[Values], list[float]], free: Values, bounds: tuple[float, float] | None = None) -> Fit[int]:
    """Return the fit of a model to times of 1."""
    times = [1.0] * len(model(free))
    limits = {} if bounds is None else dict.fromkeys(free, bounds)
    return Fit(rows=range(len(times)), times=times, model=lambda values, _: model(values), free=free, bounds=limits)


def test_a_number_that_meets_its_rows_nowhere_is_refused() -> None:
    with pytest.raises(SimnetError, match=r"no value between 0\.5 and 1 meets the rows"):
        of(lambda values: [values["x"] + 1], {"x": 1.0}, (0.5, 1.0)).meet_mean(relative_error)


def test_least_squares_of_a_met_problem_stays_where_it_is_and_bounds_hold() -> None:
    assert of(lambda v: [v["x"]], {"x": 1.0}).solve() == {"x": 1.0}
    assert of(lambda v: [v["x"]], {"x": 0.5}, (0.1, 0.8)).solve() == {"x": pytest.approx(0.8)}


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


def test_a_poor_fit_is_refused_and_held_out_rows_do_not_count() -> None:
    good = Comparison(series="a", label="", measured=1.0, predicted=1.05, role="fitted")
    poor = Comparison(series="b", label="", measured=1.0, predicted=1.3, role="fitted")
    check_errors([good, replace(poor, role="held out")], 0.1)
    with pytest.raises(SimnetError, match=r"b: a mean error of 30.0%: at most 10%"):
        check_errors([good, poor], 0.1)


def test_a_value_that_some_draws_do_without_has_an_interval_above_zero() -> None:
    found = fit.interval_factors({"x": 1.0}, lambda rng: {"x": float(rng.integers(2))}, draws=50)
    assert found == {"x": (fit.MIN_FACTOR, 1.0)}


def test_a_value_of_nearly_zero_has_the_widest_interval_that_a_calibration_can_hold() -> None:
    found = fit.interval_factors({"launch": 1e-9}, lambda rng: {"launch": 1e-5 * rng.random()}, draws=50)
    assert found["launch"][1] == MAX_SPREAD
    scattered = Comparison(series="a", label="", measured=10.0, predicted=1.0, role="fitted")
    assert widen((0.5, 900.0), [scattered])[1] == MAX_SPREAD


def test_a_bootstrap_without_fits_is_refused() -> None:
    def fails(_: np.random.Generator) -> dict[str, float]:
        raise SimnetError("no")

    with pytest.raises(SimnetError, match="fewer than one resample in twenty has a fit"):
        fit.interval_factors({"x": 1.0}, fails, draws=20)


def test_rows_of_which_few_draws_can_be_fitted_are_drawn_more_often() -> None:
    def one_in_four(rng: np.random.Generator) -> dict[str, float]:
        if rng.random() > 0.25:
            raise SimnetError("no")
        return {"x": 1.0}

    assert fit.interval_factors({"x": 1.0}, one_in_four, draws=20) == {"x": (1.0, 1.0)}

"""Which part of a day trains where nodes fail, against Young's and Daly's formulas and against days played by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.cluster.faults import node_failure
from simnet.cluster.faults.node_failure import (
    DAY_S,
    Availability,
    availability_of,
    best_interval_s,
    mean_fraction,
)
from tests.helpers.fault_samples import cluster, fault

HOUR_S = 3600.0


def availability(num_nodes: int = 4, seed: int = 0, **keys: str) -> Availability:
    failing = {"mean_time_between": "400 h", "checkpoint": "1 min", "restart": "10 min", **keys}
    result = availability_of(cluster(fault("node_failure", **failing), num_nodes=num_nodes), seed)
    assert result is not None
    return result


# Daly (2006), equation 37, worked out by hand: sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d.
DALYS_S = 7200 * (1 + 0.041667 / 3 + 0.041667**2 / 9) - 300
# Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974, where failures are rare.
YOUNGS_S = math.sqrt(2 * 10.0 * 1e9)


@pytest.mark.parametrize(
    ("between_s", "checkpoint_s", "expected_s"),
    [(24 * HOUR_S, 300.0, DALYS_S), (50.0, 100.0, 50.0), (50.0, 400.0, 50.0), (1e9, 10.0, YOUNGS_S)],
)
def test_the_best_interval_is_dalys_and_where_failures_are_rare_youngs(
    between_s: float, checkpoint_s: float, expected_s: float
) -> None:
    assert best_interval_s(between_s, checkpoint_s) == pytest.approx(expected_s, rel=1e-4)


@given(st.floats(100, 1e6), st.floats(1e-3, 0.3), st.floats(0.2, 5))
def test_no_other_interval_trains_more(between_s: float, part: float, factor: float) -> None:
    """The higher-order estimate is the optimum of the complete model to a few per mille where checkpoints are short."""
    checkpoint_s = part * between_s
    best_s = best_interval_s(between_s, checkpoint_s)
    best, other = (mean_fraction(between_s, every_s, checkpoint_s, 60.0) for every_s in (best_s, factor * best_s))
    assert other <= best * 1.002


def test_what_is_lost_to_rare_failures_is_checkpoints_and_half_an_interval_and_restarts() -> None:
    between_s, every_s, checkpoint_s, restart_s = 1e7, 2000.0, 20.0, 300.0
    lost = checkpoint_s / every_s + (every_s / 2 + checkpoint_s / 2 + restart_s) / between_s
    assert mean_fraction(between_s, every_s, checkpoint_s, restart_s) == pytest.approx(1 / (1 + lost), rel=1e-4)
    assert mean_fraction(1e15, 900.0, 100.0, 1e4) == pytest.approx(0.9), "without failures, checkpoints alone"
    fractions = [availability(num_nodes).fraction for num_nodes in (1, 10, 100, 1000, 10_000)]
    assert fractions == sorted(fractions, reverse=True)


def played_fraction(between_s: float, every_s: float, checkpoint_s: float, restart_s: float, cycles: int) -> float:
    """Return the part that trains of so many intervals between failures, each walked through by itself."""
    rng = np.random.default_rng(3)
    trained_s = total_s = 0.0
    in_restart = False
    for lasts_s in rng.exponential(between_s, cycles):
        total_s += lasts_s
        up_s = lasts_s - (restart_s if in_restart else 0.0)
        if up_s > 0:
            trained_s += math.floor(up_s / (every_s + checkpoint_s)) * every_s
        in_restart = True
    return trained_s / total_s


@pytest.mark.parametrize("restart_s", [0.0, 600.0])
def test_dalys_mean_is_that_of_failures_one_after_the_other(restart_s: float) -> None:
    asked = (4 * HOUR_S, 1500.0, 100.0, restart_s)
    assert mean_fraction(*asked) == pytest.approx(played_fraction(*asked, cycles=40_000), rel=0.01)


def test_the_spread_holds_nine_days_in_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    often = availability(mean_time_between="20 h")  # of four nodes: a stop in five hours
    assert often.stops_per_day == pytest.approx(4.8)
    assert often.low < often.fraction < often.high < 1
    days = [_day(rng, 5 * HOUR_S, often.checkpoint_every_s, 60.0, 600.0) for _ in range(2000)]
    low, high = np.percentile(days, [5, 95])
    assert often.low == pytest.approx(low, abs=0.015)
    assert often.high == pytest.approx(high, abs=0.015)
    monkeypatch.setattr(node_failure, "_MOST_INTERVALS", 400)
    many = availability(mean_time_between="160 s", checkpoint="10 ms", checkpoint_every="1 s", restart="0 s")
    assert many.stops_per_day > 400
    assert many.low == pytest.approx(many.fraction, abs=0.01), "too many for a day: the spread of the first"


def _day(rng: np.random.Generator, between_s: float, every_s: float, checkpoint_s: float, restart_s: float) -> float:
    """Walk through a day: train, write, fail, restart."""
    now_s = trained_s = 0.0
    stop_s = rng.exponential(between_s)
    while now_s < DAY_S:
        if now_s + every_s + checkpoint_s <= min(stop_s, DAY_S):
            now_s += every_s + checkpoint_s
            trained_s += every_s
        elif stop_s >= DAY_S:
            return (trained_s + min(DAY_S - now_s, every_s)) / DAY_S
        else:
            now_s = stop_s + restart_s
            stop_s += rng.exponential(between_s)
            while stop_s < now_s:  # within the restart, which begins anew
                now_s = stop_s + restart_s
                stop_s += rng.exponential(between_s)
    return trained_s / DAY_S


def test_without_an_interval_the_best_one_is_taken_and_another_is_compared_with_it() -> None:
    best, hourly = availability(), availability(checkpoint_every="1 h")
    assert best.checkpoint_every_s == best.best_every_s == pytest.approx(best_interval_s(100 * HOUR_S, 60.0))
    assert best.fraction == best.best_fraction
    assert hourly.checkpoint_every_s == HOUR_S
    assert hourly.best_fraction == best.fraction > hourly.fraction


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_nodes", "keys"),
    [
        (1_000_000, {"mean_time_between": "1 s"}),
        (1, {"restart": "1e300 s"}),
        (1, {"checkpoint": "1e300 s"}),
        (1, {"checkpoint_every": "1e300 s"}),
        (1, {"mean_time_between": "1e300 s"}),
        (1, {"checkpoint": "1e-300 s"}),
        (1, {"checkpoint": "1e-300 s", "mean_time_between": "1 s", "restart": "0 s"}),
    ],
)
def test_odd_numbers_give_fractions(num_nodes: int, keys: dict[str, str]) -> None:
    result = availability(num_nodes, **keys)
    assert 0 <= result.low <= result.high <= 1
    assert 0 <= result.fraction <= 1

"""Nodes that fail slow no step; the result says which part of a day trains."""

import pytest

from tests.helpers.fault_samples import COMPUTE_S, cluster, computing, fault

FAILING = {"mean_time_between": "1000 h", "checkpoint": "1 min", "restart": "10 min"}


def test_a_step_takes_as_long_as_without_it() -> None:
    result = computing(fault("node_failure", **FAILING))
    assert result.iterations_s == pytest.approx([COMPUTE_S])
    assert result.availability is not None
    # Four nodes stop four times as often as one: 24 x 4 / 1000 a day.
    assert result.availability.stops_per_day == pytest.approx(0.096)
    assert result.availability.low <= result.availability.fraction <= result.availability.high < 1
    assert computing(fault("slow_rank", node=0, compute_slowdown=1.5)).availability is None
    with pytest.raises(ValueError, match="node_failure: is named twice; give the mean time of all causes together"):
        cluster(fault("node_failure", **FAILING), fault("node_failure", **FAILING))


def test_the_interval_is_drawn_from_the_seed() -> None:
    failing = fault("node_failure", **{**FAILING, "mean_time_between": "4 h"})
    once, again, other = (computing(failing, seed=seed).availability for seed in (1, 1, 2))
    assert once == again != other
    assert once is not None
    assert other is not None
    assert once.fraction == other.fraction

"""How times vary: lognormal factors of mean 1, or measured samples; what ranks wait for; draws; collectives."""

import math
from typing import Any

import numpy as np
import pytest

from simnet.cluster.faults import CollectiveJitter, ComputeJitter
from tests.helpers.fault_samples import BACKWARD_S, COMPUTE_S, FORWARD_S, computing, fault, ring_s, sending

DRAWS = 200_000
ITERATIONS = 2000


def factors(number: int = DRAWS, **keys: Any) -> np.ndarray:
    jitter = fault("compute_jitter", **keys)
    assert isinstance(jitter, ComputeJitter)
    return jitter.draw_factors(np.random.default_rng(1), number)


def expected_maximum(number: int, cv: float) -> float:
    """Return the mean of the largest of so many lognormal factors of mean 1: the integral of 1 - F(x)^n."""
    from scipy import integrate, stats  # a second, which only who runs this has to wait

    spread = math.sqrt(math.log1p(cv**2))
    law = stats.lognorm(s=spread, scale=math.exp(-(spread**2) / 2))
    return integrate.quad(lambda x: 1 - law.cdf(x) ** number, 0, 30, limit=400)[0]


@pytest.mark.slow
@pytest.mark.parametrize("cv", [0.001, 0.05, 0.5, 2.0])
def test_lognormal_factors_have_mean_one_and_their_coefficient_of_variation(cv: float) -> None:
    from scipy import stats

    drawn = factors(cv=cv)
    # The error of a variance grows with the fourth moment, which is large where cv is.
    assert drawn.mean() == pytest.approx(1, abs=4 * cv / math.sqrt(DRAWS))
    assert drawn.std() == pytest.approx(cv, rel=0.01 if cv < 1 else 0.1)
    logs = np.log(drawn)
    assert stats.skew(logs) == pytest.approx(0, abs=0.02)
    assert logs.std() == pytest.approx(math.sqrt(math.log1p(cv**2)), rel=0.01)


def test_samples_are_drawn_each_as_often_in_units_of_their_mean() -> None:
    drawn = factors(samples=[1.0, 2.0, 6.0])
    values, counts = np.unique(drawn, return_counts=True)
    assert values == pytest.approx([1 / 3, 2 / 3, 2])
    assert counts / DRAWS == pytest.approx([1 / 3] * 3, rel=0.02)
    assert factors(9, samples=[0.1, 0.2, 0.6]) == pytest.approx(factors(9, samples=[100.0, 200.0, 600.0]))
    result = sending(fault("collective_jitter", samples=[1.0, 3.0]), iterations=200)
    assert {round(time_s / ring_s(), 6) for time_s in result.iterations_s} == {0.5, 1.5}
    compute, collective = fault("compute_jitter", cv=0.1), fault("collective_jitter", cv=0.1)
    assert isinstance(compute, ComputeJitter)
    assert isinstance(collective, CollectiveJitter)
    of_compute, other = (law.draw_factors(np.random.default_rng(3), 50).tolist() for law in (compute, collective))
    assert of_compute == other, "both kinds draw by the same law"


@pytest.mark.parametrize(("ranks", "cv"), [(1, 0.1), (4, 0.1), (32, 0.3)])
def test_a_step_takes_as_long_as_the_largest_of_the_factors_of_its_ranks(ranks: int, cv: float) -> None:
    """All ranks meet in every step, after forward and backward."""
    result = computing(fault("compute_jitter", cv=cv), num_nodes=ranks, iterations=ITERATIONS, optimizer_s=0.0)
    times_s = np.array(result.iterations_s)
    expected_s = (FORWARD_S + BACKWARD_S) * expected_maximum(ranks, cv)
    # Four standard errors.
    assert times_s.mean() == pytest.approx(expected_s, abs=4 * times_s.std() / math.sqrt(ITERATIONS))


def test_only_the_ranks_that_are_named_vary() -> None:
    from scipy import integrate, stats

    jitter = fault("compute_jitter", cv=0.2, ranks=[2])
    assert isinstance(jitter, ComputeJitter)
    drawn = jitter.draw_compute(np.random.default_rng(0), 0, 4)
    assert (drawn != 1).tolist() == [False, False, True, False]
    result = computing(jitter, iterations=ITERATIONS, optimizer_s=0.0)
    # The largest of one lognormal factor and 1.
    spread = math.sqrt(math.log1p(0.2**2))
    law = stats.lognorm(s=spread, scale=math.exp(-(spread**2) / 2))
    expected = 1 + integrate.quad(law.sf, 1, 30)[0]
    assert result.iteration_s == pytest.approx((FORWARD_S + BACKWARD_S) * expected, rel=0.02)


def test_two_jitters_multiply() -> None:
    both = [fault("compute_jitter", cv=0.2), fault("compute_jitter", cv=0.3)]
    times_s = np.array(computing(*both, num_nodes=1, iterations=ITERATIONS).iterations_s)
    assert times_s.std() / times_s.mean() == pytest.approx(math.sqrt(1.04 * 1.09 - 1), rel=0.1)


def test_the_same_seed_gives_the_same_steps_and_another_one_others_of_which_fewer_are_the_first() -> None:
    jitter = fault("compute_jitter", cv=0.1)
    once, again, other, last = (
        computing(jitter, iterations=10, seed=seed).iterations_s for seed in (7, 7, 8, 2**63 - 1)
    )
    assert once == again
    assert not set(once) & set(other)
    assert not set(once) & set(last)
    assert computing(jitter, iterations=50, seed=7).iterations_s[:10] == pytest.approx(once)


def test_each_kind_leaves_what_the_other_varies_as_it_was() -> None:
    assert sending(fault("compute_jitter", cv=0.3), iterations=5).iteration_s == pytest.approx(sending().iteration_s)
    result = computing(fault("collective_jitter", cv=0.5), iterations=20)
    assert result.iterations_s == pytest.approx([COMPUTE_S] * 20)


@pytest.mark.slow
@pytest.mark.parametrize("num_nodes", [4, 32])
def test_steps_that_are_one_collective_vary_as_it_does_on_many_ranks_as_on_few(num_nodes: int) -> None:
    times_s = np.array(sending(fault("collective_jitter", cv=0.2), num_nodes=num_nodes, iterations=3000).iterations_s)
    assert times_s.mean() == pytest.approx(ring_s(num_nodes), rel=4 * 0.2 / 3000**0.5)
    assert times_s.std() / times_s.mean() == pytest.approx(0.2, rel=0.06)

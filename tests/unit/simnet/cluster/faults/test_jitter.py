"""How times vary: lognormal factors of mean 1, or measured samples; the maximum of many is what ranks wait for."""

import math
from typing import Any

import numpy as np
import pytest

from simnet.cluster.faults import CollectiveJitter, ComputeJitter
from simnet.core.errors import SimnetError
from tests.helpers.fault_samples import BACKWARD_S, FORWARD_S, computing, fault

KINDS = ("compute_jitter", "collective_jitter")
DRAWS = 200_000
ITERATIONS = 2000


def factors(number: int = DRAWS, **keys: Any) -> np.ndarray:
    found = fault("compute_jitter", **keys)
    assert isinstance(found, ComputeJitter)
    return found.draw_factors(np.random.default_rng(1), number)


def expected_maximum(number: int, cv: float) -> float:
    """Return the mean of the largest of so many lognormal factors of mean 1: the integral of 1 - F(x)^n."""
    from scipy import integrate, stats  # a second, which only who runs this has to wait

    spread = math.sqrt(math.log1p(cv**2))
    one = stats.lognorm(s=spread, scale=math.exp(-(spread**2) / 2))
    return integrate.quad(lambda x: 1 - one.cdf(x) ** number, 0, 30, limit=400)[0]


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


def test_times_in_any_unit_are_the_same_samples() -> None:
    assert factors(samples=[0.1, 0.2, 0.6]) == pytest.approx(factors(samples=[100.0, 200.0, 600.0]))


@pytest.mark.parametrize(("ranks", "cv"), [(1, 0.1), (4, 0.1), (32, 0.3)])
def test_a_step_takes_as_long_as_the_largest_of_the_factors_of_its_ranks(ranks: int, cv: float) -> None:
    """All ranks meet in every step, after forward and backward."""
    found = computing(fault("compute_jitter", cv=cv), num_nodes=ranks, iterations=ITERATIONS, optimizer_s=0.0)
    times_s = np.array(found.iterations_s)
    expected_s = (FORWARD_S + BACKWARD_S) * expected_maximum(ranks, cv)
    # Four standard errors.
    assert times_s.mean() == pytest.approx(expected_s, abs=4 * times_s.std() / math.sqrt(ITERATIONS))


def test_only_the_ranks_that_are_named_vary() -> None:
    from scipy import integrate, stats

    one = fault("compute_jitter", cv=0.2, ranks=[2])
    assert isinstance(one, ComputeJitter)
    drawn = one.draw_compute(np.random.default_rng(0), 0, 4)
    assert (drawn != 1).tolist() == [False, False, True, False]
    found = computing(one, iterations=ITERATIONS, optimizer_s=0.0)
    # The largest of one lognormal factor and 1.
    spread = math.sqrt(math.log1p(0.2**2))
    law = stats.lognorm(s=spread, scale=math.exp(-(spread**2) / 2))
    expected = 1 + integrate.quad(law.sf, 1, 30)[0]
    assert found.iteration_s == pytest.approx((FORWARD_S + BACKWARD_S) * expected, rel=0.02)


def test_two_jitters_multiply() -> None:
    both = [fault("compute_jitter", cv=0.2), fault("compute_jitter", cv=0.3)]
    found = np.array(computing(*both, num_nodes=1, iterations=ITERATIONS).iterations_s)
    assert found.std() / found.mean() == pytest.approx(math.sqrt(1.04 * 1.09 - 1), rel=0.1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "cv: say how times vary: give either cv or samples"),
        ({"cv": 0.1, "samples": [1.0, 2.0]}, "cv: say how times vary: give either cv or samples"),
        ({"cv": 0}, "cv: 0: must be a number above 0, at most 10"),
        ({"cv": -0.1}, "cv: -0.1: must be a number above 0, at most 10"),
        ({"cv": 11}, "cv: 11: must be a number above 0, at most 10"),
        ({"cv": math.nan}, "cv: nan: must be finite"),
        ({"cv": math.inf}, "cv: inf: must be finite"),
        ({"cv": "٥"}, "cv: '٥': write a number without quotes"),
        ({"cv": True}, "cv: True: write a number without quotes"),
        ({"samples": [1.0]}, "samples: 1 numbers: must be 2 to 10000"),
        ({"samples": []}, "samples: 0 numbers: must be 2 to 10000"),
        ({"samples": [1.0] * 10_001}, "samples: 10001 numbers: must be 2 to 10000"),
        ({"samples": [1.0, -1.0]}, "samples.1: -1.0: must be a number above 0"),
        ({"samples": [1.0, 0]}, "samples.1: 0: must be a number above 0"),
        ({"samples": [1.0, math.nan]}, "samples.1: nan: must be finite"),
        ({"samples": [1.0, "2"]}, "samples.1: '2': write a number without quotes"),
        ({"samples": [1e-9, 1.0]}, "samples: 1e-09: must be at least a millionth of their mean"),
    ],
)
def test_a_jitter_that_is_none_is_refused(kind: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(SimnetError) as caught:
        fault(kind, **keys)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_both_kinds_draw_by_the_same_law() -> None:
    compute, collective = fault("compute_jitter", cv=0.1), fault("collective_jitter", cv=0.1)
    assert isinstance(compute, ComputeJitter)
    assert isinstance(collective, CollectiveJitter)
    drawn = [one.draw_factors(np.random.default_rng(3), 50) for one in (compute, collective)]
    assert drawn[0].tolist() == drawn[1].tolist()

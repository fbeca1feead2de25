"""Ranks that stand still: all in some steps, or each by itself with a probability."""

from typing import Any

import pytest

from tests.helpers.fault_samples import COMPUTE_S, computing, fault

PAUSE_S = 0.3


@pytest.mark.parametrize(
    ("pauses", "extra_s"),
    [
        ([{"every": 4}], [0, 0, 0, PAUSE_S] * 2 + [0, 0]),
        ([{"probability": 1.0}], [PAUSE_S] * 5),
        ([{"ranks": [1], "every": 2}, {"pause": "100 ms", "every": 3}], [0, 0.3, 0.1, 0.3, 0, 0.4]),
    ],
)
def test_pauses_come_in_the_last_of_so_many_steps_and_add_up(
    pauses: list[dict[str, Any]], extra_s: list[float]
) -> None:
    faults = [fault("pause", **{"pause": "300 ms", **keys}) for keys in pauses]
    times_s = computing(*faults, iterations=len(extra_s)).iterations_s
    assert times_s == pytest.approx([COMPUTE_S + pause_s for pause_s in extra_s])


def test_that_of_one_rank_holds_all_of_them_up() -> None:
    result = computing(fault("pause", ranks=[2], pause="300 ms", every=1), iterations=4)
    assert result.iteration_s == pytest.approx(COMPUTE_S + PAUSE_S)
    assert result.waits is not None
    assert [(late.rank, late.share) for late in result.waits.late] == [(2, 1.0)]
    assert result.waits.late[0].held_s == pytest.approx(PAUSE_S)


@pytest.mark.slow
def test_a_step_has_a_pause_with_the_probability_that_any_rank_has_one() -> None:
    probability, ranks, steps = 0.05, 8, 4000
    result = computing(
        fault("pause", pause="300 ms", probability=probability), num_nodes=ranks, iterations=steps, optimizer_s=0.0
    )
    any_rank = 1 - (1 - probability) ** ranks
    share = sum(time_s > COMPUTE_S for time_s in result.iterations_s) / steps
    # Three standard deviations of a binomial share.
    assert share == pytest.approx(any_rank, abs=3 * (any_rank * (1 - any_rank) / steps) ** 0.5)
    assert max(result.iterations_s) == pytest.approx(min(result.iterations_s) + PAUSE_S)

"""Ranks that stand still: all in some steps, or each by itself with a probability."""

import pytest

from tests.helpers.fault_samples import COMPUTE_S, computing, fault

PAUSE_S = 0.3


def test_a_pause_of_all_ranks_comes_in_the_last_of_so_many_steps() -> None:
    found = computing(fault("pause", pause="300 ms", every=4), iterations=10).iterations_s
    paused = [COMPUTE_S + PAUSE_S if number in {4, 8} else COMPUTE_S for number in range(1, 11)]
    assert found == pytest.approx(paused)


def test_that_of_one_rank_holds_all_of_them_up() -> None:
    found = computing(fault("pause", ranks=[2], pause="300 ms", every=1), iterations=4)
    assert found.iteration_s == pytest.approx(COMPUTE_S + PAUSE_S)
    assert found.waits is not None
    assert [(one.rank, one.share) for one in found.waits.late] == [(2, 1.0)]
    assert found.waits.late[0].held_s == pytest.approx(PAUSE_S)


@pytest.mark.slow
def test_a_step_has_a_pause_with_the_probability_that_any_rank_has_one() -> None:
    probability, ranks, steps = 0.05, 8, 4000
    found = computing(
        fault("pause", pause="300 ms", probability=probability), num_nodes=ranks, iterations=steps, optimizer_s=0.0
    )
    any_rank = 1 - (1 - probability) ** ranks
    share = sum(time_s > COMPUTE_S for time_s in found.iterations_s) / steps
    # Three standard deviations of a binomial share.
    assert share == pytest.approx(any_rank, abs=3 * (any_rank * (1 - any_rank) / steps) ** 0.5)
    assert max(found.iterations_s) == pytest.approx(min(found.iterations_s) + PAUSE_S)


def test_pauses_that_are_sure_come_in_every_step() -> None:
    found = computing(fault("pause", pause="300 ms", probability=1.0), iterations=5)
    assert found.iterations_s == pytest.approx([COMPUTE_S + PAUSE_S] * 5)


def test_pauses_of_several_kinds_add_up() -> None:
    both = [fault("pause", ranks=[1], pause="300 ms", every=2), fault("pause", pause="100 ms", every=3)]
    found = computing(*both, iterations=6).iterations_s
    assert found == pytest.approx([COMPUTE_S + extra_s for extra_s in (0, 0.3, 0.1, 0.3, 0, 0.4)])

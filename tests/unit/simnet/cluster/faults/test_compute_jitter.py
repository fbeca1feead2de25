"""Draws of compute are those of a seed, whatever else is asked."""

import pytest

from tests.helpers.fault_samples import computing, fault, sending


def test_the_same_seed_gives_the_same_steps_and_another_one_others() -> None:
    jitter = fault("compute_jitter", cv=0.1)
    once, again, other = (computing(jitter, iterations=10, seed=seed).iterations_s for seed in (7, 7, 8))
    assert once == again
    assert not set(once) & set(other)


def test_fewer_steps_are_the_first_of_more() -> None:
    jitter = fault("compute_jitter", cv=0.1)
    few, many = (computing(jitter, iterations=number).iterations_s for number in (5, 50))
    assert few == pytest.approx(many[:5])


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_the_first_and_the_last_seed_are_taken(seed: int) -> None:
    found = computing(fault("compute_jitter", cv=0.1), fault("pause", pause="1 s", probability=0.1), seed=seed)
    assert len(found.iterations_s) == 200


def test_messages_take_as_long_as_they_did() -> None:
    assert sending(fault("compute_jitter", cv=0.3), iterations=5).iteration_s == pytest.approx(sending().iteration_s)

"""Collectives that vary: one factor for each, whoever takes part."""

import numpy as np
import pytest

from tests.helpers.fault_samples import COMPUTE_S, computing, fault, ring_s, sending

ITERATIONS = 3000


def test_steps_that_are_one_collective_vary_as_it_does_around_the_usual_time() -> None:
    found = np.array(sending(fault("collective_jitter", cv=0.2), iterations=ITERATIONS).iterations_s)
    assert found.mean() == pytest.approx(ring_s(), rel=4 * 0.2 / ITERATIONS**0.5)
    assert found.std() / found.mean() == pytest.approx(0.2, rel=0.06)


def test_more_ranks_wait_no_longer_since_all_have_the_same_factor() -> None:
    found = sending(fault("collective_jitter", cv=0.2), num_nodes=32, iterations=ITERATIONS)
    assert found.iteration_s == pytest.approx(ring_s(32), rel=4 * 0.2 / ITERATIONS**0.5)


def test_what_was_measured_is_drawn() -> None:
    found = sending(fault("collective_jitter", samples=[1.0, 3.0]), iterations=200)
    assert {round(one / ring_s(), 6) for one in found.iterations_s} == {0.5, 1.5}


def test_compute_is_as_it_was() -> None:
    found = computing(fault("collective_jitter", cv=0.5), iterations=20)
    assert found.iterations_s == pytest.approx([COMPUTE_S] * 20)

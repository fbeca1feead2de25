"""Rounds around rings whose hops differ: the closed form gives what going round by round gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.engine.hops import around_rings

costs = st.one_of(st.sampled_from([1.0, 2.0, 5.0]), st.floats(0.1, 9.0))


@given(st.integers(1, 3), st.integers(2, 12), st.integers(1, 40), st.floats(0, 5), st.data())
def test_rings_take_what_their_rounds_take_one_after_the_other(rings, size, times, start, data):
    rows = st.lists(costs, min_size=size, max_size=size)
    cost = np.array(data.draw(st.lists(rows, min_size=rings, max_size=rings)))
    now = np.full((rings, size), start)
    expected = now
    for _ in range(times):
        ends = expected + cost
        expected = np.maximum(ends, np.roll(ends, 1, axis=1))
    assert around_rings(now, cost, times) == pytest.approx(expected, rel=1e-12)


def test_rings_whose_ranks_start_apart_have_no_closed_form_here():
    assert around_rings(np.array([[0.0, 1.0]]), np.ones((1, 2)), 3) is None

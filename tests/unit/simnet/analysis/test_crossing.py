"""The search for where something starts or stops to hold."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.analysis.crossing import bisect, bisect_by_guesses, transitions

SHAPES: dict[str, Callable[[float, float], float]] = {
    "hyperbola": lambda value, root: root / value - 1,
    "logarithm": lambda value, root: math.log(value / root),
    "step": lambda value, root: 1.0 if value < root else -2.0,
    "bent": lambda value, root: 1e-6 * (root - value) if value < root else 1e6 * (root - value),
    "touching": lambda value, root: max(0.0, 1 - value / root),
}


@given(
    low=st.floats(1e-3, 1e9),
    ratio=st.floats(1.01, 100.0),
    part=st.floats(0.0, 1.0),
    tolerance=st.sampled_from([1e-4, 1e-2, 0.3]),
    shape=st.sampled_from(sorted(SHAPES)),
)
def test_asking_little_finds_the_same_as_asking_at_every_middle(
    low: float, ratio: float, part: float, tolerance: float, shape: str
) -> None:
    high, root = low * ratio, low * ratio**part

    def excess(value: float) -> float:
        return SHAPES[shape](value, root)

    if (excess(low) > 0) == (excess(high) > 0):
        return
    assert bisect_by_guesses(low, high, tolerance, excess) == bisect(low, high, tolerance, lambda v: excess(v) > 0)


@pytest.mark.parametrize(("tolerance", "most"), [(1e-2, 7), (1e-6, 9)])
def test_a_smooth_function_is_asked_less_often_than_by_halving(tolerance: float, most: int) -> None:
    asked: list[float] = []

    def excess(value: float) -> float:
        asked.append(value)
        return 17.0 / value - 1

    bisect_by_guesses(10.0, 25.0, tolerance, excess)
    assert len(asked) <= most
    assert len(asked) == len(set(asked))


def test_only_neighbours_that_differ_are_changes() -> None:
    assert transitions([1, 2, 3, 4, 5], lambda value: value in (2, 3)) == [(1, 2), (3, 4)]

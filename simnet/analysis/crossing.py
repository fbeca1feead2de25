"""The one search for the values at which a condition starts or stops to hold."""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

from simnet.core.units import Bandwidth

Number = int | float
# From one bandwidth to another; None stands for an end of the bandwidths tried.
Range = tuple[Bandwidth | None, Bandwidth | None]
# In one turn of five, `bisect_by_guesses` halves instead of interpolating: an interpolation may converge from one side
# only, and would then ask for ever.
TURNS_PER_HALVING = 5


def transitions(values: Sequence[Number], holds: Callable[[Number], bool]) -> list[tuple[Number, Number]]:
    """Return the neighbours, of ascending values, between which a condition starts or stops to hold."""
    return [(low, high) for low, high in itertools.pairwise(values) if holds(low) != holds(high)]


def bisect(low: Number, high: Number, tolerance: float, holds: Callable[[Number], bool]) -> tuple[Number, Number]:
    """Narrow down where a condition starts or stops to hold.

    Args:
        low: the lower value.
        high: the higher value; the condition holds at one of the two and not at the other.
        tolerance: largest relative distance of the two values returned; integers end as neighbours.
        holds: whether the condition holds at a value; asked at `low` and in between.
    """
    # A search that runs into zero never reaches a relative distance: it ends at this absolute one.
    least = tolerance**2 * high
    holds_at_low = holds(low)
    while high - low > max(tolerance * high, least) or isinstance(low, int):
        between = midpoint(low, high)
        if not low < between < high:
            break
        low, high = (between, high) if holds(between) == holds_at_low else (low, between)
    return low, high


def bisect_by_guesses(
    low: Number, high: Number, tolerance: float, excess: Callable[[Number], float]
) -> tuple[Number, Number]:
    """Narrow down to the same two values as `bisect`, with fewer evaluations of a function with one change of sign.

    A bisection asks at fixed midpoints, and the answers follow from where the sign changes. So a guess of that place by
    interpolation tells which two midpoints the bisection would end at. Only these two are evaluated; if one of them
    contradicts the guess, a better guess is made from the new value. The result does not depend on the guesses, and
    is therefore the same, to the bit, as that of a plain bisection. `excess` is monotonic between the two values, and
    above 0 where the condition holds.
    """
    known = {low: excess(low), high: excess(high)}
    for turn in itertools.count():
        guess = _interpolated(known, turn)
        ends = bisect(low, high, tolerance, partial(_would_hold, known, guess))
        unknown = [end for end in ends if end not in known]
        if not unknown:
            return ends
        # The end nearer to the guess is the likelier one to contradict it, so it teaches more.
        asked = min(unknown, key=lambda end: abs(end - guess))
        known[asked] = excess(asked)
    raise AssertionError


def _would_hold(known: dict[Number, float], guess: Number, value: Number) -> bool:
    """Return whether the condition holds at a value if the sign changes at the guess.

    Outside the bracket of the known values the answer is certain; only inside does the guess decide.
    """
    low, high = _bracket(known)
    is_low = value <= low or (value < high and value < guess)
    return (known[low] > 0) == is_low


def _interpolated(known: dict[Number, float], turn: int) -> Number:
    """Return about where the sign changes: the zero of a line, over the logarithm, through the two values nearest to 0.

    Some turns, and wherever the line leads out of the bracket, the midpoint.
    """
    low, high = _bracket(known)
    nearest, other = sorted(known, key=lambda value: abs(known[value]))[:2]
    is_halving = turn % TURNS_PER_HALVING == TURNS_PER_HALVING - 1
    if not is_halving and nearest > 0 < other and known[nearest] != known[other]:
        exponent = known[nearest] / (known[nearest] - known[other])
        guess: float = nearest * (other / nearest) ** min(max(exponent, -99.0), 99.0)  # further out the power overflows
        if low < guess < high:
            return guess
    return midpoint(low, high)


def _bracket(known: dict[Number, float]) -> tuple[Number, Number]:
    """Return the neighbours between which the sign changes."""
    return transitions(sorted(known), lambda value: known[value] > 0)[0]


def midpoint(low: Number, high: Number) -> Number:
    """Return a value in between, of positive numbers on a logarithmic scale; of integers a whole one, or `low`."""
    if isinstance(low, int) and isinstance(high, int):
        whole = math.isqrt(low * high) if low > 0 else low
        return whole if whole > low else (low + high) // 2
    between = math.sqrt(low) * math.sqrt(high) if low > 0 else low / 2 + high / 2  # low * high may overflow
    return type(low)(min(max(between, low), high))

"""From where on something holds: the one search for a value at which it starts or stops to."""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

from simnet.units import Bandwidth

Number = int | float
Range = tuple[Bandwidth | None, Bandwidth | None]
"""Bandwidths from one to another; None: an end of what was tried."""


def changes(values: Sequence[Number], holds: Callable[[Number], bool]) -> list[tuple[Number, Number]]:
    """Return the neighbours, of ascending values, between which something starts or stops to hold."""
    return [(low, high) for low, high in itertools.pairwise(values) if holds(low) != holds(high)]


def bisected(low: Number, high: Number, tolerance: float, holds: Callable[[Number], bool]) -> tuple[Number, Number]:
    """Narrow down where something starts or stops to hold.

    Args:
        low: the lower value.
        high: the higher value, at which it is the other way round.
        tolerance: greatest relative distance of the two values in the end; integers are found exactly.
        holds: whether it holds at a value; asked at both ends and in between.
    """
    least = tolerance**2 * high  # where the search runs into zero, which no relative distance reaches
    below = holds(low)
    while high - low > max(tolerance * high, least) or isinstance(low, int):
        between = middle(low, high)
        if not low < between < high:
            break
        low, high = (between, high) if holds(between) == below else (low, between)
    return low, high


def bisected_once(
    low: Number, high: Number, tolerance: float, excess: Callable[[Number], float]
) -> tuple[Number, Number]:
    """Narrow down as `bisected` does, to the same two values, where the sign changes once and little is to be asked.

    Most answers follow from a guess by interpolation, of which the two values that it leads to are then asked.

    Args:
        low: the lower value.
        high: the higher value.
        tolerance: as in `bisected`.
        excess: above 0 where it holds; monotonic between the two.
    """
    known = {low: excess(low), high: excess(high)}
    for turn in itertools.count():
        guess = _guess(known, turn)
        ends = bisected(low, high, tolerance, partial(_follows, known, guess))
        unknown = [end for end in ends if end not in known]
        if not unknown:
            return ends
        asked = min(unknown, key=lambda end: abs(end - guess))
        known[asked] = excess(asked)
    raise AssertionError


def _follows(known: dict[Number, float], guess: Number, value: Number) -> bool:
    """Tell whether something holds at a value as far as is known, in between as if the sign changed at the guess."""
    low, high = changes(sorted(known), lambda value: known[value] > 0)[0]
    is_low = value <= low or (value < high and value < guess)
    return (known[low] > 0) == is_low


def _guess(known: dict[Number, float], turn: int) -> Number:
    """Return about where the sign changes: where a line through the two values next to it is 0, over the logarithm.

    Where that leads out of what is known, and now and then, so that the search ends whatever the function, the middle.
    """
    low, high = changes(sorted(known), lambda value: known[value] > 0)[0]
    one, other = sorted(known, key=lambda value: abs(known[value]))[:2]
    if turn % 5 != 4 and one > 0 < other and known[one] != known[other]:
        exponent = known[one] / (known[one] - known[other])
        guess: float = one * (other / one) ** min(max(exponent, -99.0), 99.0)
        if low < guess < high:
            return guess
    return middle(low, high)


def middle(low: Number, high: Number) -> Number:
    """Return a value in between, of positive numbers on a logarithmic scale; of integers a whole one, or `low`."""
    if isinstance(low, int) and isinstance(high, int):
        whole = math.isqrt(low * high) if low > 0 else low
        return whole if whole > low else (low + high) // 2
    between = math.sqrt(low) * math.sqrt(high) if low > 0 else low / 2 + high / 2  # low * high may overflow
    return type(low)(min(max(between, low), high))

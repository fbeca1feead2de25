"""Find the steps in which a rank stood still, and how often and how long ranks do so."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simnet.calibration.fitted_part import Floats

if TYPE_CHECKING:
    from simnet.core.bounded_types import BoolArray, IntArray

MIN_DEVIATIONS = 5.0
"""Robust standard deviations of the logarithm by which a step is longer than the median of its rank."""
MIN_EXCESS = 0.2
"""Part of the median by which it is longer at least."""
MIN_NUMBER = 2
"""Pauses of which something is said; one alone has no probability."""
MOST_OFTEN = 0.1
"""Part of all steps of all ranks; what comes more often is no pause, but how compute varies."""
TOGETHER = 0.8
"""Part of the ranks that pause in a step from which on they pause together."""
OWN_SIGNIFICANCE = 0.01
"""Of all ranks together: from here on a rank with more pauses than the others has pauses of its own."""
_ROBUST = 1.4826  # standard deviation of a normal distribution / median absolute deviation


@dataclass(frozen=True, kw_only=True)
class FittedPause:
    """Pauses of one kind.

    Attributes:
        ranks: that pause; () for all.
        pause_s: their mean length [s].
        number: how many there are.
        probability: of one in a step of a rank; None where ranks pause together.
        every: steps from one to the next, of all ranks together; None where each pauses by itself.
    """

    ranks: tuple[int, ...] = ()
    pause_s: float
    number: int
    probability: float | None = None
    every: int | None = None


def find(own_s: Floats) -> "BoolArray":
    """Tell of each step of each rank whether the rank paused in it.

    Args:
        own_s: times of the steps without waits for others, a row a rank [s].
    """
    logs = np.log(own_s)
    deviations = logs - np.median(logs, axis=1, keepdims=True)
    of_ranks = _ROBUST * np.median(np.abs(deviations), axis=1, keepdims=True)
    spread = np.maximum(of_ranks, _ROBUST * np.median(np.abs(deviations)))
    is_long = np.asarray(deviations > np.maximum(MIN_DEVIATIONS * spread, np.log1p(MIN_EXCESS)))
    alone = is_long & ~_together(is_long)
    return is_long & ~alone if alone.mean() > MOST_OFTEN else is_long


def _together(paused: "BoolArray") -> "BoolArray":
    """Tell of each step whether ranks pause together in it."""
    return np.asarray(paused.mean(axis=0) >= TOGETHER)


def fit(own_s: Floats, paused: "BoolArray") -> tuple[FittedPause, ...]:
    """Return the kinds of pauses: of all ranks together, of single ranks, and of the others each by itself."""
    excess_s = np.where(paused, own_s - np.median(own_s, axis=1, keepdims=True), 0.0)
    together = _together(paused)
    found: list[FittedPause] = []
    if together.sum() >= MIN_NUMBER:
        pauses_s = excess_s[:, together][paused[:, together]]
        every = round(paused.shape[1] / int(together.sum()))
        found.append(FittedPause(pause_s=float(pauses_s.mean()), number=len(pauses_s), every=every))
        paused = paused & ~together
    own = _with_own(paused)
    others = [rank for rank in range(len(paused)) if rank not in own]
    for ranks in (*((rank,) for rank in own), tuple(others)):
        found += _of_ranks(ranks, excess_s, paused)
    return tuple(found)


def _of_ranks(ranks: tuple[int, ...], excess_s: Floats, paused: "BoolArray") -> list[FittedPause]:
    """Return the pauses of some ranks, each by itself; none if there are too few."""
    mine = paused[list(ranks)]
    number = int(mine.sum())
    if number < MIN_NUMBER:
        return []
    return [
        FittedPause(
            ranks=ranks if len(ranks) < len(paused) else (),
            pause_s=float(excess_s[list(ranks)][mine].mean()),
            number=number,
            probability=number / mine.size,
        )
    ]


def _with_own(paused: "BoolArray") -> list[int]:
    """Return the ranks that pause more often than the others do, by a binomial test."""
    from scipy.stats import binom

    counts: IntArray = paused.sum(axis=1)
    num_ranks, num_steps = paused.shape
    # One more than were seen, since a rate of zero would make any two pauses of a rank its own.
    rates = (counts.sum() - counts + 1) / (num_steps * (num_ranks - 1) + 1)
    chances = binom.sf(counts - 1, num_steps, np.minimum(rates, 1.0))
    return [int(rank) for rank in np.flatnonzero((counts >= MIN_NUMBER) & (chances < OWN_SIGNIFICANCE / num_ranks))]

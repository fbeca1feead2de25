"""Find the ranks whose median compute is longer than that of the others, surely and by enough to matter."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simnet.calibration.fitted_part import Floats
from simnet.calibration.rank_samples import interval_of_median

LEAST_SLOWDOWN = 1.02
"""The interval of a slow rank's factor begins here or above."""
_ROUNDS = 8
_MEDIAN_OF_MEANS = math.sqrt(math.pi / 2)  # standard deviation of a median / that of a mean, of many normal numbers


@dataclass(frozen=True, kw_only=True)
class RankFactor:
    """A rank's median compute beside that of the others.

    Attributes:
        median_s: its own [s].
        factor: its own / the median of the others' medians, slow ones left out.
        low: end of the interval of the factor.
        high: the other end.
    """

    median_s: float
    factor: float
    low: float
    high: float

    @property
    def is_slow(self) -> bool:
        """Whether it is surely slower, by enough."""
        return self.low >= LEAST_SLOWDOWN

    @property
    def is_fast(self) -> bool:
        """Whether it is surely faster, by enough."""
        return self.high <= 1 / LEAST_SLOWDOWN


def fit(times_s: Sequence[Floats]) -> list[RankFactor]:
    """Return the factor of every rank; the intervals of all hold together with a probability of about 90 %.

    Args:
        times_s: compute of each rank in its steps, without pauses [s].
    """
    medians = np.array([float(np.median(mine)) for mine in times_s])
    ends = np.array([interval_of_median(mine, len(times_s)) for mine in times_s])
    slow: set[int] = set()
    for _ in range(_ROUNDS):
        found = [_relative_to_others(rank, medians, ends, slow) for rank in range(len(times_s))]
        now = {rank for rank, one in enumerate(found) if one.is_slow}
        if now == slow:
            break
        # Without the slow ones the others' median is that of ordinary ranks, beside which more may be slow.
        slow = now
    return found


def _relative_to_others(rank: int, medians: Floats, ends: Floats, slow: set[int]) -> RankFactor:
    others = [one for one in range(len(medians)) if one != rank and one not in slow]
    others = others or [rank]  # all others are slow: it is the ordinary one
    reference_s = float(np.median(medians[others]))
    below, above = np.log(medians / ends[:, 0]), np.log(ends[:, 1] / medians)
    # The median of the others is in doubt, too, though less.
    few = len(others) < 3
    doubt = float(np.median((below + above)[others])) / 2 / math.sqrt(len(others)) * (1.0 if few else _MEDIAN_OF_MEANS)
    factor = float(medians[rank]) / reference_s
    return RankFactor(
        median_s=float(medians[rank]),
        factor=factor,
        low=factor * math.exp(-math.hypot(float(below[rank]), doubt)),
        high=factor * math.exp(math.hypot(float(above[rank]), doubt)),
    )

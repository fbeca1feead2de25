"""Which of two strategies is faster: what was predicted, wherever measurements tell the two apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from simnet.validate.training_steps import TrainedPoint

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class StrategyPair:
    """Two strategies at one place, the one that was measured to be faster first."""

    faster: TrainedPoint
    slower: TrainedPoint

    @property
    def measured_intervals_are_disjoint(self) -> bool:
        """Tell whether the 95 % intervals of the two measured medians do not overlap."""
        return _apart(self.faster.measured_interval_s, self.slower.measured_interval_s)

    @property
    def predicted_intervals_are_disjoint(self) -> bool:
        """Tell whether the predicted intervals do not overlap, whichever is said to be faster."""
        one, other = self.faster.interval, self.slower.interval
        return _apart(one, other) or _apart(other, one)

    @property
    def is_right(self) -> bool:
        """Tell whether the faster one is predicted to be faster."""
        return self.faster.predicted < self.slower.predicted

    @property
    def difference(self) -> float:
        """How much longer the slower one takes, as a part of the faster, as measured."""
        return self.slower.measured / self.faster.measured - 1


def pairs(points: Sequence[TrainedPoint]) -> list[StrategyPair]:
    """Return every two strategies of every place."""
    found = []
    for where in dict.fromkeys(point.setting for point in points):
        mine = sorted((point for point in points if point.setting == where), key=lambda point: point.measured)
        found += [StrategyPair(faster=one, slower=other) for one, other in combinations(mine, 2)]
    return found


def _apart(low: Interval | None, high: Interval | None) -> bool:
    return low is not None and high is not None and low[1] < high[0]

"""Which of two strategies is faster, as predicted and as measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Generic, Protocol, TypeVar

Interval = tuple[float, float]


class RankedPoint(Protocol):
    """A step of a strategy, measured and predicted."""

    @property
    def setting(self) -> object:
        """What strategies are compared in."""

    @property
    def measured(self) -> float:
        """Measured time of a step [s]."""

    @property
    def predicted(self) -> float:
        """Predicted time of a step [s]."""

    @property
    def measured_interval_s(self) -> Interval | None:
        """95 % interval of the measured median [s]."""

    @property
    def interval(self) -> Interval | None:
        """Predicted 90 % interval [s]."""


Point = TypeVar("Point", bound=RankedPoint)


@dataclass(frozen=True, kw_only=True)
class StrategyPair(Generic[Point]):
    """Two strategies in one setting; `faster` has the smaller measured step."""

    faster: Point
    slower: Point

    @property
    def measured_intervals_are_disjoint(self) -> bool:
        """Whether the 95 % intervals of the two measured medians do not overlap."""
        return _apart(self.faster.measured_interval_s, self.slower.measured_interval_s)

    @property
    def predicted_intervals_are_disjoint(self) -> bool:
        """Whether the predicted intervals do not overlap, in either order."""
        one, other = self.faster.interval, self.slower.interval
        return _apart(one, other) or _apart(other, one)

    @property
    def is_right(self) -> bool:
        """Whether the faster one is also predicted to be faster."""
        return self.faster.predicted < self.slower.predicted

    @property
    def difference(self) -> float:
        """Measured time of the slower one over that of the faster one, minus 1."""
        return self.slower.measured / self.faster.measured - 1


def pairs(points: Sequence[Point]) -> list[StrategyPair[Point]]:
    """Return all pairs of strategies in every setting."""
    found = []
    for setting in dict.fromkeys(point.setting for point in points):
        mine = sorted((point for point in points if point.setting == setting), key=lambda point: point.measured)
        found += [StrategyPair(faster=one, slower=other) for one, other in combinations(mine, 2)]
    return found


def _apart(low: Interval | None, high: Interval | None) -> bool:
    return low is not None and high is not None and low[1] < high[0]

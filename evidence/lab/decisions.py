"""What predictions are made for: which strategy is faster, the fastest, and the bandwidth at which that changes."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Generic, Protocol, TypeVar

from simnet.analysis.verdict import Speedup
from simnet.validation.training_steps import TrainedPoint

Interval = tuple[float, float]
Speedups = tuple[tuple[float, float], ...]
"""Pairs of NIC bandwidth [B/s] and speedup, by ascending bandwidth."""


class RankedPoint(Protocol):
    """A step of a strategy, measured and predicted."""

    @property
    def setting(self) -> Hashable:
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


def by_setting(points: Sequence[Point]) -> list[list[Point]]:
    """Return the points of every setting, the smallest measured step first."""
    grouped: dict[Hashable, list[Point]] = {}
    for point in sorted(points, key=lambda point: point.measured):
        grouped.setdefault(point.setting, []).append(point)
    return [grouped[setting] for setting in dict.fromkeys(point.setting for point in points)]


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
        faster, other = self.faster.interval, self.slower.interval
        return _apart(faster, other) or _apart(other, faster)

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
    return [
        StrategyPair(faster=faster, slower=other)
        for there in by_setting(points)
        for faster, other in combinations(there, 2)
    ]


def _apart(low: Interval | None, high: Interval | None) -> bool:
    return low is not None and high is not None and low[1] < high[0]


@dataclass(frozen=True, kw_only=True)
class Winner:
    """The measured fastest strategy of one setting, and the predicted one."""

    fastest: TrainedPoint
    predicted_fastest: TrainedPoint

    @property
    def is_right(self) -> bool:
        """Whether the two are the same."""
        return self.fastest is self.predicted_fastest

    @property
    def regret(self) -> float:
        """Measured time of the predicted one over that of the fastest, minus 1."""
        return self.predicted_fastest.measured / self.fastest.measured - 1

    @property
    def is_close(self) -> bool:
        """Whether the speedup of the fastest over the predicted one is too small to pay, by the rule of `advise`."""
        return not Speedup(value=1 + self.regret).pays


@dataclass(frozen=True, kw_only=True)
class BandwidthSweep:
    """Two strategies of one model and layout: a pair (first, second) of points for each bandwidth, ascending."""

    pairs: tuple[tuple[TrainedPoint, TrainedPoint], ...]

    @property
    def measured(self) -> Speedups:
        """Measured speedup of the first strategy over the second."""
        return tuple((first.setting[3], two.measured / first.measured) for first, two in self.pairs)

    @property
    def predicted(self) -> Speedups:
        """Predicted speedup of the first strategy over the second."""
        return tuple((first.setting[3], two.predicted / first.predicted) for first, two in self.pairs)


def find_winners(points: Sequence[TrainedPoint]) -> list[Winner]:
    """Return the winner of every setting with at least two strategies."""
    return [
        Winner(fastest=there[0], predicted_fastest=min(there, key=lambda point: point.predicted))
        for there in by_setting(points)
        if len(there) > 1
    ]


def bandwidth_sweeps(points: Sequence[TrainedPoint], names: Sequence[tuple[str, str]]) -> list[BandwidthSweep]:
    """Return each pair of named strategies over the bandwidths with both, for each layout and latency with two."""

    def others(point: TrainedPoint) -> tuple[object, ...]:
        return point.setting[:3] + point.setting[4:]

    sweeps = []
    for there in dict.fromkeys(map(others, points)):
        points_there = [point for point in points if others(point) == there]
        for two in names:
            first, second = (
                {point.setting[3]: point for point in points_there if point.series == name} for name in two
            )
            rates = sorted(first.keys() & second.keys())
            if len(rates) > 1:
                sweeps.append(BandwidthSweep(pairs=tuple((first[rate], second[rate]) for rate in rates)))
    return sweeps


def crossing_bandwidth(speedups: Speedups) -> float | None:
    """Return the bandwidth at which a speedup falls to 1, interpolated on log scales; None if it does not.

    Example:
        >>> round(crossing_bandwidth(((1e6, 4.0), (4e6, 0.25))))
        2000000
    """
    for (low, before), (high, after) in pairwise(speedups):
        if before >= 1 > after:
            part = math.log(before) / math.log(before / after)
            return math.exp(math.log(low) + part * math.log(high / low))
    return None

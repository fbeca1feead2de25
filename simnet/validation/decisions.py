"""Decisions that predictions are made for: the fastest strategy, and the bandwidth at which another becomes it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from simnet.analysis.verdict import Speedup
from simnet.validation.training_steps import TrainedPoint

Speedups = tuple[tuple[float, float], ...]
"""Pairs of NIC bandwidth [B/s] and speedup, by ascending bandwidth."""


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
        return tuple((one.setting[3], two.measured / one.measured) for one, two in self.pairs)

    @property
    def predicted(self) -> Speedups:
        """Predicted speedup of the first strategy over the second."""
        return tuple((one.setting[3], two.predicted / one.predicted) for one, two in self.pairs)


def find_winners(points: Sequence[TrainedPoint]) -> list[Winner]:
    """Return the winner of every setting with at least two strategies."""
    settings = [
        [point for point in points if point.setting == setting] for setting in dict.fromkeys(p.setting for p in points)
    ]
    return [
        Winner(fastest=min(mine, key=lambda p: p.measured), predicted_fastest=min(mine, key=lambda p: p.predicted))
        for mine in settings
        if len(mine) > 1
    ]


def bandwidth_sweeps(points: Sequence[TrainedPoint], names: Sequence[tuple[str, str]]) -> list[BandwidthSweep]:
    """Return each pair of named strategies over the bandwidths with both, for each layout with at least two of them."""
    layouts = dict.fromkeys(point.setting[:3] for point in points)
    found = [_matched([p for p in points if p.setting[:3] == layout], *two) for layout in layouts for two in names]
    return [BandwidthSweep(pairs=pairs) for pairs in found if len(pairs) > 1]


def _matched(points: Sequence[TrainedPoint], faster: str, slower: str) -> tuple[tuple[TrainedPoint, TrainedPoint], ...]:
    first, second = ({p.setting[3]: p for p in points if p.series == name} for name in (faster, slower))
    return tuple((first[rate], second[rate]) for rate in sorted(first.keys() & second.keys()))


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

"""What predictions are for: which strategy wins, and from which bandwidth on."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from simnet.compare.verdict import Speedup
from simnet.validate.measured import Place, Point


@dataclass(frozen=True, kw_only=True)
class Winner:
    """The fastest strategy of one place, measured and predicted.

    Attributes:
        regret: how much longer the predicted one takes than the fastest measured, both as measured.
    """

    place: Place
    measured: str
    predicted: str
    regret: float

    @property
    def is_close(self) -> bool:
        """Whether it does not pay to take the fastest measured instead, by the rule of `simnet advise`."""
        return not Speedup(value=1 + self.regret).pays


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """The bandwidth at which one strategy stops being faster than another; None where it does not within the points.

    Attributes:
        measured_bytes_per_s: where measured times are equal, log-linear between bandwidths.
        speedups: the range of `slower / faster` over the bandwidths, measured and predicted.
    """

    model: str
    layout: tuple[int, int]
    faster: str
    slower: str
    measured_bytes_per_s: float | None
    predicted_bytes_per_s: float | None
    measured_speedups: tuple[float, float]
    predicted_speedups: tuple[float, float]


def winners(points: Sequence[Point]) -> list[Winner]:
    """Return the winner of every place with two strategies or more."""
    found = []
    for where in dict.fromkeys(point.place for point in points):
        mine = [point for point in points if point.place == where]
        if len(mine) > 1:
            fastest = min(mine, key=lambda point: point.measured)
            chosen = min(mine, key=lambda point: point.predicted)
            found.append(
                Winner(
                    place=where,
                    measured=fastest.series,
                    predicted=chosen.series,
                    regret=chosen.measured / fastest.measured - 1,
                )
            )
    return found


def crossovers(points: Sequence[Point], pairs: Sequence[tuple[str, str]]) -> list[Crossover]:
    """Return where the first strategy of each pair stops being faster than the second as the bandwidth grows."""
    found = []
    for model, nodes, ranks in dict.fromkeys(point.place[:3] for point in points):
        there = [point for point in points if point.place[:3] == (model, nodes, ranks)]
        for faster, slower in pairs:
            both = _matched(there, faster, slower)
            if len(both) > 1:
                found.append(_crossover(model, (nodes, ranks), faster, slower, both))
    return found


def _matched(points: Sequence[Point], faster: str, slower: str) -> list[tuple[float, Point, Point]]:
    """Return bandwidth and both points wherever both were measured, by bandwidth."""
    first = {point.place[3]: point for point in points if point.series == faster}
    second = {point.place[3]: point for point in points if point.series == slower}
    return [(rate, first[rate], second[rate]) for rate in sorted(first.keys() & second.keys())]


def _crossover(
    model: str, layout: tuple[int, int], faster: str, slower: str, both: Sequence[tuple[float, Point, Point]]
) -> Crossover:
    def speedups(time: Callable[[Point], float]) -> list[tuple[float, float]]:
        return [(rate, time(two) / time(one)) for rate, one, two in both]

    measured, predicted = speedups(lambda p: p.measured), speedups(lambda p: p.predicted)
    return Crossover(
        model=model,
        layout=layout,
        faster=faster,
        slower=slower,
        measured_bytes_per_s=crossing(measured),
        predicted_bytes_per_s=crossing(predicted),
        measured_speedups=_range(measured),
        predicted_speedups=_range(predicted),
    )


def crossing(speedups: Sequence[tuple[float, float]]) -> float | None:
    """Return the bandwidth at which a speedup falls to 1, log-linear between points; None if it does not.

    Example:
        >>> round(crossing([(1e6, 4.0), (4e6, 0.25)]))
        2000000
    """
    for (low, before), (high, after) in pairwise(speedups):
        if before >= 1 > after:
            part = math.log(before) / math.log(before / after)
            return math.exp(math.log(low) + part * math.log(high / low))
    return None


def _range(speedups: Sequence[tuple[float, float]]) -> tuple[float, float]:
    values = [value for _, value in speedups]
    return min(values), max(values)

"""Network costs of several numbers of nodes, interpolated between them and kept beyond, and of several libraries.

Between two measured numbers of nodes a value goes evenly over the logarithm of the nodes. Beyond the largest (or below
the smallest) it stays, since published rows show no common direction there, and its interval grows as that of a random
walk over doublings of the nodes.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from simnet.core.bounded_types import MAX_SPREAD, Count, Fraction, Intervals
from simnet.core.units import Duration, Size

Efficiency = Fraction | tuple[tuple[Size, Fraction], ...]
DOUBLING_FACTOR = 1.17
"""How far a bandwidth may move with the first doubling of the nodes beyond the measured ones, either way, 90 %.

From the bandwidths that published dense rows show at 4, 8, 16, ... nodes, each against the one at half the nodes
(docs/explanation/network.md; recomputed by tests/validation/test_group_sizes.py).
"""


def check_efficiency(efficiency: Efficiency | None) -> None:
    """Refuse a curve that is not ascending.

    Raises:
        ValueError: the sentence.
    """
    if isinstance(efficiency, tuple):
        sizes = [size for size, _ in efficiency]
        if not sizes or sizes[0] <= 0 or sizes != sorted(set(sizes)):
            raise ValueError("efficiency: message sizes must be above zero and ascending; sort the points")


def check_intervals(intervals: Intervals) -> None:
    """Refuse factors that do not hold 1 between them."""
    for key, (low, high) in intervals.items():
        if not low <= 1 <= high:
            raise ValueError(f"intervals: {key!r}: [{low:g}, {high:g}]: must be two factors with 1 between them")


class NetworkCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Costs between nodes that replace the calibration's own; what is missing is the calibration's.

    Attributes:
        efficiency: in place of `inter_node.efficiency`.
        alpha_s: in place of `inter_node.latency`.
        message_s: in place of `message_cost`.
        poll_s: in place of `poll_cost`.
        all_to_all_efficiency: in place of `all_to_all_efficiency`.
        intervals: 90 % intervals by these keys, as factors.
        source: where the numbers come from.
    """

    efficiency: Efficiency | None = None
    alpha_s: Duration | None = field(name="latency", default=None)
    message_s: Duration | None = field(name="message_cost", default=None)
    poll_s: Duration | None = field(name="poll_cost", default=None)
    all_to_all_efficiency: Fraction | None = None
    intervals: Intervals = {}
    source: str = ""

    def __post_init__(self) -> None:
        check_efficiency(self.efficiency)
        check_intervals(self.intervals)
        missing = [key for key in self.intervals if key not in KEYS or getattr(self, KEYS[key].name) is None]
        if missing:
            raise ValueError(f"intervals: {missing[0]!r}: needs a value in the same table; give the value")


class NodesPoint(NetworkCosts, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Network costs as measured on one number of nodes.

    Attributes:
        nodes: that number.
    """

    nodes: Count


class _CostKey(NamedTuple):
    """The name of a cost in a struct, and its dotted key in a calibration."""

    name: str
    key: str


KEYS = {
    "efficiency": _CostKey("efficiency", "inter_node.efficiency"),
    "latency": _CostKey("alpha_s", "inter_node.latency"),
    "message_cost": _CostKey("message_s", "message_cost"),
    "poll_cost": _CostKey("poll_s", "poll_cost"),
    "all_to_all_efficiency": _CostKey("all_to_all_efficiency", "all_to_all_efficiency"),
}
"""The costs by their keys in `NetworkCosts`."""


class Cost(NamedTuple):
    """A cost at some number of nodes: its key in `NetworkCosts`, its value, and its interval if it has one."""

    key: str
    value: object
    interval: tuple[float, float] | None


def check_points(points: Sequence[NodesPoint]) -> None:
    """Refuse points whose nodes do not increase.

    Raises:
        ValueError: the sentence.
    """
    nodes = [point.nodes for point in points]
    if nodes != sorted(set(nodes)):
        raise ValueError(f"by_nodes: nodes {nodes}: must increase; sort the points and give each number of nodes once")


class LibraryCosts(NetworkCosts, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Network costs of another library than the one that carries all other collectives.

    Attributes:
        carries: names of the strategies whose exchange goes through it, such as "one_bit_adam".
        by_nodes: its costs as measured on several numbers of nodes.
    """

    carries: tuple[str, ...]
    by_nodes: tuple[NodesPoint, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_points(self.by_nodes)

    def at_nodes(self, num_nodes: int) -> "LibraryCosts":
        """Return the costs on so many nodes, as `Calibration.at_nodes`."""
        if not self.by_nodes:
            return self
        costs = {cost.key: cost for cost in costs_at(self.by_nodes, num_nodes)}
        known = {key: interval for key, interval in self.intervals.items() if key not in costs}
        intervals = known | {key: cost.interval for key, cost in costs.items() if cost.interval is not None}
        values: dict[str, Any] = {KEYS[key].name: cost.value for key, cost in costs.items()}
        return replace(self, **values, intervals=intervals, by_nodes=())


def own_costs(costs: NetworkCosts) -> Iterator[Cost]:
    """Yield the costs that are given."""
    for key, known in KEYS.items():
        if getattr(costs, known.name) is not None:
            yield Cost(key, getattr(costs, known.name), costs.intervals.get(key))


def costs_at(points: Sequence[NodesPoint], num_nodes: int) -> Iterator[Cost]:
    """Yield every cost that some point holds, at a number of nodes."""
    for key, known in KEYS.items():
        having = [point for point in points if getattr(point, known.name) is not None]
        if having:
            yield _cost_at(key, known.name, having, num_nodes)


def _cost_at(key: str, name: str, points: Sequence[NodesPoint], num_nodes: int) -> Cost:
    below = [point for point in points if point.nodes <= num_nodes] or [points[0]]
    above = [point for point in points if point.nodes >= num_nodes] or [points[-1]]
    low, high = below[-1], above[0]
    widths = [_widths(point, key) for point in (low, high)]
    if low is high:
        return Cost(key, getattr(low, name), _interval(_walked(widths[0], _doublings(low.nodes, num_nodes))))
    part = math.log(num_nodes / low.nodes) / math.log(high.nodes / low.nodes)
    between = tuple((1 - part) * at_low + part * at_high for at_low, at_high in zip(*widths, strict=True))
    return Cost(key, _between(getattr(low, name), getattr(high, name), part), _interval((between[0], between[1])))


def _doublings(measured: int, num_nodes: int) -> float:
    return abs(math.log2(num_nodes / measured))


def _widths(point: NodesPoint, key: str) -> tuple[float, float]:
    """Return how far an interval reaches below and above its value, as logarithms."""
    low, high = point.intervals.get(key, (1.0, 1.0))
    return -math.log(low), math.log(high)


def _walked(widths: tuple[float, float], doublings: float) -> tuple[float, float]:
    """Widen by a random walk: the variances of the point and of each doubling add up."""
    step = math.log(DOUBLING_FACTOR) ** 2 * doublings
    return math.sqrt(widths[0] ** 2 + step), math.sqrt(widths[1] ** 2 + step)


def widened(interval: tuple[float, float], points: Sequence[NodesPoint], num_nodes: int) -> tuple[float, float]:
    """Return the interval of a cost that was measured on the nodes of these points: wider on more nodes."""
    widths = -math.log(interval[0]), math.log(interval[1])
    return _interval(_walked(widths, math.log2(max(num_nodes / points[-1].nodes, 1.0)))) or interval


def _interval(widths: tuple[float, float]) -> tuple[float, float] | None:
    if not any(widths):
        return None
    # A walk over many doublings may grow beyond what a file takes.
    return max(math.exp(-widths[0]), 1 / MAX_SPREAD), min(math.exp(widths[1]), MAX_SPREAD)


def _between(low: object, high: object, part: float) -> object:
    if isinstance(low, tuple) or isinstance(high, tuple):
        sizes = sorted({float(size) for curve in (low, high) if isinstance(curve, tuple) for size, _ in curve})
        return tuple((Size(size), _mixed(fraction_at(low, size), fraction_at(high, size), part)) for size in sizes)
    assert isinstance(low, float | int)
    assert isinstance(high, float | int)
    mixed = _mixed(float(low), float(high), part)
    return Duration(mixed) if isinstance(low, Duration) else mixed


def _mixed(low: float, high: float, part: float) -> float:
    # Costs may be 0, which has no logarithm.
    if low <= 0 or high <= 0:
        return (1 - part) * low + part * high
    return math.exp((1 - part) * math.log(low) + part * math.log(high))


def fraction_at(efficiency: object, size: float) -> float:
    """Return an efficiency, one number or a curve, at a size of a send."""
    return interpolate(efficiency, size) if isinstance(efficiency, tuple) else float(efficiency)  # type: ignore[arg-type]


def interpolate(curve: Sequence[tuple[float, float]], size: float) -> float:
    """Return a curve's value at a size, evenly over the logarithm between its points and constant outside."""
    above = bisect_right(curve, size, key=lambda point: point[0])
    if above == 0 or above == len(curve):
        return curve[min(above, len(curve) - 1)][1]
    (low, at_low), (high, at_high) = curve[above - 1], curve[above]
    part = math.log(size / low) / math.log(high / low)
    return at_low + part * (at_high - at_low)

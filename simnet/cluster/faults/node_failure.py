"""Nodes that fail: what stops, the work since the last checkpoint and restarts cost, and which part of a day trains.

Failures are a Poisson process of all nodes together. The mean is Daly's ("A higher order estimate of the optimum
checkpoint interval for restart dumps", FGCS 22(3), 2006, equation 20); the spread comes from simulated days.
"""

import math
from typing import ClassVar

from msgspec import Struct

from simnet.cluster.hardware import FAULTS, Cluster, Fault
from simnet.core.units import Duration

DAY_S = 86_400.0
_DAYS, _MOST_INTERVALS = 400, 2_000_000
_LARGEST_EXPONENT = 700.0


@FAULTS.register
class NodeFailure(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="node_failure"):
    """Nodes that fail now and then, after which the training goes on from its last checkpoint.

    It slows no iteration down: the result says which part of a day trains (`availability`).

    Attributes:
        mean_time_between: of one node, exponentially distributed; any node stops the cluster.
        checkpoint_every: training time between checkpoints; by default Young and Daly's best.
        checkpoint: what writing one takes, while training waits.
        restart: from the failure until training goes on.
    """

    title: ClassVar[str] = "failing nodes"

    mean_time_between: Duration
    checkpoint_every: Duration | None = None
    checkpoint: Duration
    restart: Duration

    def __post_init__(self) -> None:
        if self.mean_time_between < 1:
            raise ValueError(f"mean_time_between: {self.mean_time_between.text()!r}: must be at least 1 s")
        if self.checkpoint_every is not None and self.checkpoint_every <= 0:
            raise ValueError(f"checkpoint_every: {self.checkpoint_every.text()!r}: must be above 0 s")
        if self.checkpoint_every is None and self.checkpoint <= 0:
            raise ValueError(f"checkpoint: {self.checkpoint.text()!r}: must be above 0 s, or give checkpoint_every")

    def check(self, cluster: Cluster) -> None:
        """Refuse a second one.

        Raises:
            ValueError: there is one.
        """
        if sum(isinstance(fault, NodeFailure) for fault in cluster.faults) > 1:
            raise ValueError("node_failure: is named twice; give the mean time of all causes together once")

    @property
    def nodes(self) -> tuple[int, ...]:
        """No link and no kernel is slower."""
        return ()

    def availability(self, num_nodes: int, seed: int) -> "Availability":
        """Return which part of a day trains on so many nodes, its spread over days drawn from a seed."""
        between_s = self.mean_time_between / num_nodes
        best_s = best_interval_s(between_s, self.checkpoint)
        every_s = float(self.checkpoint_every or best_s)
        low, high = _of_days(between_s, every_s, self, seed)
        return Availability(
            stops_per_day=DAY_S / between_s,
            checkpoint_every_s=every_s,
            fraction=mean_fraction(between_s, every_s, self.checkpoint, self.restart),
            low=low,
            high=high,
            best_every_s=best_s or None,
            best_fraction=mean_fraction(between_s, best_s, self.checkpoint, self.restart) if best_s else None,
        )


class Availability(Struct, frozen=True, kw_only=True, gc=False):
    """Which part of a day trains where nodes fail.

    Attributes:
        stops_per_day: how often the cluster stops.
        checkpoint_every_s: training time between checkpoints.
        fraction: mean part of the time that trains.
        low: 5th percentile of that part over simulated days.
        high: 95th percentile.
        best_every_s: the time between checkpoints that loses least, by Daly's estimate; null if writing takes none.
        best_fraction: the mean part there.
    """

    stops_per_day: float
    checkpoint_every_s: float
    fraction: float
    low: float
    high: float
    best_every_s: float | None = None
    best_fraction: float | None = None


def best_interval_s(between_s: float, checkpoint_s: float) -> float:
    """Return the training time between checkpoints that loses least [s], by Daly's higher-order estimate (his eq. 37).

    Args:
        between_s: mean time from one stop to the next [s].
        checkpoint_s: what writing one takes [s].

    Example:
        >>> round(best_interval_s(24 * 3600, 60))  # Young (1974): sqrt(2 x 60 x 86,400) = 3,220 s
        3180
    """
    # Daly's series holds below this; beyond it he takes the time between failures itself.
    if checkpoint_s >= 2 * between_s:
        return between_s
    ratio = math.sqrt(checkpoint_s / (2 * between_s))
    return math.sqrt(2 * checkpoint_s * between_s) * (1 + ratio / 3 + ratio**2 / 9) - checkpoint_s


def mean_fraction(between_s: float, every_s: float, checkpoint_s: float, restart_s: float) -> float:
    """Return the mean part of the time that trains, by Daly's complete model.

    Args:
        between_s: mean time from one stop to the next [s].
        every_s: training time between two checkpoints [s].
        checkpoint_s: what writing one takes [s].
        restart_s: from a stop until training goes on [s].
    """
    exponent = (every_s + checkpoint_s) / between_s
    if exponent + restart_s / between_s > _LARGEST_EXPONENT:
        return 0.0
    return every_s / (between_s * math.exp(restart_s / between_s) * math.expm1(exponent))


def _of_days(between_s: float, every_s: float, failure: NodeFailure, seed: int) -> tuple[float, float]:
    """Return the 5th and the 95th percentile of the part that trains, over simulated days."""
    import numpy as np

    stops = DAY_S / between_s
    # Six standard deviations above the mean of a Poisson process: no day runs out of draws.
    number = min(int(stops + 6 * math.sqrt(stops) + 20), _MOST_INTERVALS)
    days = max(min(_DAYS, _MOST_INTERVALS // number), 1)
    draws = np.random.Generator(np.random.Philox(key=np.array([seed, 2**32], dtype=np.uint64)))
    intervals = draws.exponential(between_s, (days, number))
    ends = np.minimum(np.cumsum(intervals, axis=1), DAY_S)
    lasted = np.diff(ends, axis=1, prepend=0.0)
    # A stop within a restart only makes the cluster restart again.
    lasted[:, 1:] = np.maximum(lasted[:, 1:] - float(failure.restart), 0.0)
    cycles = np.floor(lasted / (every_s + failure.checkpoint))
    trained = cycles * every_s
    # Work since the last checkpoint is lost at a stop, but not at the end of the day.
    open_s = np.minimum(lasted - cycles * (every_s + failure.checkpoint), every_s)
    trained += np.where((ends >= DAY_S) & (lasted > 0), open_s, 0.0)
    # Where stops are too many to be drawn for a whole day, its beginning stands for it.
    low, high = np.percentile(trained.sum(axis=1) / ends[:, -1], [5, 95])
    return float(low), float(high)

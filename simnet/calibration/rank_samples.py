"""The times of every rank in every step of a run, in one form whatever they were read from."""

import math
from dataclasses import dataclass

import numpy as np

from simnet.calibration.fitted_part import Floats
from simnet.core.bounded_types import MAX_SPREAD
from simnet.core.errors import SimnetError

SIGNIFICANCE = 0.1
"""Of all ranks together: the intervals of their medians all hold with a probability of 90 % at least."""


@dataclass(frozen=True, kw_only=True)
class MetCollective:
    """One collective of one step, as its ranks met there.

    Attributes:
        ranks: that took part.
        last: the one that came last.
        waits_s: how long each of them waited for that one, in their order [s].
    """

    ranks: tuple[int, ...]
    last: int
    waits_s: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class RankSamples:
    """The times of all ranks of a run; a row is a rank, a column a step.

    Attributes:
        where: the files, as messages call them.
        ranks_per_node: ranks of each node.
        compute_s: what a rank computed in a step [s].
        own_s: the same with the time in which a rank stood still, but not for others [s].
        collectives: at which ranks met; none where they waited for nobody.
        notes: sentences for people.
    """

    where: str
    ranks_per_node: int
    compute_s: Floats
    own_s: Floats
    collectives: tuple[MetCollective, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def num_ranks(self) -> int:
        """Ranks of all nodes."""
        return len(self.compute_s)

    @property
    def num_steps(self) -> int:
        """Steps of each rank."""
        return len(self.compute_s[0])

    @property
    def came_last(self) -> Floats | None:
        """Part of the collectives of each rank at which it came last; None where there are none."""
        if not self.collectives:
            return None
        took_part, last = np.zeros(self.num_ranks), np.zeros(self.num_ranks)
        for one in self.collectives:
            took_part[list(one.ranks)] += 1
            last[one.last] += max(one.waits_s) > 0
        return last / np.maximum(took_part, 1)

    @property
    def held_s(self) -> Floats | None:
        """By how long each rank held up the typical rank of its groups in a mean step; None as `came_last` [s]."""
        if not self.collectives:
            return None
        held_s = np.zeros(self.num_ranks)
        for one in self.collectives:
            held_s[one.last] += float(np.median(one.waits_s))
        return held_s / self.num_steps


def met(ranks: tuple[int, ...], waits_s: Floats, last: int | None = None) -> MetCollective:
    """Return a collective by how long each of its ranks was in it beyond the one that came last.

    Args:
        ranks: that took part.
        waits_s: of each of them.
        last: place of the one that came last, if it is not the one that waited least.
    """
    at = int(waits_s.argmin()) if last is None else last
    return MetCollective(ranks=ranks, last=ranks[at], waits_s=tuple(waits_s.tolist()))


def check_enough(samples: RankSamples) -> None:
    """Refuse one rank alone, and so few steps that no median has an interval.

    Raises:
        SimnetError: there is one, or there are too few.
    """
    if samples.num_ranks < 2:
        raise SimnetError(
            f"{samples.where}: one rank only: a slow rank shows in comparison with others; give the files of all ranks"
        )
    least = least_steps(samples.num_ranks)
    if samples.num_steps < least:
        raise SimnetError(
            f"{samples.where}: {samples.num_steps} steps of {samples.num_ranks} ranks: must be at least {least}, since "
            "fewer have no interval of the median; measure more steps"
        )


def least_steps(num_ranks: int) -> int:
    """Return the steps from which on the medians of so many ranks have intervals that hold together.

    Example:
        >>> least_steps(2), least_steps(8), least_steps(1024)
        (6, 8, 15)
    """
    return math.ceil(math.log2(2 * num_ranks / SIGNIFICANCE))


def interval_of_median(times_s: Floats, num_ranks: int) -> tuple[float, float]:
    """Return an interval of the median, free of any distribution: two of the times, chosen by their order.

    Args:
        times_s: of one rank; fewer than `least_steps(num_ranks)` have an interval that says nothing.
        num_ranks: whose intervals shall hold together.

    Source: the number of times below the median is binomial with probability 1/2 (David and Nagaraja, "Order
        Statistics", 2003, chapter 7.1); the level is divided by the number of ranks (Bonferroni).

    Example:
        >>> interval_of_median(np.arange(1.0, 101.0), 1)
        (42.0, 59.0)
    """
    from scipy.stats import binom

    count, level = len(times_s), SIGNIFICANCE / num_ranks / 2
    left_out = int(binom.ppf(level, count, 0.5))
    if binom.cdf(left_out, count, 0.5) > level:
        left_out -= 1
    ordered = np.sort(times_s)
    if left_out < 0:
        return float(ordered[0]) / MAX_SPREAD, float(ordered[-1]) * MAX_SPREAD
    return float(ordered[left_out]), float(ordered[count - 1 - left_out])

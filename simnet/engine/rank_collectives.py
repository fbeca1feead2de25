"""Collectives as ranks meet at them on the grouped executor: who waits for whom, and when each rank is done."""

import math
from bisect import bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from simnet.cluster.schedule import Group, Schedule
from simnet.cluster.topology import Topology, without_faults
from simnet.collectives import link_loads
from simnet.collectives.pipelines import rails_per_node
from simnet.engine import folded_runner
from simnet.engine.bucket_recurrence import CollectiveBesideCompute
from simnet.engine.rank_times import group_order, rank_times
from simnet.strategies.program import Communicate

if TYPE_CHECKING:
    from simnet.core.bounded_types import BoolArray, FloatArray, IntArray


_SAME_TIME = 1e-12
_MOST_CHANGES = 10_000
"""That are gone through to come to a time."""


class Changes:
    """The times at which links change, found as they are asked for."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._found = [0.0, topology.next_change_s(0.0)]

    def around(self, time_s: float) -> tuple[float, float]:
        """Return a time since which links are as at a time, such as the last change, and the next change [s]."""
        for _ in range(_MOST_CHANGES):
            if self._found[-1] > time_s:
                break
            self._found.append(self._topology.next_change_s(self._found[-1]))
        else:  # a long pause amid quick changes
            self._found = [time_s, self._topology.next_change_s(time_s)]
        place = bisect_right(self._found, time_s)
        if not place:
            return time_s, self._topology.next_change_s(time_s)
        return self._found[place - 1], self._found[place]


class CollectiveTimes:
    """What one collective of the program takes in one iteration, from when its groups begin.

    Attributes:
        operation: the collective.
    """

    def __init__(self, operation: Communicate, topology: Topology, changes: Changes, stretch: float) -> None:
        """Take the links, when they change, and a factor on the time of the collective."""
        self.operation = operation
        self._topology = topology
        self._changes = changes
        self._stretch = stretch
        self._begun_s = math.inf, -math.inf  # when the first group began, and when the last one did
        # By how much it may be off, by what makes it so: counted once, in however many parts its groups begin.
        self._off_s: dict[tuple[str, float], float] = {}

    @property
    def off_s(self) -> float:
        """By how much its times may be off [s]."""
        schedule, off_s = self.operation.schedule, sum(self._off_s.values())
        apart_s = max(self._begun_s[1] - self._begun_s[0], 0.0)
        if not apart_s or not _shares_nics(schedule.group, self._topology):
            return off_s
        # A group that begins before others on its links has more of them than is counted here. From then on its rounds
        # have theirs while those of the others are in latency, of each of them once.
        rounds = 0 if any(one.at_once for one in schedule.rounds) else schedule.num_rounds
        others = max(rails_per_node(schedule.group) - 1, 1)
        hidden_s = min(rounds * others * apart_s, link_loads.lower_bound_s(without_faults(self._topology), schedule))
        return off_s + apart_s + hidden_s

    def ends_s(
        self, groups: "IntArray", starts_s: "FloatArray", computing_s: "FloatArray | None" = None
    ) -> "FloatArray":
        """Return when each rank of groups is done, links followed from one change to the next [s].

        Args:
            groups: ranks, a group a row.
            starts_s: when each group begins [s].
            computing_s: for how long the GPU of each rank goes on to compute [s]; None where links do not mind.
        """
        first_s, last_s = float(starts_s.min()), float(starts_s.max())
        self._begun_s = min(self._begun_s[0], first_s), max(self._begun_s[1], last_s)
        slowed = 1.0 if computing_s is None else self._slowed_by_compute(groups, computing_s)
        since_s, until_s = self._changes.around(first_s)
        ends_s = starts_s[:, None] + self._taken_s(groups, since_s) * slowed
        if until_s == math.inf or ends_s.max() <= until_s:
            return np.asarray(np.broadcast_to(ends_s, groups.shape))
        return self._across_changes(groups, starts_s, slowed)

    def _across_changes(self, groups: "IntArray", starts_s: "FloatArray", slowed: "FloatArray | float") -> "FloatArray":
        now = np.broadcast_to(starts_s[:, None], groups.shape).copy()
        left = np.ones(groups.shape)
        since_s, until_s = self._changes.around(float(starts_s.min()))
        while True:
            is_here = (now < until_s) & (left > 0)
            if is_here.any():
                taken_s = np.broadcast_to(self._taken_s(groups, since_s) * slowed, groups.shape)
                ends_s = now + left * taken_s
                over = is_here & (ends_s <= until_s)
                now[over], left[over] = ends_s[over], 0.0
                crossing = is_here & ~over
                if crossing.any():
                    left[crossing] -= (until_s - now[crossing]) / taken_s[crossing]
                    now[crossing] = until_s
                    self._note_error(("a link changes", until_s), self._of_a_round_s(float(taken_s.max())))
                if not (left > 0).any():
                    return now
            since_s, until_s = self._changes.around(until_s)

    def _taken_s(self, groups: "IntArray", since_s: float) -> "FloatArray | float":
        """Return what it takes on links as they are since a time, of each rank or of all [s]."""
        operation = self.operation
        seconds, off_s = rank_times(self._topology, operation.schedule, operation.message_bytes, since_s)
        if off_s:
            self._note_error(("links are uneven", since_s), self._stretch * off_s)
        return self._stretch * (seconds if isinstance(seconds, float) else seconds[groups])

    def _note_error(self, why: tuple[str, float], by_s: float) -> None:
        self._off_s[why] = max(self._off_s.get(why, 0.0), by_s)

    def _of_a_round_s(self, taken_s: float) -> float:
        """Return how long the part takes that a change of a link may catch anywhere: a round, and all latencies."""
        schedule = self.operation.schedule
        rounds = 1 if any(one.at_once for one in schedule.rounds) else max(schedule.num_rounds, 1)
        latencies_s = link_loads.lower_bound_s(without_faults(self._topology), schedule)
        return latencies_s + (taken_s / rounds if rounds > 1 else 0.0)

    def _slowed_by_compute(self, groups: "IntArray", computing_s: "FloatArray") -> "FloatArray":
        """Return how many times as long each group takes since its GPUs compute meanwhile, which slows their links."""
        usual = without_faults(self._topology)
        cost = _overlapped(usual, self.operation.schedule, self.operation.message_bytes)
        alone_s = cost.seconds(0.0)
        first, last = (cost.seconds(float(computing_s[groups].min())), cost.seconds(float(computing_s[groups].max())))
        self._note_error(("compute slows links", 0.0), last - first)
        slowest = computing_s[groups].max(axis=1)
        return np.array([[cost.seconds(float(one)) / alone_s] for one in slowest])


class Meeting:
    """The ranks that arrive at one collective of the program in one iteration.

    Attributes:
        times: of the collective.
        waiting: ranks that have arrived and whose group has not begun.
    """

    def __init__(self, times: CollectiveTimes, world_size: int) -> None:
        self.times = times
        self._arrivals_s = np.full(world_size, math.inf)
        self.waiting: BoolArray = np.zeros(world_size, dtype=bool)
        self._order = group_order(times.operation.schedule.group)
        self._num_begun = 0

    def arrive(self, ranks: "BoolArray", now_s: "FloatArray") -> None:
        """Take note that ranks have arrived."""
        self._arrivals_s[ranks] = now_s[ranks]
        self.waiting |= ranks

    def complete_groups(self) -> "IntArray":
        """Return the ranks of every group whose last one has arrived, a group a row; all of them wait no more."""
        number = np.count_nonzero(self.waiting)
        if number < self._order.shape[1]:
            return self._order[:0]
        complete = self.waiting[self._order].all(axis=1)
        found = self._order[complete]
        self.waiting[found] = False
        self._num_begun += len(found)
        return found

    @property
    def is_over(self) -> bool:
        """Tell whether every group has begun."""
        return self._num_begun == len(self._order)

    def arrivals_s(self, groups: "IntArray") -> "FloatArray":
        """Return when each rank of some groups arrived [s]."""
        return self._arrivals_s[groups]

    def earliest_starts_s(self, at_least_s: "FloatArray") -> "FloatArray":
        """Return for each rank a time before which its group cannot begin.

        Args:
            at_least_s: a time before which no rank that has not arrived does [s].
        """
        bounds = np.where(np.isfinite(self._arrivals_s), self._arrivals_s, at_least_s)
        found = np.empty(len(bounds))
        found[self._order] = bounds[self._order].max(axis=1)[:, None]
        return found


def latecomers(groups: "IntArray", arrivals_s: "FloatArray", met_s: "FloatArray") -> "tuple[IntArray, FloatArray]":
    """Return the ranks that came last and had others wait, and for how long that was their own doing [s].

    It is by how much longer than the typical rank of its group the last one took since its last collective. What that
    one has left it late by, as a ring leaves some of its ranks, or a rank of another group for which it had to wait, is
    not its own.

    Args:
        groups: ranks, a group a row.
        arrivals_s: when each of them arrived [s].
        met_s: when the last collective of each of them had ended [s].
    """
    last_s = arrivals_s.max(axis=1)
    if not np.count_nonzero(last_s - arrivals_s.min(axis=1) > _SAME_TIME * last_s):
        return groups[:0, 0], last_s[:0]
    rows, latest = np.arange(len(groups)), arrivals_s.argmax(axis=1)
    own_s = last_s - _medians(arrivals_s)
    # Most collectives leave all of their ranks at once.
    are_apart = met_s != met_s[:, :1]
    if np.count_nonzero(are_apart):
        apart = np.flatnonzero(are_apart.any(axis=1))
        own_s[apart] -= np.maximum(met_s[apart, latest[apart]] - _medians(met_s[apart]), 0.0)
    is_late = own_s > _SAME_TIME * last_s
    return groups[rows, latest][is_late], own_s[is_late]


def _medians(values: "FloatArray") -> "FloatArray":
    """Return the median of each row, as `np.median` in a third of its time."""
    size = values.shape[1]
    low, high = (size - 1) // 2, size // 2
    parted = np.partition(values, (low, high) if low < high else high, axis=1)
    return np.asarray((parted[:, low] + parted[:, high]) / 2)


@lru_cache(maxsize=4096)
def _overlapped(topology: Topology, schedule: Schedule, message_bytes: float) -> CollectiveBesideCompute:
    return CollectiveBesideCompute(
        link_loads.launch_s(topology, schedule),
        folded_runner.legs(topology, schedule, message_bytes),
        link_loads.host_s(topology, schedule, message_bytes),
    )


def _shares_nics(group: Group, topology: Topology) -> bool:
    """Tell whether groups side by side send over the same NICs or uplinks."""
    return group.nodes > 1 and (rails_per_node(group) > 1 or (topology.has_leaves and group.nodes < group.num_nodes))

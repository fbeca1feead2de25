"""Collectives as ranks meet at them on the grouped executor: who waits for whom, and when each rank is done."""

import math
from bisect import bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from simnet import folded_runner
from simnet.bucket_recurrence import CollectiveBesideCompute
from simnet.collectives import loads
from simnet.collectives.pipelines import rails_per_node
from simnet.collectives.rank_times import group_order, rank_times
from simnet.collectives.schedule import Group, Schedule
from simnet.collectives.uneven_links import without_faults
from simnet.network.topology import Topology
from simnet.program import Communicate

if TYPE_CHECKING:
    from simnet.values import BoolArray, FloatArray, IntArray


_SAME_TIME = 1e-12


class Changes:
    """The times at which links change, found as they are asked for."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._found = [0.0, topology.next_change_s(0.0)]

    def around(self, time_s: float) -> tuple[float, float]:
        """Return the last change up to a time, and the next one after it [s]."""
        while self._found[-1] <= time_s:
            self._found.append(self._topology.next_change_s(self._found[-1]))
        place = bisect_right(self._found, time_s)
        return self._found[place - 1], self._found[place]


class Meeting:
    """One collective of the program in one iteration.

    Attributes:
        operation: the collective.
        waiting: ranks that have arrived and whose group has not begun.
    """

    def __init__(self, operation: Communicate, topology: Topology, changes: Changes, stretch: float) -> None:
        self.operation = operation
        self._topology = topology
        self._changes = changes
        self._stretch = stretch
        self._arrivals_s = np.full(topology.world_size, math.inf)
        self.waiting: BoolArray = np.zeros(topology.world_size, dtype=bool)
        self._order = group_order(operation.schedule.group)
        self._starts_s: list[float] = []
        self._num_begun = 0
        self._off_s = 0.0

    @property
    def off_s(self) -> float:
        """By how much its times may be off [s]."""
        schedule = self.operation.schedule
        apart_s = max(self._starts_s) - min(self._starts_s) if self._starts_s else 0.0
        if not apart_s or not _shares_nics(schedule.group, self._topology):
            return self._off_s
        # A group that begins before others on its links has more of them than is counted here. From then on its rounds
        # have theirs while those of the others are in latency.
        rounds = 0 if any(one.at_once for one in schedule.rounds) else schedule.num_rounds
        hidden_s = min(rounds * apart_s, loads.lower_bound_s(without_faults(self._topology), schedule))
        return self._off_s + apart_s + hidden_s

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

    def ends_s(self, groups: "IntArray", starts_s: "FloatArray", computing_s: "FloatArray") -> "FloatArray":
        """Return when each rank of groups is done, links followed from one change to the next [s].

        Args:
            groups: ranks, a group a row.
            starts_s: when each group begins [s].
            computing_s: for how long the GPU of each rank goes on to compute [s].
        """
        self._starts_s += [float(starts_s.min()), float(starts_s.max())]
        now = np.broadcast_to(starts_s[:, None], groups.shape).copy()
        left = np.ones(groups.shape)
        slowed = self._slowed_by_compute(groups, computing_s)
        since_s, until_s = self._changes.around(float(starts_s.min()))
        while True:
            taken_s = self._taken_s(groups, since_s) * slowed
            ends_s = now + left * taken_s
            is_here = (now < until_s) & (left > 0)
            over = is_here & (ends_s <= until_s)
            now[over], left[over] = ends_s[over], 0.0
            crossing = is_here & ~over
            if crossing.any():
                left[crossing] -= (until_s - now[crossing]) / taken_s[crossing]
                now[crossing] = until_s
                self._off_s += self._of_a_round_s(float(taken_s.max()))
            if not (left > 0).any():
                return now
            since_s, until_s = self._changes.around(until_s)

    def _taken_s(self, groups: "IntArray", since_s: float) -> "FloatArray":
        operation = self.operation
        found = rank_times(self._topology, operation.schedule, operation.message_bytes, since_s)
        self._off_s += self._stretch * found.off_s
        of_ranks = np.broadcast_to(np.asarray(found.seconds), (self._topology.world_size,))
        return self._stretch * of_ranks[groups]

    def _of_a_round_s(self, taken_s: float) -> float:
        """Return how long the part takes that a change of a link may catch anywhere: a round, and all latencies."""
        schedule = self.operation.schedule
        rounds = 1 if any(one.at_once for one in schedule.rounds) else max(schedule.num_rounds, 1)
        latencies_s = loads.lower_bound_s(without_faults(self._topology), schedule)
        return latencies_s + (taken_s / rounds if rounds > 1 else 0.0)

    def _slowed_by_compute(self, groups: "IntArray", computing_s: "FloatArray") -> "FloatArray":
        """Return how many times as long each group takes since its GPUs compute meanwhile, which slows their links."""
        if not self._topology.compute_slows_links:
            return np.ones((len(groups), 1))
        usual = without_faults(self._topology)
        cost = _overlapped(usual, self.operation.schedule, self.operation.message_bytes)
        alone_s = cost.seconds(0.0)
        first, last = (cost.seconds(float(computing_s[groups].min())), cost.seconds(float(computing_s[groups].max())))
        self._off_s += last - first
        slowest = computing_s[groups].max(axis=1)
        return np.array([[cost.seconds(float(one)) / alone_s] for one in slowest])


def latecomers(groups: "IntArray", arrivals_s: "FloatArray") -> "tuple[IntArray, FloatArray]":
    """Return the ranks that came last and had others wait, and by how long they held up the typical one [s].

    Args:
        groups: ranks, a group a row.
        arrivals_s: when each of them arrived [s].
    """
    last_s = arrivals_s.max(axis=1)
    is_late = last_s - arrivals_s.min(axis=1) > _SAME_TIME * last_s
    latest = groups[np.arange(len(groups)), arrivals_s.argmax(axis=1)]
    return latest[is_late], (last_s - np.median(arrivals_s, axis=1))[is_late]


@lru_cache(maxsize=4096)
def _overlapped(topology: Topology, schedule: Schedule, message_bytes: float) -> CollectiveBesideCompute:
    return CollectiveBesideCompute(
        loads.launch_s(topology, schedule),
        folded_runner.legs(topology, schedule, message_bytes),
        loads.host_s(topology, schedule, message_bytes),
    )


def _shares_nics(group: Group, topology: Topology) -> bool:
    """Tell whether groups side by side send over the same NICs or uplinks."""
    return group.nodes > 1 and (rails_per_node(group) > 1 or (topology.has_leaves and group.nodes < group.num_nodes))

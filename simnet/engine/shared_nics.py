"""Rails that share the NICs of nodes and begin apart, followed together until the times of all of them stand.

A rail is one local rank of every node. As long as all rails of a collective begin together each has its part of a NIC
throughout; else one that begins early has more of it, and may be a collective ahead of another. What each rail takes
follows from when all begin, and when the next collectives begin follows from what each takes: a few passes over the
iteration come to a fixed point. Where NICs are alike a rail is followed as a whole, else send by send.
"""

import heapq
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simnet.cluster.schedule import Schedule
from simnet.cluster.topology import Topology, without_faults
from simnet.collectives import link_loads
from simnet.collectives.link_loads import rails_per_node
from simnet.engine.collective_times import MOST_SENDS, CollectiveTimes, num_sends
from simnet.engine.uneven_links import links_since
from simnet.strategies.program import OperationId

if TYPE_CHECKING:
    from simnet.core.bounded_types import FloatArray, IntArray

MOST_PASSES = 12
MOST_EVENTS = 200_000
"""Rounds of rails that are followed in one iteration: some tenths of a second a pass."""
STANDS = 1e-10
"""Relative to the end of the iteration: times that change by less between two passes stand."""
SURE = 1e-3
"""Part of the time in which rails began apart by which their ends may be off where they do not come to stand."""


class RailRound(NamedTuple):
    """A round of one rail.

    Attributes:
        latency_s: before its bytes move [s].
        transfer_s: by one rail that has the NICs for itself [s].
        flows: that a rank has on its NIC meanwhile: NICs give every flow as much as every other.
    """

    latency_s: float
    transfer_s: float
    flows: int


class _UnderWay(NamedTuple):
    """A collective over NICs in one pass: when the group of each rank begins, and the rank ends; nan before [s]."""

    times: CollectiveTimes
    starts_s: "FloatArray"
    ends_s: "FloatArray"

    @property
    def are_rails(self) -> bool:
        """Tell whether its groups are rails: one rank of each node in each, several of which share a NIC."""
        group = self.times.operation.schedule.group
        return group.members_per_node == 1 and group.ranks_per_node > 1

    @property
    def lasts_s(self) -> tuple[float, float]:
        """When the first of its groups begins, and its last rank ends [s]."""
        return float(self.starts_s.min()), float(self.ends_s.max())


class _Job(NamedTuple):
    """One or several rails that begin a collective together: when [s], how many, and its rounds."""

    start_s: float
    number: int
    rounds: tuple[RailRound, ...]


class SharedNics:
    """What collectives of one iteration take whose rails do not begin together.

    Attributes:
        taken_s: by each rank from the start of its group, by collective, of those that are followed [s].
        off_s: by how much the end of the iteration may be off for what was followed [s].
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._begun: dict[OperationId, _UnderWay] = {}
        self._passes = 0
        self._is_off = False
        self.taken_s: dict[OperationId, FloatArray] = {}
        self.off_s = 0.0

    def note(
        self,
        which: OperationId,
        times: CollectiveTimes,
        groups: "IntArray",
        starts_s: "FloatArray",
        ends_s: "FloatArray",
    ) -> None:
        """Take note of what this pass says of groups of a collective, a group a row."""
        if self._is_off or not times.can_be_followed:
            return
        if which not in self._begun:
            world = self._topology.world_size
            self._begun[which] = _UnderWay(times, np.full(world, np.nan), np.full(world, np.nan))
        self._begun[which].starts_s[groups], self._begun[which].ends_s[groups] = starts_s[:, None], ends_s

    def are_settled(self) -> bool:
        """Tell whether what rails take stands, from when they began in the last pass; else another pass is to come."""
        begun, self._begun = self._begun, {}
        rails = {which: collective for which, collective in begun.items() if collective.are_rails}
        apart_s = sum(float(np.ptp(rail.starts_s)) for rail in rails.values())
        if self._is_off or not apart_s:
            return True
        self._passes += 1
        mixed_s = _overlap_s(rails.values(), (collective for collective in begun.values() if not collective.are_rails))
        are_even = all(rail.times.are_even for rail in rails.values())
        taken_s = None if are_even and not mixed_s else self._send_by_send(begun)
        if taken_s is not None:
            mixed_s = 0.0
        elif are_even:
            taken_s = self._as_wholes(rails)
        if taken_s is None:  # taken to have their part of the NICs throughout, which says by how much it may be off
            self._is_off, self.taken_s, self.off_s = True, {}, 0.0
            return False
        moved_s = [
            float(np.abs(taken_s[which] - before).max()) for which, before in self.taken_s.items() if which in taken_s
        ]
        end_s = max(float((begun[which].starts_s + seconds).max()) for which, seconds in taken_s.items())
        stands = len(moved_s) == len(taken_s) and max(moved_s) <= STANDS * end_s
        self.taken_s, self.off_s = taken_s, mixed_s + (0.0 if stands else sum(moved_s) + SURE * apart_s)
        return stands or self._passes >= MOST_PASSES

    def _as_wholes(self, begun: dict[OperationId, _UnderWay]) -> "dict[OperationId, FloatArray] | None":
        """Return what each rail takes on NICs that are alike; None where they are too many."""
        usual = without_faults(self._topology)
        jobs: list[_Job] = []
        job_of_rank = {}
        for which, (times, starts_s, _) in begun.items():
            rounds, launch_s = tuple(_rounds(times, usual)), _launch_s(times, usual)
            begins, inverse, number = np.unique(np.round(starts_s, 14), return_inverse=True, return_counts=True)
            job_of_rank[which] = len(jobs) + inverse
            rails = number // usual.num_nodes  # each has a rank in every node
            jobs += [_Job(float(s) + launch_s, int(n), rounds) for s, n in zip(begins, rails, strict=True)]
        if sum(len(job.rounds) for job in jobs) > MOST_EVENTS:
            return None
        ends_s = np.array(_followed(jobs))
        return {
            which: np.maximum(ends_s[of] - begun[which].starts_s, _host_s(begun[which].times, usual))
            for which, of in job_of_rank.items()
        }

    def _send_by_send(self, begun: dict[OperationId, _UnderWay]) -> "dict[OperationId, FloatArray] | None":
        """Return what each rank takes on NICs that differ; None where its sends are too many."""
        if sum(num_sends(collective.times.operation.schedule) for collective in begun.values()) > MOST_SENDS:
            return None
        from simnet.engine import every_send

        operations = [collective.times.operation for collective in begun.values()]
        asked = [
            every_send.Begun(operation.schedule, operation.message_bytes, collective.starts_s, collective.times.stretch)
            for operation, collective in zip(operations, begun.values(), strict=True)
        ]
        ends_s = every_send.ends_s(links_since(self._topology, 0.0).frozen(), asked)
        return {which: ends - begun[which].starts_s for which, ends in zip(begun, ends_s, strict=True)}


def _overlap_s(some: Iterable[_UnderWay], others: Iterable[_UnderWay]) -> float:
    """Return for how long collectives are under way together with others, over all pairs of them [s]."""
    together_s, of_others = 0.0, [other.lasts_s for other in others]
    for collective in some:
        first_s, last_s = collective.lasts_s
        together_s += sum(max(min(last_s, end) * (1 - STANDS) - max(first_s, start), 0.0) for start, end in of_others)
    return together_s


def _rounds(times: CollectiveTimes, usual: Topology) -> Iterator[RailRound]:
    schedule, stretch = times.operation.schedule, times.stretch
    phases = link_loads.phases(usual, schedule, times.operation.message_bytes)
    loads = [load for (load,) in phases for _ in range(load.rounds)]
    before = None
    for load, flows in zip(loads, _flows(schedule), strict=True):
        alone_s = load.transfer_s(usual) / rails_per_node(schedule.group)
        latency_s = (load.latency_s - load.fill_s) / load.rounds + (0.0 if load is before else load.fill_s)
        yield RailRound(stretch * latency_s, stretch * alone_s / load.rounds, flows)
        before = load


def _launch_s(times: CollectiveTimes, usual: Topology) -> float:
    return times.stretch * link_loads.launch_s(usual, times.operation.schedule)


def _host_s(times: CollectiveTimes, usual: Topology) -> float:
    return times.stretch * link_loads.host_s(usual, times.operation.schedule, times.operation.message_bytes)


def _flows(schedule: Schedule) -> Iterator[int]:
    """Yield how many flows a rank has at a time in each round that it waits for."""
    for round_ in schedule.rounds:
        if round_.at_once:
            yield sum(len(round_.sends(schedule.group.first, index)) for index in range(round_.repeat))
        else:
            yield from (len(round_.sends(schedule.group.first, index)) for index in range(round_.repeat))


def _followed(jobs: list[_Job]) -> list[float]:
    """Return when each job is done: all flows that are under way at one time share the NICs equally."""
    waking = [(job.start_s + job.rounds[0].latency_s, number) for number, job in enumerate(jobs)]
    heapq.heapify(waking)
    at, done = [0] * len(jobs), [0.0] * len(jobs)
    # A transfer ends when the NICs have given one flow as much as it needs: all that run get equally much.
    ending: list[tuple[float, int]] = []
    served_s, sending, now = 0.0, 0, 0.0
    while waking or ending:
        end_s = now + (ending[0][0] - served_s) * sending if ending else math.inf
        if waking and waking[0][0] <= end_s:
            then, number = heapq.heappop(waking)
            served_s += (then - now) / sending if sending else 0.0
            now = then
            round_ = jobs[number].rounds[at[number]]
            heapq.heappush(ending, (served_s + round_.transfer_s / round_.flows, number))
            sending += jobs[number].number * round_.flows
            continue
        served_s, now = ending[0][0], end_s
        _, number = heapq.heappop(ending)
        sending -= jobs[number].number * jobs[number].rounds[at[number]].flows
        at[number] += 1
        if at[number] == len(jobs[number].rounds):
            done[number] = now
        else:
            heapq.heappush(waking, (now + jobs[number].rounds[at[number]].latency_s, number))
    return done

"""Rails that share the NICs of nodes and begin apart, followed together until the times of all of them stand.

A rail is one local rank of every node. As long as all rails of a collective begin together each has its part of a NIC
throughout; else one that begins early has more of it, and may be a collective ahead of another. What each rail takes
follows from when all begin, and when the next collectives begin follows from what each takes: a few passes over the
iteration come to a fixed point.
"""

import heapq
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simnet.cluster.topology import Topology, without_faults
from simnet.collectives import link_loads
from simnet.collectives.pipelines import rails_per_node
from simnet.engine.collective_times import CollectiveTimes
from simnet.strategies.program import OperationId

if TYPE_CHECKING:
    from simnet.core.bounded_types import FloatArray, IntArray

MOST_PASSES = 12
MOST_EVENTS = 200_000
"""Rounds of rails that are followed in one iteration: some tenths of a second a pass."""
STANDS = 1e-10
"""Relative to the end of the iteration: times that change by less between two passes stand."""
SURE = 1e-3
"""Part of the time in which rails began apart by which their ends may be off: four times the most that was seen in
random cases beside the exact executor."""
Rounds = tuple[tuple[float, float], ...]
"""Latency of each round, and its transfer by one rail that has the NICs for itself [s]."""


class _Rail(NamedTuple):
    """One or several rails that begin a collective together: when [s], how many, and its rounds."""

    start_s: float
    number: int
    rounds: Rounds


class SharedNics:
    """What rails of the collectives of one iteration take.

    Attributes:
        off_s: by how much the end of the iteration may be off for what was followed [s].
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._taken_s: dict[OperationId, FloatArray] = {}
        self._begun: dict[OperationId, tuple[FloatArray, Rounds, float]] = {}
        self._passes = 0
        self._is_off = False
        self.off_s = 0.0

    def ends_s(
        self, which: OperationId, times: CollectiveTimes, groups: "IntArray", starts_s: "FloatArray"
    ) -> "FloatArray | None":
        """Return when each rank of all rails is done [s]; None where they need not be followed, or cannot be."""
        if self._is_off or not times.are_even_rails(groups):
            return None
        if which not in self._taken_s and np.ptp(starts_s) <= STANDS * starts_s.max() and not self._begun:
            return None
        operation, usual = times.operation, without_faults(self._topology)
        schedule, size = operation.schedule, operation.message_bytes
        rails = rails_per_node(schedule.group)
        rounds = tuple(
            (load.latency_s / load.rounds, load.transfer_s(usual) / load.rounds / rails)
            for (load,) in link_loads.phases(usual, schedule, size)
            for _ in range(load.rounds)
        )
        launch_s, host_s = link_loads.launch_s(usual, schedule), link_loads.host_s(usual, schedule, size)
        self._begun[which] = starts_s, rounds, launch_s
        together_s = sum(latency_s + rails * transfer_s for latency_s, transfer_s in rounds)
        taken_s = self._taken_s.get(which, np.full(len(starts_s), together_s))
        ends_s = np.maximum(launch_s + taken_s, host_s) + starts_s
        return np.broadcast_to(ends_s[:, None], groups.shape)

    def are_settled(self) -> bool:
        """Tell whether what rails take stands, from when they began in the last pass; else another pass is to come."""
        begun, self._begun = self._begun, {}
        apart_s = sum(float(np.ptp(starts_s)) for starts_s, _, _ in begun.values())
        if self._is_off or not apart_s:
            return True
        self._passes += 1
        jobs: list[_Rail] = []
        of_rails = {}
        for which, (starts_s, rounds, launch_s) in begun.items():
            begins, inverse, number = np.unique(np.round(starts_s, 14), return_inverse=True, return_counts=True)
            of_rails[which] = len(jobs) + inverse
            jobs += [_Rail(float(s) + launch_s, int(n), rounds) for s, n in zip(begins, number, strict=True)]
        if sum(len(one.rounds) for one in jobs) > MOST_EVENTS:
            self._is_off = True  # taken to have their part of the NICs throughout, which says by how much it may be off
            return False
        ends_s = np.array(_followed(jobs))
        found = {w: ends_s[of] - begun[w][0] - begun[w][2] for w, of in of_rails.items()}
        known = [(found[w], self._taken_s[w]) for w in found if w in self._taken_s]
        moved_s = max((float(np.abs(new - old).max()) for new, old in known), default=math.inf)
        self._taken_s = found
        self.off_s = SURE * apart_s
        return len(known) == len(found) and (moved_s <= STANDS * ends_s.max() or self._passes >= MOST_PASSES)


def _followed(jobs: list[_Rail]) -> list[float]:
    """Return when each job is done: those that transfer at one time share the NICs equally."""
    waking = [(one.start_s + one.rounds[0][0], number) for number, one in enumerate(jobs)]
    heapq.heapify(waking)
    at, done = [0] * len(jobs), [0.0] * len(jobs)
    # A transfer ends when the NICs have given one rail as much as it needs: all that run get equally much.
    ending: list[tuple[float, int]] = []
    given_s, sending, now = 0.0, 0, 0.0
    while waking or ending:
        end_s = now + (ending[0][0] - given_s) * sending if ending else math.inf
        if waking and waking[0][0] <= end_s:
            then, number = heapq.heappop(waking)
            given_s += (then - now) / sending if sending else 0.0
            now = then
            heapq.heappush(ending, (given_s + jobs[number].rounds[at[number]][1], number))
            sending += jobs[number].number
            continue
        given_s, now = ending[0][0], end_s
        _, number = heapq.heappop(ending)
        sending -= jobs[number].number
        at[number] += 1
        if at[number] == len(jobs[number].rounds):
            done[number] = now
        else:
            heapq.heappush(waking, (now + jobs[number].rounds[at[number]][0], number))
    return done

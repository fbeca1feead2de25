"""A collective over links that are slower while the GPUs at their ends compute, as where copies need their memory.

Its legs are followed from one change of the GPU to the next (`SlowedCollective`), or at once where it is known for how
long the GPU goes on (`OverlappedCost.seconds`).
"""

from typing import NamedTuple

from simnet.cluster.schedule import Schedule
from simnet.cluster.topology import Topology
from simnet.collectives import link_loads
from simnet.collectives.link_loads import LevelLoad
from simnet.core.lanes import Number, UnlikeLanesError, largest, least

_NEVER = float("inf")


class Leg(NamedTuple):
    """One level of a phase, or a wait.

    Attributes:
        latency_s: time before its first byte [s].
        inflated_bytes: bytes on its most loaded link.
        rates: of that link while the GPU does not compute, and while it does [B/s].
    """

    latency_s: Number
    inflated_bytes: Number = 0.0
    rates: tuple[Number, Number] = (_NEVER, _NEVER)


class OverlappedCost(NamedTuple):
    """What a collective takes, once it is known how long the GPU computes meanwhile.

    Attributes:
        launch_s: before its first phase [s].
        phases: the legs of every phase, in order.
        host_s: CPU time of the whole [s].
    """

    launch_s: Number
    phases: tuple[tuple[Leg, ...], ...]
    host_s: Number

    def seconds(self, computing_s: Number) -> Number:
        """Return what it takes if the GPU computes for so long from its start on [s]."""
        now = self.launch_s
        for phase in self.phases:
            now = largest(*(_leg_end_s(leg, now + leg.latency_s, computing_s) for leg in phase))
        return largest(now, self.host_s)


def price(topology: Topology, schedule: Schedule, message_bytes: float) -> Number | OverlappedCost:
    """Return what a collective takes [s], or what tells it where it matters what the GPU does meanwhile.

    Raises:
        UnlikeLanesError: lanes in which another schedule may be the fastest, on links that the GPU slows.
    """
    if not topology.compute_slows_links:
        return link_loads.seconds(topology, schedule, message_bytes)
    if schedule.alternatives:
        raise UnlikeLanesError  # which of them is fastest depends on what the GPU does
    return pace(topology, schedule, message_bytes)


def pace(topology: Topology, schedule: Schedule, message_bytes: float) -> OverlappedCost:
    """Return what tells how long a collective takes."""
    return OverlappedCost(
        link_loads.launch_s(topology, schedule),
        tuple(
            tuple(_leg(topology, load) for load in phase)
            for phase in link_loads.phases(topology, schedule, message_bytes)
        ),
        link_loads.host_s(topology, schedule, message_bytes),
    )


def _leg(topology: Topology, load: LevelLoad) -> Leg:
    if not any(load.wire_bytes.values()):
        return Leg(load.latency_s)
    most = largest(*load.inflated_bytes.values())
    shares = {kind: size / most for kind, size in load.inflated_bytes.items() if load.wire_bytes[kind]}
    alone, beside = (
        least(*(topology.rate(kind, computing=computing) / share for kind, share in shares.items()))
        for computing in (False, True)
    )
    return Leg(load.latency_s, most, (alone, beside))


def _leg_end_s(leg: Leg, begin_s: Number, computing_s: Number) -> Number:
    alone, beside = leg.rates
    beside_s = largest(computing_s - begin_s, 0.0)
    left = largest(leg.inflated_bytes - beside_s * beside, 0.0) if alone is not _NEVER else 0.0
    return begin_s + least(beside_s, leg.inflated_bytes / beside) + left / alone


class SlowedCollective:
    """A running collective on one rank.

    Attributes:
        next_s: when its present phase ends if the GPU goes on as now [s].
    """

    def __init__(self, pace: OverlappedCost, start_s: float) -> None:
        self._phases = iter(pace.phases)
        self._until_s = start_s + pace.host_s
        self._computing = False
        self._updated_s = start_s
        self._left: list[float] = []
        self._begin((Leg(pace.launch_s),), start_s)

    def set_computing(self, now: float, *, is_computing: bool) -> None:
        """Take note whether the GPU computes from now on."""
        if is_computing == self._computing:
            return
        for number, (leg, left) in enumerate(zip(self._running, self._left, strict=True)):
            passed = max(now - max(self._updated_s, self._began_s + leg.latency_s), 0.0)
            self._left[number] = max(left - passed * leg.rates[self._computing], 0.0) if left else 0.0
        self._updated_s, self._computing = now, is_computing
        self._plan()

    def end_phase(self, now: float) -> bool:
        """Go on to the next phase; tell whether there is none and the CPU is done, too."""
        phase = next(self._phases, None)
        if phase is None and self._until_s <= now:
            return True
        self._begin((Leg(self._until_s - now),) if phase is None else phase, now)
        return False

    def _begin(self, phase: tuple[Leg, ...], now: float) -> None:
        self._running, self._began_s, self._updated_s = phase, now, now
        self._left = [leg.inflated_bytes for leg in phase]
        self._plan()

    def _plan(self) -> None:
        self.next_s = max(
            max(self._updated_s, self._began_s + leg.latency_s) + left / leg.rates[self._computing]
            for leg, left in zip(self._running, self._left, strict=True)
        )

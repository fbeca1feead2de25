"""A collective over links that others use, too, or that are slower while the GPUs at their ends compute.

Its legs are followed from one change to the next (`CollectivesUnderWay`), or at once where it is alone and known for
how long the GPU goes on (`OverlappedCost.seconds`).
"""

from collections.abc import Iterator
from typing import NamedTuple, get_args

from simnet.cluster.hardware import LinkKind
from simnet.cluster.schedule import Schedule
from simnet.cluster.topology import Topology
from simnet.collectives import link_loads
from simnet.collectives.link_loads import LevelLoad
from simnet.core.lanes import Number, largest, least

_NEVER = float("inf")
_ROUNDING = 1e-12
Rates = dict[LinkKind, tuple[Number, Number]]
"""Of each kind of link while the GPU does not compute, and while it does [B/s]."""


class Leg(NamedTuple):
    """One level of a phase, or a wait.

    Attributes:
        latency_s: time before its first byte [s].
        inflated_bytes: bytes on its most loaded link.
        rates: at which they go if the leg is alone, while the GPU does not compute, and while it does [B/s].
        shares: bytes on each kind of link, relative to the most loaded one.
    """

    latency_s: Number
    inflated_bytes: Number = 0.0
    rates: tuple[Number, Number] = (_NEVER, _NEVER)
    shares: tuple[tuple[LinkKind, Number], ...] = ()


class OverlappedCost(NamedTuple):
    """What a collective takes, once it is known what shares its links and how long the GPU computes meanwhile.

    Attributes:
        launch_s: before its first phase [s].
        phases: the legs of every phase, in order.
        host_s: CPU time of the whole [s].
        rates: of the links.
    """

    launch_s: Number
    phases: tuple[tuple[Leg, ...], ...]
    host_s: Number
    rates: Rates

    @property
    def latency_s(self) -> Number:
        """What passes before its bytes, of all phases [s]."""
        waits = [largest(*[leg.latency_s for leg in phase]) for phase in self.phases]
        return self.launch_s + sum(waits)

    def seconds(self, computing_s: Number) -> Number:
        """Return what it takes if the GPU computes for so long from its start on [s]."""
        now = self.launch_s
        for phase in self.phases:
            now = largest(*(_leg_end_s(leg, now + leg.latency_s, computing_s) for leg in phase))
        return largest(now, self.host_s)


def pace(topology: Topology, schedule: Schedule, message_bytes: float) -> OverlappedCost:
    """Return what tells how long a collective takes."""
    return OverlappedCost(
        link_loads.launch_s(topology, schedule),
        tuple(
            tuple(_leg(topology, load) for load in phase)
            for phase in link_loads.phases(topology, schedule, message_bytes)
        ),
        link_loads.host_s(topology, schedule, message_bytes),
        {kind: (topology.rate(kind), topology.rate(kind, computing=True)) for kind in get_args(LinkKind)},
    )


def _leg(topology: Topology, load: LevelLoad) -> Leg:
    if not any(load.wire_bytes.values()):
        return Leg(load.latency_s)
    # Links are filled in proportion: what the most loaded one has left tells what all have.
    most = largest(*load.inflated_bytes.values())
    shares = {kind: size / most for kind, size in load.inflated_bytes.items() if load.wire_bytes[kind]}
    alone, beside = (
        least(*(topology.rate(kind, computing=computing) / share for kind, share in shares.items()))
        for computing in (False, True)
    )
    return Leg(load.latency_s, most, (alone, beside), tuple(shares.items()))


def _leg_end_s(leg: Leg, begin_s: Number, computing_s: Number) -> Number:
    alone, beside = leg.rates
    # Until the GPU stops the slower rate holds, for what is left then the other.
    beside_s = largest(computing_s - begin_s, 0.0)
    left = largest(leg.inflated_bytes - beside_s * beside, 0.0) if alone is not _NEVER else 0.0
    return begin_s + least(beside_s, leg.inflated_bytes / beside) + left / alone


class _LegUnderWay:
    """A leg under way on one rank: when its bytes begin, what is left of them, at which rate, and when it ends."""

    __slots__ = ("begins_s", "ends_s", "left", "leg", "rate")

    def __init__(self, leg: Leg, now: float) -> None:
        self.leg, self.begins_s, self.left, self.rate = leg, now + leg.latency_s, leg.inflated_bytes, 0.0
        # A wait has no bytes: it ends when its latency has passed.
        self.ends_s = self.begins_s if self.left <= 0 else _NEVER


class _Run(NamedTuple):
    """A collective under way: its cost, phases to come, the flows of the present one, and when its CPU is done [s]."""

    cost: OverlappedCost
    phases: Iterator[tuple[Leg, ...]]
    flows: list[_LegUnderWay]
    until_s: float


class CollectivesUnderWay:
    """Collectives of one rank that share links with each other, or that the GPU slows.

    Every flow has a max-min fair rate, as on SimPy's clock (`simnet.engine.links`): rates of all rise together until a
    link is full.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self._runs: dict[int, _Run] = {}
        self._now = 0.0
        self._is_computing = False

    @property
    def streams(self) -> tuple[int, ...]:
        """Streams that have one."""
        return tuple(self._runs)

    def next_s(self) -> dict[int, float]:
        """Return when something next happens in each stream that has a collective [s]."""
        next_s = {}
        for stream, run in self._runs.items():
            ahead = [flow.ends_s if flow.begins_s <= self._now else flow.begins_s for flow in run.flows]
            next_s[stream] = min((then for then in ahead if then > self._now), default=self._now)
        return next_s

    def begin(self, stream: int, cost: OverlappedCost, now: float) -> None:
        """Begin a collective in a stream."""
        self._pass_until(now)
        phases = iter(cost.phases)
        flows = [_LegUnderWay(leg, now + cost.launch_s) for leg in next(phases, (Leg(0.0),))]
        self._runs[stream] = _Run(cost, phases, flows, now + cost.host_s)

    def set_computing(self, now: float, *, is_computing: bool) -> None:
        """Take note whether the GPU computes from now on, and of all collectives that have begun."""
        self._pass_until(now)
        self._is_computing = is_computing
        self._set_rates()

    def go(self, now: float) -> list[int]:
        """Go to a time; return the streams whose collectives have ended."""
        self._pass_until(now)
        ended = [stream for stream, run in self._runs.items() if not self._goes_on(run, now)]
        for stream in ended:
            del self._runs[stream]
        return ended

    def _goes_on(self, run: _Run, now: float) -> bool:
        """Take a collective to the phase that is under way; tell whether there is any."""
        # Phases without bytes or latency end at once, several of them at one time.
        while all(flow.ends_s <= now * (1 + _ROUNDING) for flow in run.flows):
            phase = next(run.phases, None)
            if phase is None:
                if run.until_s <= now * (1 + _ROUNDING):
                    return False
                phase = (Leg(run.until_s - now),)
            run.flows[:] = [_LegUnderWay(leg, now) for leg in phase]
        return True

    def _pass_until(self, now: float) -> None:
        for run in self._runs.values():
            for flow in run.flows:
                flow.left = max(flow.left - flow.rate * (now - self._now), 0.0)
        self._now = now

    def _set_rates(self) -> None:
        """Give every flow its rate, and the time of its end; one that ends at once leaves its part to the others."""
        while True:
            active = [
                (flow, run.cost.rates)
                for run in self._runs.values()
                for flow in run.flows
                if flow.begins_s <= self._now < flow.ends_s
            ]
            for flow, rate in _fair_rates(active, is_computing=self._is_computing):
                flow.rate, flow.ends_s = rate, self._now + flow.left / rate
            if all(flow.ends_s > self._now for flow, _ in active):
                return


def _fair_rates(active: list[tuple[_LegUnderWay, Rates]], *, is_computing: bool) -> list[tuple[_LegUnderWay, float]]:
    """Raise all rates equally until a link is full, fix the rates of its flows, and go on with the other flows."""
    # One flow has its links to itself.
    if len(active) == 1:
        ((flow, _),) = active
        return [(flow, flow.leg.rates[is_computing])]
    free = {kind: rates[kind][is_computing] for flow, rates in active for kind, _ in flow.leg.shares}
    waiting, rated = [flow for flow, _ in active], []
    while waiting:
        weight: dict[LinkKind, float] = {}
        for flow in waiting:
            for kind, share in flow.leg.shares:
                weight[kind] = weight.get(kind, 0.0) + share
        level = min(free[kind] / number for kind, number in weight.items())
        full = {kind for kind, number in weight.items() if free[kind] / number <= level * (1 + _ROUNDING)}
        fixed = [flow for flow in waiting if any(kind in full for kind, _ in flow.leg.shares)]
        waiting = [flow for flow in waiting if flow not in fixed]
        for flow in fixed:
            rated.append((flow, level))
            for kind, share in flow.leg.shares:
                free[kind] = max(free[kind] - level * share, 0.0)
    return rated

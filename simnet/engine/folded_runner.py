"""Run a program whose ranks are all alike in a plain loop, to the bits of `event_runner` on the folded executor.

One rank stands for all. No two collectives share a link: a collective takes a time that depends on its start only
through rounding, and only the kernels of one GPU are left to interleave. Sums and differences of times are taken in the
order in which the clock takes them: a time that differs in its last digit would change every stored result. Where links
are slower while the GPU computes, a collective is followed from one change to the next instead (`_SlowedCollective`),
and its times are those of the clock but for rounding; so they are where one stream communicates inside nodes while
another does between them.
"""

import heapq
from functools import lru_cache
from typing import NamedTuple

from simnet.cluster.hardware import LinkId
from simnet.cluster.schedule import Group, Schedule
from simnet.cluster.topology import Topology
from simnet.collectives import link_loads
from simnet.collectives.link_loads import LevelLoad
from simnet.engine.gpu_sharing import SharedGpu
from simnet.engine.result import Span
from simnet.engine.timeline import Streams, TimedOperation, Timeline, make_span, make_timeline
from simnet.strategies.program import Communicate, Compute, OperationId

_SAME_TIME = 1e-12
"""Relative: what ends so near each other ends together, as in `network.gpu` and `network.links`."""
_NEVER = float("inf")


class _LinksAreSharedError(Exception):
    """Two collectives that run at one time would share links."""


def run(streams: Streams, topology: Topology, comm_slowdown: float) -> Timeline | None:
    """Simulate one iteration of the rank that stands for all; arguments as `event_runner.run`.

    Returns:
        None where two collectives would share links, which only the clock can tell.
    """
    rank = _RepresentativeRank(streams, topology, comm_slowdown)
    try:
        rank.run()
    except _LinksAreSharedError:
        return None
    return make_timeline(rank.now, rank.gpu.busy_s, rank.spans)


class _RepresentativeRank:
    """The rank that stands for all, while it runs."""

    def __init__(self, streams: Streams, topology: Topology, comm_slowdown: float) -> None:
        self._streams = streams
        self._topology = topology
        self._ended = [0] * len(streams)  # number of ended operations of each stream
        self._began_s = [_NEVER] * len(streams)  # start of the running operation of each stream
        self._ends_s: dict[int, float] = {}  # end of the running collective of each stream that has one
        self._arrival: tuple[float, int] = (_NEVER, -1)  # the first of these ends, and its stream
        self._slowed: dict[int, _SlowedCollective] = {}  # the running collectives where the GPU slows their links
        self.gpu: SharedGpu[int] = SharedGpu(topology.compute_factor(0), comm_slowdown)
        self.spans: list[Span] = []
        self.now = 0.0

    def run(self) -> None:
        """Go from one end of an operation to the next until all is done."""
        self._start_all()
        while True:
            collective_end_s, stream = self._arrival
            wake_s = self.gpu.wake_s
            # At one instant a kernel ends before a transfer, whose events come after all others on the clock.
            if wake_s <= collective_end_s:
                if wake_s == _NEVER:
                    return
                self.now = wake_s
                for ended in self.gpu.end_first(wake_s):
                    self._end(ended)
            else:
                self.now = collective_end_s
                if stream in self._slowed and not self._slowed[stream].end_phase(collective_end_s):
                    self._arrives(stream, self._slowed[stream].next_s)
                    continue
                self._slowed.pop(stream, None)
                self._arrives(stream, None)
                self.gpu.communication_ends(collective_end_s)
                self._end(stream)
            self._start_all()

    def _start_all(self) -> None:
        """Start every operation that can start; an operation without duration ends at once and may release others."""
        moved, ended, began_s = True, self._ended, self._began_s
        while moved:
            moved = False
            for stream, operations in enumerate(self._streams):
                while began_s[stream] == _NEVER and ended[stream] < len(operations):
                    operation = operations[ended[stream]]
                    if operation.after and not self._have_ended(operation.after):
                        break
                    if not self._start(stream, operation):
                        break
                    moved = True
        for stream, slowed in self._slowed.items():
            slowed.set_computing(self.now, self.gpu.is_computing)
            self._arrives(stream, slowed.next_s)

    def _have_ended(self, operations: tuple[OperationId, ...]) -> bool:
        for stream, number in operations:  # noqa: SIM110 - `all` over a generator takes twice as long here
            if self._ended[stream] <= number:
                return False
        return True

    def _start(self, stream: int, operation: TimedOperation) -> bool:
        """Start an operation; tell whether it has ended already."""
        if isinstance(operation, Compute):
            if operation.seconds <= 0:
                self._ended[stream] += 1
                return True
            self._began_s[stream] = self.now
            self.gpu.start(self.now, operation.part, operation.seconds, stream)
            return False
        if not operation.schedule.rounds:
            self._ended[stream] += 1
            return True
        self._check_links(operation)
        self._began_s[stream] = self.now
        self.gpu.communication_starts(self.now)
        if self._topology.compute_slows_links:
            self._slowed[stream] = _SlowedCollective(self._topology, operation, self.now)
            self._arrives(stream, self._slowed[stream].next_s)
        else:
            end_s = collective_end_s(self._topology, operation.schedule, operation.message_bytes, self.now)
            self._arrives(stream, end_s)
        return False

    def _arrives(self, stream: int, end_s: float | None) -> None:
        """Note when the running collective of a stream ends; None when it has."""
        if end_s is None:
            del self._ends_s[stream]
        else:
            self._ends_s[stream] = end_s
        if len(self._ends_s) > 1:
            self._arrival = min((end_s, one) for one, end_s in self._ends_s.items())
        else:
            self._arrival = next(((end_s, one) for one, end_s in self._ends_s.items()), (_NEVER, -1))

    def _check_links(self, operation: Communicate) -> None:
        """Refuse a collective on links of one that runs.

        Raises:
            _LinksAreSharedError: it is one.
        """
        for stream in self._ends_s:
            running = self._streams[stream][self._ended[stream]]
            if isinstance(running, Communicate) and share_links(running.schedule.group, operation.schedule.group):
                raise _LinksAreSharedError

    def _end(self, stream: int) -> None:
        position, start_s = self._ended[stream], self._began_s[stream]
        operation = self._streams[stream][position]
        self._began_s[stream] = _NEVER
        self._ended[stream] += 1
        if self.now > start_s:
            self.spans.append(make_span(operation, OperationId(stream, position), start_s, self.now))


def share_links(one: Group, other: Group) -> bool:
    """Tell whether both send inside nodes, or both between them."""
    return (one.nodes > 1 < other.nodes) or (one.members_per_node > 1 < other.members_per_node)


class Leg(NamedTuple):
    """One level of a phase, or a wait.

    Attributes:
        latency_s: time before its first byte [s].
        inflated_bytes: bytes on its most loaded link.
        rates: of that link while the GPU does not compute, and while it does [B/s].
    """

    latency_s: float
    inflated_bytes: float = 0.0
    rates: tuple[float, float] = (_NEVER, _NEVER)


@lru_cache(maxsize=65_536)
def legs(topology: Topology, schedule: Schedule, message_bytes: float) -> tuple[tuple[Leg, ...], ...]:
    """Return the levels of every phase, in order."""
    phases = link_loads.phases(topology, schedule, message_bytes)
    return tuple(tuple(_leg(topology, load) for load in phase) for phase in phases)


def _leg(topology: Topology, load: LevelLoad) -> Leg:
    most = max(load.inflated_bytes.values(), default=0.0)
    if most <= 0:
        return Leg(load.latency_s)
    shares = {LinkId(kind, 0): size / most for kind, size in load.inflated_bytes.items() if size > 0}
    alone, beside = (
        min(topology.capacity(link, computing=computing) / share for link, share in shares.items())
        for computing in (0.0, 1.0)
    )
    return Leg(load.latency_s, most, (alone, beside))


class _SlowedCollective:
    """A running collective whose links are slower while the GPU computes.

    Attributes:
        next_s: when its present phase ends if the GPU goes on as now [s].
    """

    def __init__(self, topology: Topology, operation: Communicate, start_s: float) -> None:
        phases = legs(topology, operation.schedule, operation.message_bytes)
        self._phases = iter(phases)
        self._until_s = start_s + link_loads.host_s(topology, operation.schedule, operation.message_bytes)
        self._computing = False
        self._updated_s = start_s
        self._left: list[float] = []
        self._begin((Leg(link_loads.launch_s(topology, operation.schedule)),), start_s)

    def set_computing(self, now: float, is_computing: bool) -> None:
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


def collective_end_s(topology: Topology, schedule: Schedule, message_bytes: float, start_s: float) -> float:
    """Return when a collective that starts at `start_s` ends [s], on links that carry nothing else."""
    now = start_s
    host_s, phases = _phases(topology, schedule, message_bytes)
    now += link_loads.launch_s(topology, schedule)
    for phase in phases:
        if len(phase) == 1:
            latency_s, transfer_s = phase[0]
            now += latency_s
            if transfer_s is not None:
                # SimPy adds a delay to the current time: now + ((now + x) - now) is not always now + x in floats.
                end_s = now + transfer_s
                now += max(end_s - now, 0.0)
        else:
            now = _side_by_side(now, phase)
    until_s = start_s + host_s
    return now + (until_s - now) if until_s > now else now


_Times = tuple[float, float | None]
"""Seconds of latency, and of the transfer; None where there is nothing to transfer."""


@lru_cache(maxsize=65_536)
def _phases(
    topology: Topology, schedule: Schedule, message_bytes: float
) -> tuple[float, tuple[tuple[_Times, ...], ...]]:
    """Return the CPU time of the collective, and the times of every level of every phase, in order."""
    phases = link_loads.phases(topology, schedule, message_bytes)
    host_s = link_loads.host_s(topology, schedule, message_bytes)
    return host_s, tuple(tuple(_times(topology, load) for load in phase) for phase in phases)


def _times(topology: Topology, load: LevelLoad) -> _Times:
    # In the order of operations of `network.links` for a flow that is alone: another order may change the last digit.
    most = max(load.inflated_bytes.values())
    if most <= 0:
        return load.latency_s, None
    rate = min(topology.capacity(LinkId(kind, 0)) / (size / most) for kind, size in load.inflated_bytes.items() if size)
    return load.latency_s, most / rate


def _side_by_side(start_s: float, levels: tuple[_Times, ...]) -> float:
    """Return when the last of several levels ends; the levels share no link.

    The order of operations is that of `network.links`: the clock wakes at the next known end; when another flow ends
    first, the wake-up is planned anew from that time, which may change the last digit.
    """
    begins = sorted((start_s + latency_s, transfer_s) for latency_s, transfer_s in levels if transfer_s is not None)
    last_s = max((start_s + latency_s for latency_s, transfer_s in levels if transfer_s is None), default=start_s)
    ends: list[float] = []  # of the transfers that run
    calls: list[float] = []  # planned wake-ups of the clock
    wake_s = _NEVER
    while begins or ends:
        if begins and (not calls or begins[0][0] <= calls[0]):
            now, transfer_s = begins.pop(0)
            heapq.heappush(ends, now + transfer_s)
        else:
            now = heapq.heappop(calls)
            if now < wake_s * (1 - _SAME_TIME):
                continue
            wake_s = _NEVER
            while ends and ends[0] <= now * (1 + _SAME_TIME):
                heapq.heappop(ends)
                last_s = now
        if ends and ends[0] < wake_s:
            wake_s = ends[0]
            heapq.heappush(calls, now + max(wake_s - now, 0.0))
    return last_s

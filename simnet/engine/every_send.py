"""Collectives on SimPy's clock: every send is a flow of the network, and every rank goes through its own rounds."""

import math
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, get_args

import numpy as np
import simpy

from simnet.cluster.hardware import LinkId, LinkKind
from simnet.cluster.schedule import Round, Schedule, Send
from simnet.cluster.topology import Topology, around, touched
from simnet.collectives import link_loads
from simnet.collectives.link_loads import HopLatency
from simnet.engine.links import Network

if TYPE_CHECKING:
    from simnet.core.bounded_types import FloatArray

Steps = Generator[simpy.Event, object, tuple[float, float]]
Regular = Callable[[Topology, Schedule, float, float], tuple["FloatArray | float", float]]
"""What a collective takes each rank on links as they are since a time, and by how much that may be off [s]."""


class Exact:
    """Runs collectives for `num_ranks` ranks, which must all call them in the same order: all sends, all links."""

    def __init__(
        self,
        env: simpy.Environment,
        topology: Topology,
        on_round: Callable[[], None] | None = None,
        regular: Regular | None = None,
    ) -> None:
        """Take the clock and the links.

        Args:
            env: the clock.
            topology: the ranks and their links.
            on_round: called whenever rank 0 has finished a round.
            regular: what a collective takes whose rounds need no events (`rank_times`), which is right where no two
                collectives ever use the same links (`never_share_links`).
        """
        self._env = env
        self.topology = topology
        self._on_round = on_round
        self._regular = regular if not topology.compute_slows_links and topology.leaves_are_filled else None
        self.num_ranks = topology.world_size
        self.network = Network(env)
        for link in _all_links(topology):
            self.network.add_link(link, around(topology, link).capacity(link, env.now))
        if topology.next_change_s(env.now) < math.inf:
            env.process(self._change_links())
        self._calls: dict[Hashable, _Call] = {}
        self._changed_s = float(env.now)  # when a fault began or ended last
        self._is_computing = [False] * topology.world_size

    def _change_links(self) -> Generator[simpy.Event]:
        """Set the rate of every link anew when a fault begins or ends."""
        while (time_s := self.topology.next_change_s(self._changed_s)) < math.inf:
            yield self._env.timeout(time_s - self._env.now)
            self._changed_s = time_s
            for link in _changing_links(self.topology):
                self._set_rate(link)

    def compute_changes(self, rank: int, is_computing: bool) -> None:
        """Set the rates of the ports and NICs of a rank anew, whose GPU begins or stops to compute."""
        self._is_computing[rank] = is_computing
        node = rank // self.topology.ranks_per_node
        for link in (LinkId("port_tx", rank), LinkId("port_rx", rank), LinkId("nic_tx", node), LinkId("nic_rx", node)):
            self._set_rate(link)

    def _set_rate(self, link: LinkId) -> None:
        rate = around(self.topology, link).capacity(link, self._changed_s, self._computing_at(link))
        self.network.add_link(link, rate)

    def _computing_at(self, link: LinkId) -> float:
        """Return the part of the GPUs at a link that compute."""
        if link.kind in ("port_tx", "port_rx"):
            return float(self._is_computing[link.place])
        if link.kind in ("nic_tx", "nic_rx"):
            per_node = self.topology.ranks_per_node
            return sum(self._is_computing[link.place * per_node : (link.place + 1) * per_node]) / per_node
        return 0.0

    def run(
        self, rank: int, sequence: Hashable, schedule: Schedule, message_bytes: float, stretch: float = 1.0
    ) -> Steps:
        """Take part as `rank` in collective number `sequence`, which takes `stretch` times as long as usual.

        Returns:
            When the last rank of the group had arrived, and when this rank was done [s].
        """
        # The first rank to arrive opens it and the last to leave closes it, so that a long run holds those under way
        # alone.
        if sequence not in self._calls:
            self._calls[sequence] = _Call(self._env, self.topology, self.network, schedule, message_bytes, stretch)
        call = self._calls[sequence]
        yield call.arrive(rank)
        start_s = self._env.now
        taken_s = self._regular_s(schedule, message_bytes, stretch)
        if taken_s is not None:
            yield self._env.timeout(taken_s if isinstance(taken_s, float) else float(taken_s[rank]))
            # So that a bar advances as far as it would with events.
            for _ in range(schedule.num_rounds):
                self._tell_round(rank)
            self._leave(sequence, call)
            return start_s, self._env.now
        if launch_s := link_loads.launch_s(self.topology, schedule):
            yield self._env.timeout(launch_s * stretch)
        if schedule.protocol and schedule.rounds:
            yield call.pipeline(rank)
            self._tell_round(rank)
        for number, round_ in enumerate(() if schedule.protocol else schedule.rounds):
            # A rank waits for its own sends and receives alone: ranks drift apart as in NCCL, with no barrier a round.
            for indices in _batches(round_):
                yield call.exchange(rank, number, indices)
                self._tell_round(rank)
        self._leave(sequence, call)
        yield from _until(self._env, start_s + stretch * link_loads.host_s(self.topology, schedule, message_bytes))
        return start_s, self._env.now

    def _leave(self, sequence: Hashable, call: "_Call") -> None:
        call.ranks_left -= 1
        if not call.ranks_left:
            del self._calls[sequence]

    def _regular_s(self, schedule: Schedule, message_bytes: float, stretch: float) -> "FloatArray | float | None":
        """Return what a collective that starts now takes each rank, or all [s]; None where only its events tell."""
        if self._regular is None:
            return None
        seconds, off_s = self._regular(self.topology, schedule, message_bytes, self._changed_s)
        taken_s = seconds * stretch
        longest_s = taken_s if isinstance(taken_s, float) else float(taken_s.max())
        lasts = self._env.now + longest_s < self.topology.next_change_s(self._changed_s)
        return taken_s if lasts and not off_s else None

    def _tell_round(self, rank: int) -> None:
        if rank == 0 and self._on_round:
            self._on_round()


class Begun(NamedTuple):
    """A collective that all groups begin at times of their own.

    Attributes:
        schedule: of the collective.
        message_bytes: whole message of one group.
        starts_s: when the group of each rank begins [s].
        stretch: how many times as long as usual it takes.
    """

    schedule: Schedule
    message_bytes: float
    starts_s: "FloatArray"
    stretch: float = 1.0


def ends_s(topology: Topology, begun: Sequence[Begun], since_s: float = 0.0) -> "list[FloatArray]":
    """Return when each rank is done with each collective, all of which share the links, send by send [s].

    Args:
        topology: the ranks and their links.
        begun: collectives.
        since_s: when the clock begins: before any of them, so that faults of before are not gone through.
    """
    env = simpy.Environment(since_s)
    executor = Exact(env, topology)
    ends_s = [np.zeros(topology.world_size) for _ in begun]

    def goes(number: int, rank: int) -> Generator[simpy.Event]:
        schedule, message_bytes, starts_s, stretch = begun[number]
        yield from _until(env, float(starts_s[rank]))
        _, ends_s[number][rank] = yield from executor.run(rank, number, schedule, message_bytes, stretch)

    env.run(env.all_of([env.process(goes(*which)) for which in np.ndindex(len(begun), topology.world_size)]))
    return ends_s


class _RoundInFlight:
    """One repetition on all ranks, or all repetitions that are posted at once.

    Attributes:
        sends: what each rank sends.
        missing: sends and receives that each rank still waits for.
        done: the event of each rank that none is missing.
        ranks_left: ranks that have not posted yet.
    """

    __slots__ = ("done", "missing", "ranks_left", "sends")

    def __init__(self, env: simpy.Environment, sends: tuple[tuple[Send, ...], ...]) -> None:
        self.sends = sends
        self.missing = Counter(send.dst for posted in sends for send in posted)
        self.missing.update({rank: len(posted) for rank, posted in enumerate(sends)})
        self.done = [env.event() for _ in sends]
        self.ranks_left = len(sends)
        for rank, event in enumerate(self.done):
            if not self.missing[rank]:
                event.succeed()

    def one_done(self, rank: int) -> None:
        self.missing[rank] -= 1
        if not self.missing[rank]:
            self.done[rank].succeed()


class _Call:
    """One collective, shared by all its ranks."""

    def __init__(  # noqa: PLR0913, PLR0917 - what all ranks of the collective share
        self,
        env: simpy.Environment,
        topology: Topology,
        network: Network,
        schedule: Schedule,
        message_bytes: float,
        stretch: float,
    ) -> None:
        self._env = env
        self.topology = topology
        self._network = network
        self._schedule = schedule
        self._chunk_bytes = message_bytes / schedule.num_chunks
        self._stretch = stretch
        self._arrived: Counter[int] = Counter()
        self._complete: dict[int, simpy.Event] = {}
        self._exchanges: dict[tuple[int, int], _RoundInFlight] = {}
        self._pipelines: dict[int, simpy.Event] = {}
        self._hop_latencies: dict[int, HopLatency] = {}
        self.ranks_left = topology.world_size
        self._adds_latency = topology.adds_latency

    def arrive(self, rank: int) -> simpy.Event:
        """Return the event that every rank of this rank's group has arrived."""
        group = self._schedule.group.group_id(rank)
        event = self._complete.setdefault(group, self._env.event())
        self._arrived[group] += 1
        if self._arrived[group] == self._schedule.group.size:
            event.succeed()
        return event

    def pipeline(self, rank: int) -> simpy.Event:
        """Return the event that all rounds of this rank's group are done, as one flow over all its links.

        A pipeline goes on at the pace of its slowest link: one flow loads every link as all rounds together do.
        """
        group = self._schedule.group.group_id(rank)
        if group not in self._pipelines:
            self._pipelines[group] = self._env.process(self._flow(group))
        return self._pipelines[group]

    def _flow(self, group: int) -> Generator[simpy.Event]:
        schedule = self._schedule
        cost = link_loads.pipeline_cost(self.topology, schedule, self._chunk_bytes * schedule.num_chunks)
        ranks = [schedule.group.rank_at(group, position) for position in range(schedule.group.size)]
        chunks = link_loads.count_chunks(schedule, ranks, self.topology.nodes_per_leaf)
        added_s = [around(self.topology, link).added_latency_s((link,), self._env.now) for link in chunks]
        yield self._env.timeout(
            self._stretch * (cost.latency_s + link_loads.added_pipeline_latency_s(schedule, added_s))
        )
        yield self._network.transfer(
            {
                link: number * self._chunk_bytes * cost.inflation(link.kind) * self._stretch
                for link, number in chunks.items()
            }
        )

    def exchange(self, rank: int, number: int, indices: range) -> simpy.Event:
        """Post this rank's sends; return the event that they and what it receives here are done."""
        key = number, indices.start
        if key not in self._exchanges:
            self._exchanges[key] = self._open(self._schedule.rounds[number], indices)
        exchange = self._exchanges[key]
        exchange.ranks_left -= 1
        if not exchange.ranks_left:
            del self._exchanges[key]
        self._post(rank, exchange, number, is_first=not indices.start)
        return exchange.done[rank]

    def _open(self, round_: Round, indices: range) -> _RoundInFlight:
        ranks = range(self.topology.world_size)
        sends = tuple(tuple(s for index in indices for s in round_.sends(rank, index)) for rank in ranks)
        return _RoundInFlight(self._env, sends)

    def _post(self, rank: int, exchange: _RoundInFlight, number: int, *, is_first: bool) -> None:
        sends, round_ = exchange.sends[rank], self._schedule.rounds[number]
        posting_s = self.topology.posting_s(len(sends), at_once=round_.at_once)
        hops, together = self._hops(number), dict[float, list[Send]]()
        for send in sends:
            leaves_node = self.topology.level(rank, send.dst) is self.topology.inter_node
            latency_s = posting_s + (hops.inter_node if leaves_node else hops.intra_node)
            latency_s += hops.fill_s if is_first else 0.0
            if self._adds_latency:
                path = self.topology.path(rank, send.dst)
                latency_s += sum(around(self.topology, link).added_latency_s((link,), self._env.now) for link in path)
            together.setdefault(latency_s, []).append(send)
        # Sends of one latency start together; a rank posts all of them before any starts.
        for latency_s, same in together.items():
            start = self._env.timeout(latency_s * self._stretch)
            _then(start, partial(self._start, rank, same, exchange, round_))

    def _hops(self, number: int) -> HopLatency:
        if number not in self._hop_latencies:
            latency = link_loads.hop_latency(self.topology, self._schedule, number, self._chunk_bytes)
            self._hop_latencies[number] = latency
        return self._hop_latencies[number]

    def _start(self, rank: int, sends: list[Send], exchange: _RoundInFlight, round_: Round) -> None:
        for send in sends:
            level = self.topology.level(rank, send.dst)
            size = send.width * self._chunk_bytes
            inflated = size * self._stretch / link_loads.send_efficiency(self.topology, level, size, round_)
            # An inefficient send holds its links as long as more bytes at the nominal rate would.
            done = self._network.transfer(dict.fromkeys(self.topology.path(rank, send.dst), inflated))
            _then(done, partial(self._delivered, rank, send.dst, exchange))

    def _delivered(self, src: int, dst: int, exchange: _RoundInFlight) -> None:
        exchange.one_done(src)
        exchange.one_done(dst)


def never_share_links(schedules: Iterable[Schedule]) -> bool:
    """Tell whether collectives that follow each other never use the same links at one time.

    That holds for those of all ranks, and of groups inside nodes: a rank is done with its links before it arrives.
    """
    return all(
        schedule.group.size == schedule.group.num_nodes * schedule.group.ranks_per_node or schedule.group.nodes == 1
        for schedule in schedules
    )


def _until(env: simpy.Environment, time_s: float) -> Generator[simpy.Event]:
    """Wait until a time, if it is still to come."""
    if time_s > env.now:
        yield env.timeout(time_s - env.now)


def _then(event: simpy.Event, function: Callable[[], None]) -> None:
    """Call `function` when the event happens."""
    event.callbacks.append(lambda _event: function())


def _batches(round_: Round) -> tuple[range, ...]:
    """Return the repetitions that a rank waits for together."""
    if round_.at_once:
        return (range(round_.repeat),)
    return tuple(range(index, index + 1) for index in range(round_.repeat))


def _changing_links(topology: Topology) -> Iterator[LinkId]:
    return (LinkId(kind, place) for kind in get_args(LinkKind) for place in touched(topology, kind))


def _all_links(topology: Topology) -> tuple[LinkId, ...]:
    leaves = -(-topology.num_nodes // topology.nodes_per_leaf)
    counts: dict[LinkKind, int] = {
        "port_tx": topology.world_size,
        "port_rx": topology.world_size,
        "nic_tx": topology.num_nodes,
        "nic_rx": topology.num_nodes,
        "leaf_up": leaves,
        "leaf_down": leaves,
    }
    return tuple(LinkId(kind, place) for kind, number in counts.items() for place in range(number))

"""Programs and schedules on SimPy's clock, send by send: the judge of the recurrences, and what holds where they fail.

Every stream of every rank is a process. Streams of a rank share its GPU, and collectives of all ranks share the links.
`Exact`: every send is a flow of the network and every rank goes through its own rounds. `Folded`: one representative
stands for all ranks, and each phase is one flow a level; it serves where streams of ranks that are alike share links.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, get_args

import numpy as np
import simpy
from msgspec.structs import replace

from simnet.cluster.hardware import LinkId, LinkKind
from simnet.cluster.schedule import Round, Schedule, Send
from simnet.cluster.topology import Topology, around, touched
from simnet.collectives import link_loads, pipelines
from simnet.engine.collective_times import group_order, rank_times
from simnet.engine.gpu import Gpu
from simnet.engine.links import Network
from simnet.engine.random_factors import Varied
from simnet.engine.ranks import RanksIteration, StepSums, latecomers, slowest_rank
from simnet.engine.recurrence import SAME_TIME
from simnet.engine.result import Span
from simnet.engine.timeline import (
    ITERATION_PARTS,
    Streams,
    TimedOperation,
    Timeline,
    collectives_of,
    make_span,
    make_timeline,
)
from simnet.strategies.program import Communicate, Compute, OperationId

if TYPE_CHECKING:
    from simnet.core.bounded_types import FloatArray, IntArray

Steps = Generator[simpy.Event, object, tuple[float, float]]
MakeExecutor = Callable[[simpy.Environment, Topology], "Executor"]


class Met(NamedTuple):
    """What one step meets, drawn by `simnet.engine.random_factors`: factors on compute, pauses [s] by rank.

    Attributes:
        compute: factor on the time of compute of each rank.
        pauses_s: how long each rank stands still before it begins [s]; None if none does.
        collectives: factor on the time of each collective, stream by stream; None if it does not vary.
    """

    compute: Sequence[float]
    pauses_s: Sequence[float] | None = None
    collectives: Sequence[float] | None = None


class RankStep(NamedTuple):
    """One step of one rank.

    Attributes:
        end_s: when it was done [s].
        busy_s: seconds of its GPU by part of the iteration.
        comm_s: seconds that communication took.
        arrivals_s: when it arrived at each collective [s].
        waits_s: how long it waited for others there, in all [s].
        spans: what ran.
    """

    end_s: float
    busy_s: Mapping[str, float]
    comm_s: float
    arrivals_s: Mapping[OperationId, float]
    waits_s: float
    spans: Sequence[Span]


def run(streams: Streams, topology: Topology, comm_slowdown: float, make_executor: MakeExecutor) -> Timeline:
    """Simulate one iteration on the ranks that the executor asks for.

    Args:
        streams: of a program, every kernel timed.
        topology: the ranks and their links.
        comm_slowdown: factor on compute while communication runs, >= 1.
        make_executor: of collectives.
    """
    (ranks,) = run_steps([streams], topology, comm_slowdown, make_executor, [None])
    # Synchronous training goes on when the last rank is done: the iteration is that of the slowest rank.
    slowest = max(ranks, key=lambda rank: rank.end_s)
    return make_timeline(slowest.end_s, slowest.busy_s, slowest.spans)


def run_steps(
    steps: Sequence[Streams],
    topology: Topology,
    comm_slowdown: float,
    make_executor: MakeExecutor,
    met: Sequence[Met | None],
) -> Iterator[list[RankStep]]:
    """Simulate steps one after the other: a rank begins one when it is done with the one before.

    Args:
        steps: the streams of each step.
        topology: as `run`.
        comm_slowdown: as `run`.
        make_executor: as `run`.
        met: what each step meets; None: what the topology says of compute, and no more.

    Yields:
        What each step was on every rank.
    """
    env = simpy.Environment()
    executor = make_executor(env, topology)
    ranks = [_SimulatedRank(env, number, executor, comm_slowdown) for number in range(executor.num_ranks)]
    processes = [env.process(rank.run_all(steps, met)) for rank in ranks]
    is_over = env.all_of(processes)
    for number in range(len(steps)):
        # Faults may change links for ever: the clock stops when the ranks are done, not when nothing is left to do.
        for rank in ranks:
            while len(rank.done) <= number:
                assert not is_over.processed, "a rank waits for ever"
                env.step()
        yield [rank.take(number) for rank in ranks]


class _SimulatedRank:
    """One rank, or the one that stands for all, while it runs."""

    def __init__(self, env: simpy.Environment, number: int, executor: "Executor", comm_slowdown: float) -> None:
        self._env = env
        self._number = number
        self._executor = executor
        self._slowdown = executor.topology.compute_factor(number)
        self.gpu = Gpu(
            env,
            slowdown=self._slowdown,
            comm_slowdown=comm_slowdown,
            on_change=partial(executor.compute_changes, number) if executor.topology.compute_slows_links else None,
        )
        self.done: list[RankStep | None] = []
        self._begin()

    def _begin(self) -> None:
        self._spans: list[Span] = []
        self._comm_s = self._waits_s = 0.0
        self._arrivals_s: dict[OperationId, float] = {}

    def take(self, step: int) -> RankStep:
        """Return a step that is done, and forget it."""
        found, self.done[step] = self.done[step], None
        assert found is not None
        return found

    def run_all(self, steps: Sequence[Streams], met: Sequence[Met | None]) -> Generator[simpy.Event]:
        """Go through all steps."""
        busy_before: dict[str, float] = {}
        for number, (streams, meets) in enumerate(zip(steps, met, strict=True)):
            self._begin()
            yield from self._run_step(number, streams, meets)
            busy_s = {part: seconds - busy_before.get(part, 0.0) for part, seconds in self.gpu.busy_s.items()}
            busy_before = dict(self.gpu.busy_s)
            self.done.append(
                RankStep(self._env.now, busy_s, self._comm_s, self._arrivals_s, self._waits_s, self._spans)
            )

    def _run_step(self, number: int, streams: Streams, meets: Met | None) -> Generator[simpy.Event]:
        self._meets, self._step = meets, number
        if meets is not None:
            self.gpu.set_slowdown(meets.compute[self._number])
            if meets.pauses_s is not None:
                yield self._env.timeout(meets.pauses_s[self._number])
        self._order = {one: place for place, one in enumerate(collectives_of(streams))}
        waited_for = {waited for stream in streams for operation in stream for waited in operation.after}
        self._ended = {operation_id: self._env.event() for operation_id in waited_for}
        yield self._env.all_of([self._env.process(self.run(place, one)) for place, one in enumerate(streams)])

    def run(self, stream: int, operations: tuple[TimedOperation, ...]) -> Generator[simpy.Event]:
        """Go through the operations of one stream."""
        for index, operation in enumerate(operations):
            for waited in operation.after:
                yield self._ended[waited]
            operation_id = OperationId(stream, index)
            if isinstance(operation, Communicate):
                yield from self._communicate(operation, operation_id)
            else:
                yield from self._compute(operation, operation_id)
            if operation_id in self._ended:
                self._ended[operation_id].succeed()

    def _compute(self, operation: Compute, operation_id: OperationId) -> Generator[simpy.Event]:
        start_s = self._env.now
        yield self.gpu.run(operation.part, operation.seconds)
        self._keep(operation, operation_id, start_s)

    def _communicate(self, operation: Communicate, operation_id: OperationId) -> Generator[simpy.Event]:
        """Take part in a collective; its step and its id, the same on every rank, name it to the executor."""
        if not operation.schedule.rounds:
            return
        self.gpu.communication_starts()
        self._arrivals_s[operation_id] = self._env.now
        drawn = self._meets.collectives if self._meets else None
        stretch = 1.0 if drawn is None else drawn[self._order[operation_id]]
        start_s, end_s = yield from self._executor.run(
            self._number, (self._step, operation_id), operation.schedule, operation.message_bytes, stretch
        )
        self.gpu.communication_ends()
        self._waits_s += start_s - self._arrivals_s[operation_id]
        self._comm_s += end_s - start_s
        self._keep(operation, operation_id, start_s)

    def _keep(self, operation: TimedOperation, operation_id: OperationId, start_s: float) -> None:
        if self._env.now > start_s:
            self._spans.append(make_span(operation, operation_id, start_s, self._env.now, self._number))


def run_exact(
    steps: Sequence[tuple[Streams, int]],
    topology: Topology,
    comm_slowdown: float,
    drawn: Sequence[Varied],
    make_executor: MakeExecutor,
) -> Timeline:
    """Simulate steps one after the other on every rank, send by send.

    Args:
        steps: the streams of each, every kernel timed, and how many optimizer steps they hold.
        topology: the ranks and their links.
        comm_slowdown: factor on compute while communication runs, >= 1.
        drawn: what each step meets.
        make_executor: of collectives.
    """
    tally = StepSums(topology.world_size)
    spans: tuple[Span, ...] = ()
    longest_s, starts_s = 0.0, np.zeros(topology.world_size)
    met_s = starts_s
    streams = [one for one, _ in steps]
    of_steps = run_steps(streams, topology, comm_slowdown, make_executor, [_met(one) for one in drawn])
    for (streams_of_it, num_steps), ranks in zip(steps, of_steps, strict=True):
        found = _as_arrays(streams_of_it, ranks, met_s)
        taken_s = tally.add(found, num_steps, sum(1 for _ in collectives_of(streams_of_it)))
        if taken_s > longest_s:
            slowest = slowest_rank(found.ends_s)
            longest_s, spans = taken_s, _from_zero(tuple(ranks[slowest].spans), float(starts_s[slowest]))
        starts_s, met_s = found.ends_s, found.met_s
    return tally.timeline(spans, "exact")


def _met(varied: Varied) -> Met:
    pauses_s, collectives = (None if one is None else one.tolist() for one in (varied.pauses_s, varied.collectives))
    return Met(varied.compute.tolist(), pauses_s, collectives)


def _from_zero(spans: tuple[Span, ...], start_s: float) -> tuple[Span, ...]:
    if not start_s:
        return spans
    return tuple(replace(one, start_s=one.start_s - start_s, end_s=one.end_s - start_s) for one in spans)


def _as_arrays(streams: Streams, ranks: "list[RankStep]", met_s: "FloatArray") -> RanksIteration:
    """Return a step of the exact executor as the grouped one tells its own.

    Args:
        streams: of the step.
        ranks: what the step was on each.
        met_s: when the last collective before the step had ended on each rank [s].
    """
    held_s, last = np.zeros(len(ranks)), np.zeros(len(ranks))
    ended = _CollectiveEnds(ranks, met_s)
    for groups, arrivals_s in _arrivals(streams, ranks):
        late, by_s = latecomers(groups, arrivals_s[groups], ended.before(arrivals_s)[groups])
        held_s[late] += by_s
        last[late] += 1
    return RanksIteration(
        ends_s=np.array([rank.end_s for rank in ranks]),
        busy_s={part: np.array([rank.busy_s.get(part, 0.0) for rank in ranks]) for part in ITERATION_PARTS},
        comm_s=np.array([rank.comm_s for rank in ranks]),
        waits_s=np.array([rank.waits_s for rank in ranks]),
        held_s=held_s,
        last=last,
        met_s=ended.last_s,
        off_s=0.0,
        met={},
    )


def _arrivals(streams: Streams, ranks: "list[RankStep]") -> "Iterator[tuple[IntArray, FloatArray]]":
    for which in collectives_of(streams):
        operation = streams[which.stream][which.position]
        if isinstance(operation, Communicate) and operation.schedule.rounds:
            yield group_order(operation.schedule.group), np.array([rank.arrivals_s[which] for rank in ranks])


class _CollectiveEnds:
    """When collectives had ended on each rank."""

    def __init__(self, ranks: "list[RankStep]", before_s: "FloatArray") -> None:
        """Take what a step was on each rank, and when the last collective before it had ended there [s]."""
        self._ends_s = [
            [first_s, *sorted(one.end_s for one in rank.spans if one.stream == "communication")]
            for rank, first_s in zip(ranks, before_s.tolist(), strict=True)
        ]

    @property
    def last_s(self) -> "FloatArray":
        """When the last one had ended [s]."""
        return np.array([ends_s[-1] for ends_s in self._ends_s])

    def before(self, moments_s: "FloatArray") -> "FloatArray":
        """Return when the last one had ended before a moment of each rank [s]."""
        latest_s = (moments_s * (1 + SAME_TIME)).tolist()
        pairs = zip(self._ends_s, latest_s, strict=True)
        return np.array([ends_s[max(bisect_right(ends_s, moment_s) - 1, 0)] for ends_s, moment_s in pairs])


class Executor(Protocol):
    """Runs collectives for `num_ranks` ranks, which must all call them in the same order."""

    num_ranks: int
    topology: Topology

    def run(
        self, rank: int, sequence: Hashable, schedule: Schedule, message_bytes: float, stretch: float = 1.0
    ) -> Steps:
        """Take part as `rank` in collective number `sequence`, which takes `stretch` times as long as usual.

        Returns:
            When the last rank of the group had arrived, and when this rank was done [s].
        """
        ...

    def compute_changes(self, rank: int, is_computing: bool) -> None:
        """Take note that a rank's GPU begins or stops to compute, which may change the rates of its links."""
        ...


class Folded:
    """One representative rank on representative links."""

    num_ranks = 1

    def __init__(self, env: simpy.Environment, topology: Topology) -> None:
        self._env = env
        self.topology = topology
        self._network = Network(env)
        for kind in get_args(LinkKind):
            self._network.add_link(LinkId(kind, 0), topology.capacity(LinkId(kind, 0)))

    def run(
        self,
        rank: int,  # noqa: ARG002 - it stands for all
        sequence: Hashable,  # noqa: ARG002
        schedule: Schedule,
        message_bytes: float,
        stretch: float = 1.0,  # noqa: ARG002 - nothing varies where all are alike
    ) -> Steps:
        """Run every phase as one flow a level."""
        start_s = self._env.now
        phases = link_loads.phases(self.topology, schedule, message_bytes)
        if launch_s := link_loads.launch_s(self.topology, schedule):
            yield self._env.timeout(launch_s)
        for phase in phases:
            if len(phase) == 1:
                yield from self._level(phase[0])
            else:
                yield self._env.all_of([self._env.process(self._level(load)) for load in phase])
        yield from _until(self._env, start_s + link_loads.host_s(self.topology, schedule, message_bytes))
        return start_s, self._env.now

    def compute_changes(self, rank: int, is_computing: bool) -> None:  # noqa: ARG002
        """Set the rates of all links anew."""
        for kind in get_args(LinkKind):
            link = LinkId(kind, 0)
            self._network.add_link(link, self.topology.capacity(link, computing=float(is_computing)))

    def _level(self, load: link_loads.LevelLoad) -> Generator[simpy.Event]:
        yield self._env.timeout(load.latency_s)
        yield self._network.transfer({LinkId(kind, 0): size for kind, size in load.inflated_bytes.items()})


class Exact:
    """All ranks, all sends, all links."""

    def __init__(
        self,
        env: simpy.Environment,
        topology: Topology,
        on_round: Callable[[], None] | None = None,
        *,
        by_arrays: bool = False,
    ) -> None:
        """Take the clock and the links.

        Args:
            env: the clock.
            topology: the ranks and their links.
            on_round: called whenever rank 0 has finished a round.
            by_arrays: whether rounds that are regular may be computed for all ranks at once (`rank_times`), which is
                right where no two collectives ever use the same links (`never_share_links`); all others are events.
        """
        self._env = env
        self.topology = topology
        self._on_round = on_round
        self._by_arrays = by_arrays and not topology.compute_slows_links and topology.leaves_are_filled
        self.num_ranks = topology.world_size
        self.network = Network(env)
        for link in _all_links(topology):
            self.network.add_link(link, around(topology, link).capacity(link))
        if topology.next_change_s(0.0) < math.inf:
            env.process(self._change_links())
        self._calls: dict[Hashable, _Call] = {}
        self._changed_s = 0.0  # when a fault began or ended last
        self._is_computing = [False] * topology.world_size

    def _change_links(self) -> Generator[simpy.Event]:
        """Set the rate of every link anew when a fault begins or ends."""
        while (time_s := self.topology.next_change_s(self._changed_s)) < math.inf:
            yield self._env.timeout(time_s - self._env.now)
            self._changed_s = time_s
            for link in _changing_links(self.topology):
                self._set_rate(link)

    def compute_changes(self, rank: int, is_computing: bool) -> None:
        """Set the rates of the rank's ports and of its node's NICs anew."""
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
        """Wait for the group, then go through this rank's rounds."""
        if sequence not in self._calls:
            self._calls[sequence] = _Call(self._env, self.topology, self.network, schedule, message_bytes, stretch)
        call = self._calls[sequence]
        yield call.arrive(rank)
        start_s = self._env.now
        taken_s = self._regular_s(schedule, message_bytes, stretch)
        if taken_s is not None:
            yield self._env.timeout(taken_s if isinstance(taken_s, float) else float(taken_s[rank]))
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
        if not self._by_arrays:
            return None
        seconds, off_s = rank_times(self.topology, schedule, message_bytes, self._changed_s)
        taken_s = seconds * stretch
        longest_s = taken_s if isinstance(taken_s, float) else float(taken_s.max())
        lasts = self._env.now + longest_s < self.topology.next_change_s(self._changed_s)
        return taken_s if lasts and not off_s else None

    def _tell_round(self, rank: int) -> None:
        if rank == 0 and self._on_round:
            self._on_round()


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
        self.missing = Counter(send.dst for mine in sends for send in mine)
        self.missing.update({rank: len(mine) for rank, mine in enumerate(sends)})
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
        schedule, cost = self._schedule, pipelines.cost(self.topology, self._schedule)
        ranks = [schedule.group.rank_at(group, position) for position in range(schedule.group.size)]
        chunks = pipelines.count_chunks(schedule, ranks, self.topology.nodes_per_leaf)
        added_s = [around(self.topology, link).added_latency_s((link,), self._env.now) for link in chunks]
        yield self._env.timeout(self._stretch * (cost.latency_s + pipelines.added_latency_s(schedule, added_s)))
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
        self._post(rank, exchange, self._schedule.rounds[number])
        return exchange.done[rank]

    def _open(self, round_: Round, indices: range) -> _RoundInFlight:
        ranks = range(self.topology.world_size)
        sends = tuple(tuple(s for index in indices for s in round_.sends(rank, index)) for rank in ranks)
        return _RoundInFlight(self._env, sends)

    def _post(self, rank: int, exchange: _RoundInFlight, round_: Round) -> None:
        mine = exchange.sends[rank]
        posting_s = self.topology.posting_s(len(mine), at_once=round_.at_once)
        together: dict[float, list[Send]] = {}
        for send in mine:
            level = self.topology.level(rank, send.dst)
            latency_s = posting_s + self.topology.alpha_s(level, round_)
            if self._adds_latency:
                path = self.topology.path(rank, send.dst)
                latency_s += sum(around(self.topology, link).added_latency_s((link,), self._env.now) for link in path)
            together.setdefault(latency_s, []).append(send)
        # Sends of one latency start together; a rank posts all of them before any starts.
        for latency_s, same in together.items():
            start = self._env.timeout(latency_s * self._stretch)
            _then(start, partial(self._start, rank, same, exchange, at_once=round_.at_once))

    def _start(self, rank: int, sends: list[Send], exchange: _RoundInFlight, *, at_once: bool) -> None:
        for send in sends:
            level = self.topology.level(rank, send.dst)
            size = send.width * self._chunk_bytes
            inflated = size * self._stretch / link_loads.send_efficiency(self.topology, level, size, at_once=at_once)
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
        one.group.size == one.group.num_nodes * one.group.ranks_per_node or one.group.nodes == 1 for one in schedules
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

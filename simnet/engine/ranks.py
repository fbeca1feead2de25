"""Iterations of ranks that are not alike, each of them simulated, its collectives as wholes.

Ranks meet at collectives alone (`CollectiveTimes`): when a group begins, who waited for whom, and when each rank is
done follows from when its ranks arrive. What runs between is one of the recurrences of `recurrence`, over arrays of
ranks; where several streams compute, rank after rank in the order of time.
"""

import heapq
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from simnet.cluster.topology import Topology
from simnet.engine import recurrence
from simnet.engine.collective_times import Changes, CollectiveTimes, ends_as_usual, group_order, rank_times_of_draws
from simnet.engine.plan import LaneNumbers, PlanNumbers, StrategyPlan
from simnet.engine.random_factors import Variation, Varied
from simnet.engine.recurrence import NEVER, SAME_TIME, MeetingRanks, OneRank, Price
from simnet.engine.result import LateRank, RankWaits, Span
from simnet.engine.shared_nics import SharedNics
from simnet.engine.timeline import PARTS_ON_GPU, Timeline, collectives_of, make_span, make_timeline, num_collectives
from simnet.strategies.program import Communicate, Operation, OperationId

if TYPE_CHECKING:
    from simnet.core.bounded_types import FloatArray, IntArray

MOST_LATE_RANKS = 8


class RanksIteration(NamedTuple):
    """One iteration of all ranks.

    Attributes:
        ends_s: when each rank was done [s].
        busy_s: seconds of the GPU of each rank by part of the iteration.
        comm_s: seconds that communication took on each rank.
        waits_s: how long each rank waited for others at collectives [s].
        held_s: by how long each rank, where it came last, held up the typical rank of its group by itself [s].
        last: at how many collectives each rank did so.
        met_s: when the last collective of each rank had ended [s].
        off_s: by how much the end may be off: 0 where the exact executor gives the same [s].
        met: when collectives began and ended on the watched rank, by stream and position [s].
    """

    ends_s: "FloatArray"
    busy_s: "dict[str, FloatArray]"
    comm_s: "FloatArray"
    waits_s: "FloatArray"
    held_s: "FloatArray"
    last: "FloatArray"
    met_s: "FloatArray"
    off_s: float
    met: dict[OperationId, tuple[float, float]]


class RunStep(NamedTuple):
    """What runs between two steps of the optimizer, or between several where a program holds more.

    Attributes:
        plan: of the program.
        prices: of its parts.
        num_steps: optimizer steps in it.
    """

    plan: StrategyPlan
    prices: Sequence[Price]
    num_steps: int = 1


def period_of(plan: StrategyPlan, at: PlanNumbers) -> list[RunStep]:
    """Return what runs in one period of a plan."""
    prices = {id(part): part.prices(at) for part in (plan.inner, plan) if part is not None}
    return [RunStep(part, prices[id(part)], num_steps) for part, num_steps in plan.of_period]


def run(  # noqa: PLR0913 - what is run, and what is told of it
    steps: Sequence[RunStep],
    topology: Topology,
    slowdown: float,
    variation: Variation,
    on_step: Callable[[], None] | None = None,
    *,
    with_spans: bool = True,
) -> Timeline:
    """Simulate steps one after the other: a rank begins one when it is done with the one before.

    Args:
        steps: what runs.
        topology: the ranks and their links.
        slowdown: factor on compute while communication runs, >= 1.
        variation: draws what each step meets.
        on_step: called after each step.
        with_spans: whether to tell what ran in the longest step.
    """
    changes, tally = Changes(topology), StepSums(topology.world_size)
    starts_s = met_s = np.zeros(topology.world_size)
    longest = (-1.0, 0, starts_s, met_s, 0)
    # One step after the other: a rank that is late in one begins the next late, which no mean of steps alone shows.
    for number, step in enumerate(steps):
        varied = variation.of(number, num_collectives(step.plan.program.streams))
        iteration = _Iteration(step, topology, changes, slowdown, starts_s, met_s, varied).run()
        taken_s = tally.add(iteration, step.num_steps, num_collectives(step.plan.program.streams))
        if taken_s > longest[0]:
            longest = taken_s, number, starts_s, met_s, slowest_rank(iteration.ends_s)
        starts_s, met_s = iteration.ends_s, iteration.met_s
        if on_step is not None:
            on_step()
    if not with_spans:
        return tally.timeline((), "grouped")
    # Spans are of one rank in one step: that step is run once more, which costs less than to keep them of all.
    _, number, starts_s, met_s, rank = longest
    step = steps[number]
    varied = variation.of(number, num_collectives(step.plan.program.streams))
    met = _Iteration(step, topology, changes, slowdown, starts_s, met_s, varied, watched=rank).run().met
    return tally.timeline(_spans(step, slowdown, varied, met, float(starts_s[rank]), rank), "grouped")


def draws_s(plan: StrategyPlan, at: LaneNumbers, factor: "FloatArray") -> list[float] | None:
    """Return the mean step of a period in each of many draws, all ranks of all draws at once [s].

    Rails of one NIC have their part of it throughout; what several draws have in common, a ratio, hardly knows.

    Args:
        plan: whose program all run.
        at: the numbers of each draw; links do not change in time.
        factor: on the time of compute of each rank.

    Returns:
        None where each draw has to be run by itself.
    """
    lanes = at.lanes
    if lanes[0].topology.compute_slows_links or not all(part.runs_in_arrays for part, _ in plan.of_period):
        return None
    starts_s = np.zeros((len(lanes), len(factor)))
    slowdown = _column([lane.slowdown for lane in lanes])
    prices: dict[int, list[Price]] = {}
    for part, _ in plan.of_period:
        # The inner steps of a period are one plan, many times over.
        if id(part) not in prices:
            of_lanes = part.prices_of(at)
            if of_lanes is None:
                return None
            prices[id(part)] = [price if isinstance(price, float) else _column(price) for price in of_lanes]
        collective_ends_s = partial(_ends_in_draws, part, prices[id(part)], [lane.topology for lane in lanes])
        ranks = MeetingRanks(factor, collective_ends_s, lambda *_: None, lambda *_: None)
        ends_s = part.end_s(prices[id(part)], slowdown, start_s=starts_s, ranks=ranks)
        starts_s = np.broadcast_to(ends_s, starts_s.shape)
    return list(map(float, starts_s.max(axis=1) / plan.program.period))


def _column(values: Any) -> Any:
    """Return what differs between draws, each of which is a row of ranks."""
    return np.reshape(np.asarray(values), (-1, 1))


def _ends_in_draws(  # noqa: PLR0913, PLR0917 - what all collectives share, and one of them
    plan: StrategyPlan,
    prices: Sequence[Price],
    topologies: Sequence[Topology],
    stream: int,
    position: int,
    arrivals_s: "FloatArray",
    _computing_s: "FloatArray",
) -> "FloatArray":
    step = plan.steps[stream][position]
    assert isinstance(step.operation, Communicate)
    schedule, size = step.operation.schedule, step.operation.message_bytes
    groups, world = group_order(schedule.group), topologies[0].world_size
    arrivals_s = np.broadcast_to(arrivals_s, (len(topologies), world))
    taken_s: Any = prices[step.price]
    if not ends_as_usual(topologies[0], schedule):
        taken_s = rank_times_of_draws(topologies, schedule, size)
    starts_s = np.empty(arrivals_s.shape)
    # A group begins when the last of its ranks has arrived.
    starts_s[:, groups] = arrivals_s[:, groups].max(axis=2)[:, :, None]
    return np.asarray(starts_s + taken_s)


def slowest_rank(ends_s: "FloatArray") -> int:
    """Return the rank that was done last, of those that were together but for rounding the first."""
    # Not `argmax`: which of two ranks that end together is larger would hang on the last bit of a sum.
    return int((ends_s >= (1 - SAME_TIME) * ends_s.max()).argmax())


def _spans(  # noqa: PLR0913, PLR0917 - one step of one rank
    step: RunStep,
    slowdown: float,
    varied: Varied,
    met: dict[OperationId, tuple[float, float]],
    start_s: float,
    rank: int,
) -> tuple[Span, ...]:
    """Return what ran on a rank in a step that it began at a time, from then on."""
    pause_s = 0.0 if varied.pauses_s is None else float(varied.pauses_s[rank])
    watched = OneRank(
        step.plan.steps,
        step.prices,
        slowdown,
        factor=float(varied.compute[rank]),
        start_s=start_s + pause_s,
        arrive=lambda which, _now: watched.start_collective(which, *met[which]),
    )
    watched.run()
    return tuple(
        make_span(
            step.plan.steps[stream][place].operation, OperationId(stream, place), began - start_s, end - start_s, rank
        )
        for stream, place, began, end in watched.spans
    )


class _Iteration:
    """One step of all ranks while they run; arrays are over ranks."""

    def __init__(  # noqa: PLR0913, PLR0917 - what one step meets
        self,
        step: RunStep,
        topology: Topology,
        changes: Changes,
        slowdown: float,
        starts_s: "FloatArray",
        met_s: "FloatArray",
        varied: Varied,
        watched: int | None = None,
    ) -> None:
        self._plan, self._prices, self._slowdown, self._varied = step.plan, step.prices, slowdown, varied
        self._topology, self._changes, self._watched = topology, changes, watched
        self._begins_s: FloatArray = starts_s if varied.pauses_s is None else starts_s + varied.pauses_s
        self._before_s = met_s
        self._number = {
            collective: number for number, collective in enumerate(collectives_of(step.plan.program.streams))
        }
        self._nics = SharedNics(topology)
        self._forget()

    def _forget(self) -> None:
        world = self._topology.world_size
        self._busy_s = {part: np.zeros(world) for part in PARTS_ON_GPU}
        self._comm_s, self._waits_s, self._held_s, self._last = (np.zeros(world) for _ in range(4))
        self._met_s = self._before_s.copy()
        self._times: dict[OperationId, CollectiveTimes] = {}
        self._met: dict[OperationId, tuple[float, float]] = {}
        self._off_s = 0.0
        # Of ranks that run one by one: those at each collective of a group, and the ends that are planned.
        self._ranks: list[OneRank] = []
        self._arrived: dict[tuple[OperationId, int], dict[int, float]] = {}
        self._planned: list[tuple[float, int, int]] = []
        self._version: list[int] = []

    def run(self) -> RanksIteration:
        """Take every rank to its end, rails of one NIC until their times stand."""
        ends_s = self._once()
        # What rails that share NICs take hangs on when all of them begin, which is known once the whole step has run.
        while not self._nics.are_settled():
            self._forget()
            ends_s = self._once()
        off_s = self._off_s + self._nics.off_s + sum(times.off_s for times in self._times.values())
        return RanksIteration(
            ends_s,
            self._busy_s,
            self._comm_s,
            self._waits_s,
            self._held_s,
            self._last,
            self._met_s,
            off_s,
            self._met,
        )

    def _once(self) -> "FloatArray":
        plan, factor = self._plan, self._varied.compute
        ranks = MeetingRanks(factor, self._run_collective, self._computed, self._slowed)
        if plan.runs_in_arrays:
            ends_s = plan.end_s(self._prices, self._slowdown, start_s=self._begins_s, ranks=ranks)
        else:
            ends_s = self._one_by_one()
        return np.asarray(np.broadcast_to(ends_s, self._begins_s.shape))

    def _computed(self, operation: Operation, seconds: "FloatArray") -> None:
        if not isinstance(operation, Communicate):  # one that sends nothing takes no time
            self._busy_s[operation.part] += seconds

    def _slowed(self, before: "FloatArray", after: "FloatArray") -> None:
        """Take note of what communication slowed, by the part of the iteration that was on the GPU then."""
        if self._slowdown == 1:
            return
        for part, seconds in self._parts_s.items():
            had_s, has_s = (np.interp(done_s, self._compute_ends_s, seconds) for done_s in (before, after))
            self._busy_s[part] += (has_s - had_s) * (self._slowdown - 1) * self._varied.compute

    @cached_property
    def _compute_ends_s(self) -> "FloatArray":
        """Seconds of the compute stream by the end of each of its operations, from 0 on."""
        assert self._plan.two_streams is not None
        seconds = [self._prices[step.price] for step in self._plan.two_streams.compute]
        return np.cumsum([0.0, *seconds])

    @cached_property
    def _parts_s(self) -> "dict[str, FloatArray]":
        """Of these, the seconds of each part of the iteration."""
        assert self._plan.two_streams is not None
        parts = [step.operation.part for step in self._plan.two_streams.compute]  # type: ignore[union-attr]
        seconds = np.diff(self._compute_ends_s)
        return {part: np.cumsum([0.0, *(seconds * [other == part for other in parts])]) for part in set(parts)}

    def _times_of(self, which: OperationId) -> CollectiveTimes:
        if which not in self._times:
            operation = self._plan.steps[which.stream][which.position].operation
            assert isinstance(operation, Communicate)
            drawn = self._varied.collectives
            stretch = 1.0 if drawn is None else float(drawn[self._number[which]])
            self._times[which] = CollectiveTimes(operation, self._topology, self._changes, stretch)
        return self._times[which]

    def _run_collective(
        self, stream: int, position: int, arrivals_s: "FloatArray", computing_s: "FloatArray"
    ) -> "FloatArray":
        """Meet at a collective in all groups; compute goes on meanwhile, more slowly while a rank waits, too."""
        which = OperationId(stream, position)
        groups = group_order(self._times_of(which).operation.schedule.group)
        if arrivals_s.shape != self._begins_s.shape:
            arrivals_s = np.broadcast_to(arrivals_s, self._begins_s.shape)
        ends_s = np.empty(self._begins_s.shape)
        _, ends_s[groups] = self._begin(which, groups, arrivals_s[groups], computing_s)
        return ends_s

    def _begin(
        self, which: OperationId, groups: "IntArray", arrivals_s: "FloatArray", computing_s: "FloatArray"
    ) -> "tuple[FloatArray, FloatArray]":
        """Return when each group begins, whose ranks have all arrived, and each rank is done; a group a row [s]."""
        times = self._times_of(which)
        starts_s = arrivals_s.max(axis=1)
        late, held_s = latecomers(groups, arrivals_s, self._met_s[groups])
        self._held_s[late] += held_s
        self._last[late] += 1
        slowed_for = None
        if self._topology.compute_slows_links:
            slowed_for = np.broadcast_to(computing_s, self._begins_s.shape)
        # In the first pass rails have their part of a NIC throughout; then they have what the pass before has shown.
        if (taken_s := self._nics.taken_s.get(which)) is None:
            ends_s = times.ends_s(groups, starts_s, slowed_for)
        else:
            ends_s = starts_s[:, None] + taken_s[groups]
        if slowed_for is None:
            self._nics.note(which, times, groups, starts_s, ends_s)
        self._waits_s[groups] += starts_s[:, None] - arrivals_s
        self._comm_s[groups] += ends_s - starts_s[:, None]
        self._met_s[groups] = np.maximum(self._met_s[groups], ends_s)
        if self._watched is not None and (here := groups == self._watched).any():
            row = int(here.any(axis=1).argmax())
            self._met[which] = float(starts_s[row]), float(ends_s[here][0])
        return starts_s, ends_s

    def _one_by_one(self) -> "FloatArray":
        """Run ranks in the order of time, which holds for any program."""
        ranks = [
            OneRank(
                self._plan.steps,
                self._prices,
                self._slowdown,
                factor=float(factor),
                start_s=float(start_s),
                arrive=partial(self._arrive, rank),
            )
            for rank, (factor, start_s) in enumerate(zip(self._varied.compute, self._begins_s, strict=True))
        ]
        self._ranks, self._arrived, self._planned, self._version = ranks, {}, [], [0] * len(ranks)
        for rank in sorted(range(len(ranks)), key=lambda number: ranks[number].now):
            ranks[rank].begin()
            self._wake(rank)
        while self._planned:
            then, rank, version = heapq.heappop(self._planned)
            # Of a plan that was replaced since: cheaper to skip here than to take out of the heap.
            if version == self._version[rank]:
                ranks[rank].go(then)
                self._wake(rank)
        for rank, done in enumerate(ranks):
            for part, seconds in done.busy_s.items():
                self._busy_s[part][rank] += seconds
        return np.array([rank.now for rank in ranks])

    def _wake(self, rank: int) -> None:
        """Plan the next end of an operation of a rank, in place of what was planned."""
        self._version[rank] += 1
        if (then := self._ranks[rank].next_s()) < NEVER:
            heapq.heappush(self._planned, (then, rank, self._version[rank]))

    def _arrive(self, rank: int, which: OperationId, now: float) -> None:
        """Take note that a rank has arrived at a collective; the last of its group lets it begin."""
        group = self._times_of(which).operation.schedule.group
        arrived = self._arrived.setdefault((which, group.group_id(rank)), {})
        arrived[rank] = now
        # The last one to arrive lets all begin; whoever came before has waited, its GPU computing on.
        if len(arrived) == group.size:
            members = sorted(arrived)
            began_s, ends_s = self._run_in_group(which, members, [arrived[member] for member in members])
            for member, end_s in zip(members, ends_s, strict=True):
                self._ranks[member].start_collective(which, began_s, end_s)
                self._wake(member)

    def _run_in_group(
        self, which: OperationId, members: list[int], arrivals_s: list[float]
    ) -> tuple[float, list[float]]:
        """Return when a group begins, and when each of its ranks is done [s].

        Where other streams use the same links, both get half of them until the shorter collective ends, as two flows
        without latency do.
        """
        ranks, groups, arrived = self._ranks, np.array([members]), np.array([arrivals_s])
        computing_s = np.zeros(len(ranks))
        computing_s[members] = [ranks[member].computing_s() for member in members]
        begins_s, ends_s = self._begin(which, groups, arrived, computing_s)
        began_s, member_ends_s = float(begins_s[0]), list(map(float, ends_s[0]))
        group = self._times_of(which).operation.schedule.group
        for place, member in enumerate(members):
            for stream in range(len(self._plan.steps)):
                running = ranks[member].running(stream) if stream != which.stream else None
                if running is None or not isinstance(running[0], Communicate) or running[1] <= began_s:
                    continue
                if recurrence.share_links(running[0].schedule.group, group):
                    together_s = min(running[1], member_ends_s[place]) - began_s
                    ranks[member].lengthen(stream, together_s)
                    member_ends_s[place] += together_s
                    self._comm_s[member] += 2 * together_s
                    self._off_s += together_s if place == 0 else 0.0
        return began_s, member_ends_s


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
    if not np.count_nonzero(last_s - arrivals_s.min(axis=1) > SAME_TIME * last_s):
        return groups[:0, 0], last_s[:0]
    rows, latest = np.arange(len(groups)), arrivals_s.argmax(axis=1)
    own_s = last_s - _medians(arrivals_s)
    # Most collectives leave all of their ranks at once.
    are_apart = met_s != met_s[:, :1]
    if np.count_nonzero(are_apart):
        apart = np.flatnonzero(are_apart.any(axis=1))
        own_s[apart] -= np.maximum(met_s[apart, latest[apart]] - _medians(met_s[apart]), 0.0)
    is_late = own_s > SAME_TIME * last_s
    return groups[rows, latest][is_late], own_s[is_late]


def _medians(values: "FloatArray") -> "FloatArray":
    """Return the median of each row, as `np.median` in a third of its time."""
    size = values.shape[1]
    low, high = (size - 1) // 2, size // 2
    parted = np.partition(values, (low, high) if low < high else high, axis=1)
    return np.asarray((parted[:, low] + parted[:, high]) / 2)


class StepSums:
    """What all steps so far took, summed over them for each rank."""

    def __init__(self, world_size: int) -> None:
        self._times_s: list[float] = []
        self._ends_s: FloatArray = np.zeros(world_size)
        self._busy_s = {part: np.zeros(world_size) for part in PARTS_ON_GPU}
        self._comm_s, self._waits_s, self._held_s, self._last = (np.zeros(world_size) for _ in range(4))
        self._collectives = 0
        self._off_s = 0.0

    def add(self, iteration: RanksIteration, num_steps: int, num_collectives: int) -> float:
        """Take a step in; return its time, from when the last rank was done with the one before [s]."""
        taken_s = float(iteration.ends_s.max() - self._ends_s.max())
        self._times_s += [taken_s / num_steps] * num_steps
        self._ends_s = iteration.ends_s
        for part, seconds in iteration.busy_s.items():
            self._busy_s[part] += seconds
        self._comm_s += iteration.comm_s
        self._waits_s += iteration.waits_s
        self._held_s += iteration.held_s
        self._last += iteration.last
        self._off_s += iteration.off_s
        self._collectives += num_collectives
        return taken_s

    def timeline(self, spans: tuple[Span, ...], fidelity: str) -> Timeline:
        """Return the mean step, as the rank saw it that was done last."""
        number, slowest = len(self._times_s), slowest_rank(self._ends_s)
        busy_s = {part: float(seconds[slowest]) / number for part, seconds in self._busy_s.items()}
        mean_s = float(self._ends_s[slowest]) / number
        timeline = make_timeline(mean_s, busy_s, spans)
        return replace(
            timeline,
            comm_s=float(self._comm_s[slowest]) / number,
            iterations_s=tuple(self._times_s),
            waits=self._waits(number),
            off_s=self._off_s / number,
            fidelity=fidelity,
        )

    def _waits(self, number: int) -> RankWaits:
        latest = np.argsort(-self._held_s, kind="stable")[:MOST_LATE_RANKS]
        late = tuple(
            LateRank(
                rank=int(rank),
                share=float(self._last[rank] / max(self._collectives, 1)),
                held_s=float(self._held_s[rank] / number),
            )
            for rank in latest
            if self._held_s[rank] > 0
        )
        waits_s = self._waits_s / number
        least_s, most_s = float(waits_s.min()), float(waits_s.max())
        return RankWaits(mean_s=float(waits_s.mean()), least_s=least_s, most_s=most_s, late=late)

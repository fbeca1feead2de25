"""Iterations one after the other on ranks that are not alike, by the grouped or the exact executor."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import replace

from simnet.cluster.topology import Topology
from simnet.engine import rank_recurrence
from simnet.engine.grouped_runner import GroupedRunner, RanksIteration
from simnet.engine.random_factors import Variation, Varied
from simnet.engine.rank_collectives import latecomers
from simnet.engine.rank_recurrence import RankRecurrence
from simnet.engine.rank_times import group_order
from simnet.engine.rank_waits import LateRank, RankWaits
from simnet.engine.result import Span
from simnet.engine.timeline import ITERATION_PARTS, Streams, Timeline, collectives_of, make_timeline
from simnet.strategies.program import Communicate

if TYPE_CHECKING:
    from simnet.core.bounded_types import FloatArray, IntArray
    from simnet.engine.event_runner import MakeExecutor, Met, RankStep

MOST_LATE_RANKS = 8
SAME_TIME = 1e-12
"""Relative: what ends so near each other ends together, as in `network.gpu` and `network.links`."""
OnStep = Callable[[], None]


class RunStep(NamedTuple):
    """What runs between two steps of the optimizer, or between several where a program holds more.

    Attributes:
        streams: of the program, every kernel timed.
        num_steps: optimizer steps in it.
    """

    streams: Streams
    num_steps: int = 1


class _LongestStep(NamedTuple):
    """The step that took longest so far [s]: its number, when each rank began it [s], and the rank that ended last."""

    taken_s: float = -1.0
    number: int = 0
    starts_s: "FloatArray | None" = None
    slowest: int = 0


def run_grouped(
    steps: Sequence[RunStep], topology: Topology, comm_slowdown: float, variation: Variation, on_step: OnStep
) -> Timeline:
    """Simulate steps one after the other on the grouped executor.

    Args:
        steps: what runs.
        topology: the ranks and their links.
        comm_slowdown: factor on compute while communication runs, >= 1.
        variation: draws what each step meets.
        on_step: called after each step.
    """
    runner, recurrence = GroupedRunner(topology, comm_slowdown), RankRecurrence(topology, comm_slowdown)
    tally, longest = _StepSums(topology), _LongestStep()
    starts_s = met_s = np.zeros(topology.world_size)
    for number, step in enumerate(steps):
        quick = recurrence if rank_recurrence.holds_for(step.streams, topology) else runner
        found = quick.run(step.streams, starts_s, _varied(variation, step, number), met_s)
        taken_s = tally.add(step, found)
        if taken_s > longest.taken_s:
            longest = _LongestStep(taken_s, number, starts_s, slowest_rank(found.ends_s))
        starts_s, met_s = found.ends_s, found.met_s
        on_step()
    # Spans are of one rank in one step: that step is run once more, which costs less than to keep them of all.
    assert longest.starts_s is not None
    step = steps[longest.number]
    varied = _varied(variation, step, longest.number)
    spans = runner.run(step.streams, longest.starts_s, varied, watched=longest.slowest).spans
    return tally.timeline(_from_zero(spans, float(longest.starts_s[longest.slowest])), "grouped")


def run_exact(
    steps: Sequence[RunStep],
    topology: Topology,
    comm_slowdown: float,
    variation: Variation,
    make_executor: "MakeExecutor",
) -> Timeline:
    """Simulate steps one after the other on the exact executor; arguments as `run_grouped`."""
    from simnet.engine.event_runner import run_steps  # brings SimPy, for which others need not wait

    tally = _StepSums(topology)
    met = [_met(_varied(variation, step, number)) for number, step in enumerate(steps)]
    streams = [step.streams for step in steps]
    spans: tuple[Span, ...] = ()
    longest_s, starts_s = 0.0, np.zeros(topology.world_size)
    met_s = starts_s
    of_steps = run_steps(streams, topology, comm_slowdown, make_executor, met)
    for step, ranks in zip(steps, of_steps, strict=True):
        found = _as_arrays(step.streams, ranks, met_s)
        taken_s = tally.add(step, found)
        if taken_s > longest_s:
            slowest = slowest_rank(found.ends_s)
            longest_s, spans = taken_s, _from_zero(tuple(ranks[slowest].spans), float(starts_s[slowest]))
        starts_s, met_s = found.ends_s, found.met_s
    return tally.timeline(spans, "exact")


def slowest_rank(ends_s: "FloatArray") -> int:
    """Return the rank that was done last, of those that were together but for rounding the first."""
    return int((ends_s >= (1 - SAME_TIME) * ends_s.max()).argmax())


def _varied(variation: Variation, step: RunStep, number: int) -> Varied:
    return variation.of(number, sum(1 for _ in collectives_of(step.streams)))


def _met(varied: Varied) -> "Met":
    from simnet.engine.event_runner import Met

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


class _StepSums:
    """What all steps so far took, summed over them for each rank."""

    def __init__(self, topology: Topology) -> None:
        world = topology.world_size
        self._times_s: list[float] = []
        self._ends_s: FloatArray = np.zeros(world)
        self._busy_s = {part: np.zeros(world) for part in ITERATION_PARTS}
        self._comm_s, self._waits_s, self._held_s, self._last = (np.zeros(world) for _ in range(4))
        self._collectives = 0
        self._off_s = 0.0

    def add(self, step: RunStep, found: RanksIteration) -> float:
        """Take a step in; return its time, from when the last rank was done with the one before [s]."""
        taken_s = float(found.ends_s.max() - self._ends_s.max())
        self._times_s += [taken_s / step.num_steps] * step.num_steps
        self._ends_s = found.ends_s
        for part, seconds in found.busy_s.items():
            self._busy_s[part] += seconds
        self._comm_s += found.comm_s
        self._waits_s += found.waits_s
        self._held_s += found.held_s
        self._last += found.last
        self._off_s += found.off_s
        self._collectives += sum(1 for _ in collectives_of(step.streams))
        return taken_s

    def timeline(self, spans: tuple[Span, ...], fidelity: str) -> Timeline:
        """Return the mean step, as the rank saw it that was done last."""
        number, slowest = len(self._times_s), slowest_rank(self._ends_s)
        busy_s = {part: float(seconds[slowest]) / number for part, seconds in self._busy_s.items()}
        mean_s = float(self._ends_s[slowest]) / number
        found = make_timeline(mean_s, busy_s, spans)
        return replace(
            found,
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

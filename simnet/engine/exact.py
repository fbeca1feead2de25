"""Programs on SimPy's clock, send by send: the judge of the recurrences, and what holds where they fail.

Every stream of every rank is a process. Streams of a rank share its GPU, and collectives of all ranks share the links
(`every_send`).
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import simpy
from msgspec.structs import replace

from simnet.cluster.topology import Topology
from simnet.engine.collective_times import group_order
from simnet.engine.every_send import Exact
from simnet.engine.links import call_after_all
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
    num_collectives,
)
from simnet.strategies.program import Communicate, Compute, OperationId

if TYPE_CHECKING:
    from simnet.core.bounded_types import FloatArray

MakeExecutor = Callable[[simpy.Environment, Topology], Exact]


class Gpu:
    """A GPU that several kernels share: each gets an equal part, and all are slowed by communication.

    This is processor sharing: with n kernels each runs at 1/n of its speed. A queue would let a bucket's encode wait
    behind the rest of backward, and the result would depend on how finely backward is cut (decision 3).

    Attributes:
        busy_s: seconds by part ("forward", "backward", "encode", ...); the sum is the time that the GPU was busy.
    """

    def __init__(
        self,
        env: simpy.Environment,
        *,
        comm_slowdown: float,
        on_change: Callable[[bool], None] | None = None,
    ) -> None:
        """Take the clock.

        Args:
            env: the clock.
            comm_slowdown: factor >= 1 on kernels that run while communication does.
            on_change: what to tell whether the GPU computes, whenever that changes.
        """
        self._env = env
        self._slowdown = 1.0
        self._comm_slowdown = comm_slowdown
        self._communicating = 0
        self._kernels: list[tuple[float, str, simpy.Event]] = []  # seconds left on an idle GPU, part, its end
        self._updated_s = 0.0
        self._plan_number = 0
        self._on_change = on_change
        self._reported_computing = False
        self.busy_s: defaultdict[str, float] = defaultdict(float)

    def set_slowdown(self, slowdown: float) -> None:
        """Set the factor >= 1 on the kernels that start from now on."""
        self._slowdown = slowdown

    def run(self, part: str, seconds: float) -> simpy.Event:
        """Start a kernel that takes `seconds` alone on an idle GPU; return the event that the kernel has ended."""
        done = self._env.event()
        if seconds <= 0:
            return done.succeed()
        self._advance()
        self._kernels.append((seconds * self._slowdown, part, done))
        self._wake_at_next_end()
        self._report_later()
        return done

    def communication_starts(self) -> None:
        """Slow kernels down from now on."""
        self._advance()
        self._communicating += 1
        self._wake_at_next_end()

    def communication_ends(self) -> None:
        """Let kernels run at full speed again, if no other communication is under way."""
        self._advance()
        self._communicating -= 1
        self._wake_at_next_end()

    @property
    def _rate(self) -> float:
        speed = 1 / self._comm_slowdown if self._communicating else 1.0
        return speed / len(self._kernels)

    def _advance(self) -> None:
        """Bring what remains of each kernel, and the seconds by part, up to now."""
        passed = self._env.now - self._updated_s
        self._updated_s = self._env.now
        if passed > 0 and len(self._kernels) == 1:  # nearly always, and to the same bits
            remaining_s, part, done = self._kernels[0]
            self._kernels = [(remaining_s - passed * self._rate, part, done)]
            self.busy_s[part] += passed
        elif passed > 0 and self._kernels:
            run_s, count = passed * self._rate, len(self._kernels)
            self._kernels = [(remaining_s - run_s, part, done) for remaining_s, part, done in self._kernels]
            # Each of n kernels held 1/n of the GPU, whatever part of the iteration it belongs to.
            for _, part, _ in self._kernels:
                self.busy_s[part] += passed / count

    def _least_s(self) -> float:
        """Return what remains of the kernel that ends first."""
        return self._kernels[0][0] if len(self._kernels) == 1 else min(kernel[0] for kernel in self._kernels)

    def _wake_at_next_end(self) -> None:
        """Wake when the next kernel ends."""
        # SimPy cannot cancel a timeout: a wake-up of an earlier plan, with a lower number, does nothing.
        self._plan_number += 1
        if self._kernels:
            wake_in_s, plan_number = max(self._least_s() / self._rate, 0.0), self._plan_number
            self._env.timeout(wake_in_s).callbacks.append(lambda _event: self._wake(plan_number))

    def _wake(self, plan_number: int) -> None:
        """End the kernels that are due."""
        if plan_number != self._plan_number:
            return
        self._advance()
        limit = self._least_s() + SAME_TIME * self._env.now
        over = [done for remaining_s, _, done in self._kernels if remaining_s <= limit]
        self._kernels = [kernel for kernel in self._kernels if kernel[0] > limit]
        for done in over:
            done.succeed()
        self._wake_at_next_end()
        self._report_later()

    def _report_later(self) -> None:
        # Where one kernel ends another often begins at the same instant: the GPU has then not stopped.
        if self._on_change is not None and bool(self._kernels) != self._reported_computing:
            call_after_all(self._env, lambda _event: self._report())

    def _report(self) -> None:
        if self._on_change is not None and bool(self._kernels) != self._reported_computing:
            self._reported_computing = bool(self._kernels)
            self._on_change(self._reported_computing)


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


def run_steps(
    steps: Sequence[Streams],
    topology: Topology,
    comm_slowdown: float,
    make_executor: MakeExecutor,
    drawn: Sequence[Varied],
) -> Iterator[list[RankStep]]:
    """Simulate steps one after the other: a rank begins one when it is done with the one before.

    Args:
        steps: the streams of each step, every kernel timed.
        topology: the ranks and their links.
        comm_slowdown: factor on compute while communication runs, >= 1.
        make_executor: of collectives; it says for how many ranks.
        drawn: what each step meets.

    Yields:
        What each step was on every rank.
    """
    env = simpy.Environment()
    executor = make_executor(env, topology)
    ranks = [_SimulatedRank(env, number, executor, comm_slowdown) for number in range(executor.num_ranks)]
    processes = [env.process(rank.run_all(steps, drawn)) for rank in ranks]
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

    def __init__(self, env: simpy.Environment, number: int, executor: Exact, comm_slowdown: float) -> None:
        self._env = env
        self._number = number
        self._executor = executor
        self.gpu = Gpu(
            env,
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
        ranks, self.done[step] = self.done[step], None
        assert ranks is not None
        return ranks

    def run_all(self, steps: Sequence[Streams], drawn: Sequence[Varied]) -> Generator[simpy.Event]:
        """Go through all steps."""
        busy_before: dict[str, float] = {}
        for number, (streams, varied) in enumerate(zip(steps, drawn, strict=True)):
            self._begin()
            yield from self._run_step(number, streams, varied)
            busy_s = {part: seconds - busy_before.get(part, 0.0) for part, seconds in self.gpu.busy_s.items()}
            busy_before = dict(self.gpu.busy_s)
            self.done.append(
                RankStep(self._env.now, busy_s, self._comm_s, self._arrivals_s, self._waits_s, self._spans)
            )

    def _run_step(self, number: int, streams: Streams, varied: Varied) -> Generator[simpy.Event]:
        self._stretches, self._step = varied.collectives, number
        self.gpu.set_slowdown(float(varied.compute[self._number]))
        if varied.pauses_s is not None:
            yield self._env.timeout(float(varied.pauses_s[self._number]))
        self._order = {collective: place for place, collective in enumerate(collectives_of(streams))}
        waited_for = {waited for stream in streams for operation in stream for waited in operation.after}
        self._ended = {operation_id: self._env.event() for operation_id in waited_for}
        yield self._env.all_of(
            [self._env.process(self.run(place, operations)) for place, operations in enumerate(streams)]
        )

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
        stretch = 1.0 if self._stretches is None else float(self._stretches[self._order[operation_id]])
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
        topology: as of `run_steps`.
        comm_slowdown: as of `run_steps`.
        drawn: as of `run_steps`.
        make_executor: as of `run_steps`, for all ranks.
    """
    tally = StepSums(topology.world_size)
    spans: tuple[Span, ...] = ()
    longest_s, starts_s = 0.0, np.zeros(topology.world_size)
    met_s = starts_s
    streams = [program for program, _ in steps]
    of_steps = run_steps(streams, topology, comm_slowdown, make_executor, drawn)
    for (streams_of_it, num_steps), ranks in zip(steps, of_steps, strict=True):
        iteration = _as_arrays(streams_of_it, ranks, met_s)
        taken_s = tally.add(iteration, num_steps, num_collectives(streams_of_it))
        if taken_s > longest_s:
            slowest = slowest_rank(iteration.ends_s)
            longest_s, spans = taken_s, _from_zero(tuple(ranks[slowest].spans), float(starts_s[slowest]))
        starts_s, met_s = iteration.ends_s, iteration.met_s
    return tally.timeline(spans, "exact")


def _from_zero(spans: tuple[Span, ...], start_s: float) -> tuple[Span, ...]:
    if not start_s:
        return spans
    return tuple(replace(span, start_s=span.start_s - start_s, end_s=span.end_s - start_s) for span in spans)


def _as_arrays(streams: Streams, ranks: "list[RankStep]", met_s: "FloatArray") -> RanksIteration:
    """Return a step of the exact executor as the grouped one tells its own.

    Args:
        streams: of the step.
        ranks: what the step was on each.
        met_s: when the last collective before the step had ended on each rank [s].
    """
    held_s, last = np.zeros(len(ranks)), np.zeros(len(ranks))
    # When collectives had ended on each rank; first, the last one before the step.
    ended_s = [
        [before_s, *sorted(span.end_s for span in rank.spans if span.stream == "communication")]
        for rank, before_s in zip(ranks, met_s.tolist(), strict=True)
    ]
    for which in collectives_of(streams):
        operation = streams[which.stream][which.position]
        if not isinstance(operation, Communicate) or not operation.schedule.rounds:
            continue
        arrivals_s = [rank.arrivals_s[which] for rank in ranks]
        last_ends_s = np.array(list(map(_last_until, ended_s, arrivals_s)))
        groups = group_order(operation.schedule.group)
        late, by_s = latecomers(groups, np.array(arrivals_s)[groups], last_ends_s[groups])
        held_s[late] += by_s
        last[late] += 1
    return RanksIteration(
        ends_s=np.array([rank.end_s for rank in ranks]),
        busy_s={part: np.array([rank.busy_s.get(part, 0.0) for rank in ranks]) for part in ITERATION_PARTS},
        comm_s=np.array([rank.comm_s for rank in ranks]),
        waits_s=np.array([rank.waits_s for rank in ranks]),
        held_s=held_s,
        last=last,
        met_s=np.array([ends_s[-1] for ends_s in ended_s]),
        off_s=0.0,
        met={},
    )


def _last_until(ends_s: list[float], moment_s: float) -> float:
    """Return the last of these ends before a moment, or at it but for rounding; the first where none is [s]."""
    return ends_s[max(bisect_right(ends_s, moment_s * (1 + SAME_TIME)) - 1, 0)]

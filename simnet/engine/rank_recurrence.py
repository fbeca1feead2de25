"""An iteration of all ranks by a recurrence over its collectives: one stream has all of them, another computes.

Every data-parallel step is such a program, with kernels around its collectives or without, and so are sharded steps and
those of local SGD (`holds_for`). Collectives end in one order on every rank: all ranks go through an operation of the
stream that communicates at once, and what the other stream has done by then is one number a rank. Where both compute at
the same time each has half of the GPU. `grouped_runner` gives the same times for any program, and its spans, from one
end of an operation to the next, which takes several times as long.
"""

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simnet.cluster.topology import Topology
from simnet.engine.grouped_runner import RanksIteration
from simnet.engine.random_factors import Varied
from simnet.engine.rank_collectives import Changes, CollectiveTimes, latecomers
from simnet.engine.rank_times import group_order
from simnet.engine.timeline import ITERATION_PARTS, Streams, TimedOperation
from simnet.strategies.program import Communicate, Compute

if TYPE_CHECKING:
    from simnet.core.bounded_types import FloatArray


def holds_for(streams: Streams, topology: Topology) -> bool:
    """Tell whether a program is of this kind, on links that do not mind what GPUs compute."""
    used = [stream for stream in streams if stream]
    communicating = sum(any(isinstance(one, Communicate) for one in stream) for stream in used)
    return len(used) <= 2 and communicating <= 1 and not topology.compute_slows_links


class Turn(NamedTuple):
    """One operation of the stream that communicates.

    Attributes:
        operation: the operation.
        ready_s: seconds of the other stream that must be done before it begins.
        limit_s: seconds of the other stream that can be done before it has ended, since what follows waits for it.
    """

    operation: TimedOperation
    ready_s: float
    limit_s: float


class TwoStreams:
    """A program of this kind: what its communication goes through, and what its compute adds up to.

    Attributes:
        turns: the operations of the stream that communicates, in order.
        total_s: seconds of the stream that computes.
        ends_s: seconds of it by the end of each of its operations, from 0 on.
        parts_s: of these, the seconds of each part of the iteration.
    """

    def __init__(self, streams: Streams) -> None:
        """Take streams that `holds_for` accepts."""
        places = [place for place, stream in enumerate(streams) if stream]
        sending = [place for place in places if any(isinstance(one, Communicate) for one in streams[place])]
        communicating = next(iter([*sending, *places[1:]]), None)
        computing = next((place for place in places if place != communicating), None)
        compute = [one for one in (() if computing is None else streams[computing]) if isinstance(one, Compute)]
        self.ends_s = list(accumulate((one.seconds for one in compute), initial=0.0))
        self.total_s = self.ends_s[-1]
        self.parts_s = {
            part: list(accumulate((one.seconds * (one.part == part) for one in compute), initial=0.0))
            for part in dict.fromkeys(one.part for one in compute)
        }
        # Up to which operation of the other stream each one waits for.
        awaited = [max((one.position for one in op.after if one.stream == communicating), default=-1) for op in compute]
        self.turns: list[Turn] = []
        held = 0  # the first operation of compute that waits for this turn or a later one
        for position, operation in enumerate(() if communicating is None else streams[communicating]):
            while held < len(compute) and awaited[held] < position:
                held += 1
            needed = max((one.position + 1 for one in operation.after if one.stream == computing), default=0)
            assert needed <= held, "a rank waits for ever"
            self.turns.append(Turn(operation, self.ends_s[needed], self.ends_s[held]))


class RankRecurrence:
    """Runs programs of this kind on all ranks, iteration by iteration, as `GroupedRunner` does."""

    def __init__(self, topology: Topology, comm_slowdown: float) -> None:
        """Take the ranks with their links, and the factor on compute while communication runs, >= 1."""
        self._topology = topology
        self._comm_slowdown = comm_slowdown
        self._changes = Changes(topology)
        self._programs: dict[int, tuple[Streams, TwoStreams]] = {}

    def run(
        self, streams: Streams, starts_s: "FloatArray", varied: Varied, met_s: "FloatArray | None" = None
    ) -> RanksIteration:
        """Run a program once on every rank; arguments as `GroupedRunner.run`."""
        # By identity: to hash a program takes as long as to run it. The program is kept, so that no other gets its id.
        if id(streams) not in self._programs:
            self._programs[id(streams)] = streams, TwoStreams(streams)
        _, program = self._programs[id(streams)]
        before = starts_s, starts_s if met_s is None else met_s
        return _TwoStreamRanks(program, self._topology, self._changes, self._comm_slowdown, before, varied).run()


class _TwoStreamRanks:
    """All ranks while they run."""

    def __init__(  # noqa: PLR0913, PLR0917 - as `RankRecurrence`
        self,
        program: TwoStreams,
        topology: Topology,
        changes: Changes,
        comm_slowdown: float,
        before: "tuple[FloatArray, FloatArray]",
        varied: Varied,
    ) -> None:
        starts_s, self._met_s = before
        world = topology.world_size
        self._program = program
        self._topology = topology
        self._changes = changes
        self._comm_slowdown = comm_slowdown
        self._factor = varied.compute
        self._stretches = varied.collectives
        self._now: FloatArray = starts_s if varied.pauses_s is None else starts_s + varied.pauses_s
        self._done_s = np.zeros(world)  # seconds of the stream that computes, on an idle GPU without a fault
        self._least_done_s = 0.0  # what every rank has done of them
        self._busy_s = {part: np.zeros(world) for part in ITERATION_PARTS}
        self._comm_s, self._waits_s, self._held_s, self._last = (np.zeros(world) for _ in range(4))
        self._collectives: list[CollectiveTimes] = []

    def run(self) -> RanksIteration:
        """Take every rank to its end."""
        number = 0
        for operation, ready_s, limit_s in self._program.turns:
            self._compute_until(ready_s)
            if isinstance(operation, Communicate):
                if operation.schedule.rounds:
                    stretch = 1.0 if self._stretches is None else float(self._stretches[number])
                    self._communicate(operation, stretch, limit_s)
                number += 1
            elif operation.seconds > 0:
                self._share_gpu(operation, limit_s)
        self._compute_until(self._program.total_s)
        for part, seconds in self._program.parts_s.items():
            self._busy_s[part] += seconds[-1] * self._factor
        off_s = sum(one.off_s for one in self._collectives)
        return RanksIteration(
            self._now, self._busy_s, self._comm_s, self._waits_s, self._held_s, self._last, self._met_s, off_s
        )

    def _compute_until(self, ready_s: float) -> None:
        """Let the stream that computes have the GPU until it has done so many seconds."""
        if ready_s <= self._least_done_s:
            return
        self._now = self._now + np.maximum(ready_s - self._done_s, 0.0) * self._factor
        self._done_s = np.maximum(self._done_s, ready_s)
        self._least_done_s = ready_s

    def _share_gpu(self, kernel: Compute, limit_s: float) -> None:
        """Run a kernel, half of the GPU to each stream until one of them has nothing left."""
        kernel_s = kernel.seconds * self._factor
        self._busy_s[kernel.part] += kernel_s
        if limit_s <= self._least_done_s:
            self._now = self._now + kernel_s
            return
        left_s = (limit_s - self._done_s) * self._factor
        self._now = self._now + kernel_s + np.minimum(kernel_s, left_s)
        self._done_s = np.where(left_s <= kernel_s, limit_s, self._done_s + kernel.seconds)

    def _communicate(self, operation: Communicate, stretch: float, limit_s: float) -> None:
        """Meet at a collective; compute goes on meanwhile, more slowly while a rank waits for others, too."""
        arrivals_s, groups = self._now, group_order(operation.schedule.group)
        by_group = arrivals_s[groups]
        starts_s = by_group.max(axis=1)
        late, held_s = latecomers(groups, by_group, self._met_s[groups])
        self._held_s[late] += held_s
        self._last[late] += 1
        times = CollectiveTimes(operation, self._topology, self._changes, stretch)
        self._collectives.append(times)
        begins_s, ends_s = np.empty_like(arrivals_s), np.empty_like(arrivals_s)
        begins_s[groups], ends_s[groups] = starts_s[:, None], times.ends_s(groups, starts_s)
        self._waits_s += begins_s - arrivals_s
        self._comm_s += ends_s - begins_s
        self._now = self._met_s = ends_s
        if limit_s > self._least_done_s:
            self._compute_beside(ends_s - arrivals_s, limit_s)

    def _compute_beside(self, passed_s: "FloatArray", limit_s: float) -> None:
        """Let the stream that computes go on for some time, while communication slows it."""
        pace, before_s = self._factor * self._comm_slowdown, self._done_s
        self._done_s = np.minimum(before_s + passed_s / pace, limit_s)
        if self._comm_slowdown > 1:
            for part, seconds in self._program.parts_s.items():
                had_s, has_s = (np.interp(one, self._program.ends_s, seconds) for one in (before_s, self._done_s))
                self._busy_s[part] += (has_s - had_s) * (pace - self._factor)

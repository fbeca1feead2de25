"""Run a program on ranks that are not alike, all of them at once: what happens on a rank is a column of arrays.

Every rank has a clock of its own. Ranks meet at collectives alone (`meetings`). Between collectives a rank goes from
one end of an operation to the next, its kernels sharing its GPU as `network.gpu_sharing` says. One pass of the loop
takes every rank one end further that may, so that its cost hardly grows with the ranks; `event_runner` gives the same
times send by send.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simnet.cluster.schedule import Group
from simnet.cluster.topology import Topology
from simnet.engine.folded_runner import share_links
from simnet.engine.random_factors import Varied
from simnet.engine.rank_collectives import Changes, CollectiveTimes, Meeting, latecomers
from simnet.engine.result import Span
from simnet.engine.timeline import ITERATION_PARTS, Streams, collectives_of, make_span
from simnet.strategies.program import Communicate, OperationId

if TYPE_CHECKING:
    from simnet.core.bounded_types import BoolArray, FloatArray, IntArray

_SAME_TIME = 1e-12
_NEVER = math.inf


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
        spans: what ran on the watched rank.
    """

    ends_s: "FloatArray"
    busy_s: "dict[str, FloatArray]"
    comm_s: "FloatArray"
    waits_s: "FloatArray"
    held_s: "FloatArray"
    last: "FloatArray"
    met_s: "FloatArray"
    off_s: float
    spans: tuple[Span, ...] = ()


class GroupedRunner:
    """Runs a program on all ranks, iteration by iteration."""

    def __init__(self, topology: Topology, comm_slowdown: float) -> None:
        """Take the ranks with their links, and the factor on compute while communication runs, >= 1."""
        self._topology = topology
        self._comm_slowdown = comm_slowdown
        self._changes = Changes(topology)

    def run(
        self,
        streams: Streams,
        starts_s: "FloatArray",
        varied: Varied,
        met_s: "FloatArray | None" = None,
        watched: int | None = None,
    ) -> RanksIteration:
        """Run a program once on every rank.

        Args:
            streams: of the program, every kernel timed.
            starts_s: when each rank begins [s].
            varied: what the iteration meets.
            met_s: when the last collective of each rank had ended [s]; by default when it begins.
            watched: rank whose spans are kept.
        """
        before = starts_s, starts_s if met_s is None else met_s
        ranks = _RankColumns(streams, self._topology, self._changes, self._comm_slowdown, before, varied, watched)
        return ranks.run()


class _RankColumns:
    """All ranks while they run; arrays are over ranks, or over streams and ranks."""

    def __init__(  # noqa: PLR0913, PLR0917 - as `GroupedRunner`
        self,
        streams: Streams,
        topology: Topology,
        changes: Changes,
        comm_slowdown: float,
        before: "tuple[FloatArray, FloatArray]",
        varied: Varied,
        watched: int | None,
    ) -> None:
        starts_s, met_s = before
        shape = len(streams), topology.world_size
        self._streams = streams
        self._topology = topology
        self._changes = changes
        self._comm_slowdown = comm_slowdown
        self._compute_factor = varied.compute
        self._stretches = varied.collectives
        self._watched = watched
        self._numbers = {one: number for number, one in enumerate(collectives_of(streams))}
        self._uninterrupted_s = [_uninterrupted_s(stream) for stream in streams]
        self._now: FloatArray = starts_s.copy() if varied.pauses_s is None else starts_s + varied.pauses_s
        self._position = np.zeros(shape, dtype=np.intp)  # operations of each stream that have ended
        self._is_running = np.zeros(shape, dtype=bool)
        self._left_s = np.full(shape, _NEVER)  # of the kernel of each stream, on a GPU of its own
        self._share_s = np.zeros(shape)  # seconds of the GPU that this kernel has had
        self._comm_end_s = np.full(shape, _NEVER)
        self._communicating = np.zeros(shape[1], dtype=np.intp)
        self._meetings: dict[OperationId, Meeting] = {}
        self._open: dict[OperationId, Meeting] = {}  # those of which some group has not begun
        self._began_s = np.zeros(shape)
        self._spans: list[Span] = []
        self._busy_s: dict[str, FloatArray] = {part: np.zeros(shape[1]) for part in ITERATION_PARTS}
        self._comm_s, self._waits_s, self._held_s, self._last = (np.zeros(shape[1]) for _ in range(4))
        self._met_s = met_s.copy()
        self._off_s = 0.0

    def run(self) -> RanksIteration:
        """Take every rank to its end."""
        self._start_all()
        while self._advance():
            self._start_all()
        lengths = np.array([[len(stream)] for stream in self._streams])
        assert (self._position == lengths).all(), "a rank waits for ever"
        off_s = self._off_s + sum(meeting.times.off_s for meeting in self._meetings.values())
        return RanksIteration(
            self._now,
            self._busy_s,
            self._comm_s,
            self._waits_s,
            self._held_s,
            self._last,
            self._met_s,
            off_s,
            tuple(self._spans),
        )

    def _start_all(self) -> None:
        """Start every operation that can start."""
        has_ended = True
        while has_ended:
            has_ended = False  # an operation without duration ends at once and may release others
            for stream, operations in enumerate(self._streams):
                idle = ~self._is_running[stream] & (self._position[stream] < len(operations))
                for position, ranks in self._at_positions(stream, idle):
                    has_ended |= self._start(OperationId(stream, position), ranks)
        for which, meeting in self._open.items():
            groups = meeting.complete_groups()
            if len(groups):
                self._begin(which, meeting, groups)
        self._open = {which: meeting for which, meeting in self._open.items() if not meeting.is_over}

    def _at_positions(self, stream: int, ranks: "BoolArray") -> Iterator[tuple[int, "BoolArray"]]:
        """Yield each position that some ranks have reached in a stream, with those that have."""
        number = np.count_nonzero(ranks)
        if not number:
            return
        reached = self._position[stream]
        there = reached if number == len(ranks) else reached[ranks]
        first, last = int(there.min()), int(there.max())
        if first == last:
            yield first, ranks
            return
        for position in range(first, last + 1):
            here = ranks & (reached == position)
            if np.count_nonzero(here):
                yield position, here

    def _start(self, which: OperationId, ranks: "BoolArray") -> bool:
        """Start an operation on those of some ranks that may; tell whether it has ended at once."""
        stream, position = which
        operation = self._streams[stream][position]
        for waited in operation.after:
            ranks = ranks & (self._position[waited.stream] > waited.position)
        if operation.after and not np.count_nonzero(ranks):
            return False
        if not (operation.schedule.rounds if isinstance(operation, Communicate) else operation.seconds > 0):
            self._position[stream] += ranks
            return True
        if isinstance(operation, Communicate):
            self._arrive(which, operation, ranks)
        else:
            np.copyto(self._left_s[stream], operation.seconds * self._compute_factor, where=ranks)
            if self._watched is not None:
                np.copyto(self._began_s[stream], self._now, where=ranks)
        self._is_running[stream] |= ranks
        return False

    def _arrive(self, which: OperationId, operation: Communicate, ranks: "BoolArray") -> None:
        if which not in self._meetings:
            stretch = 1.0 if self._stretches is None else float(self._stretches[self._numbers[which]])
            times = CollectiveTimes(operation, self._topology, self._changes, stretch)
            self._meetings[which] = self._open[which] = Meeting(times, self._topology.world_size)
        self._meetings[which].arrive(ranks, self._now)
        self._communicating += ranks

    def _begin(self, which: OperationId, meeting: Meeting, groups: "IntArray") -> None:
        """Begin a collective in groups whose ranks have all arrived, one a row."""
        arrivals_s = meeting.arrivals_s(groups)
        starts_s = arrivals_s.max(axis=1)
        self._waits_s[groups] += starts_s[:, None] - arrivals_s
        late, held_s = latecomers(groups, arrivals_s, self._met_s[groups])
        self._held_s[late] += held_s
        self._last[late] += 1
        computing_s = self._computing_s() if self._topology.compute_slows_links else None
        ends_s = meeting.times.ends_s(groups, starts_s, computing_s)
        group = meeting.times.operation.schedule.group
        ends_s = ends_s + self._beside_others_s(which, group, groups, starts_s, ends_s)
        self._comm_end_s[which.stream][groups] = ends_s
        self._began_s[which.stream][groups] = starts_s[:, None]
        self._comm_s[groups] += ends_s - starts_s[:, None]

    def _beside_others_s(
        self, which: OperationId, group: Group, groups: "IntArray", starts_s: "FloatArray", ends_s: "FloatArray"
    ) -> "FloatArray":
        """Return how much longer ranks take since other streams use the same links; the others take longer, too.

        Both get half of the links until the shorter one ends, as of two flows without latency.
        """
        longer_s = np.zeros(groups.shape)
        for other in range(len(self._streams)):
            running = self._comm_end_s[other][groups]
            if other == which.stream or not (np.isfinite(running) & (running > starts_s[:, None])).any():
                continue
            positions = set(self._position[other][groups].ravel().tolist())
            found = (self._streams[other][one] for one in positions if one < len(self._streams[other]))
            if not any(isinstance(one, Communicate) and share_links(one.schedule.group, group) for one in found):
                continue
            together_s = np.minimum(running - starts_s[:, None], ends_s - starts_s[:, None])
            together_s = np.where(np.isfinite(running), np.maximum(together_s, 0.0), 0.0)
            longer_s += together_s
            self._comm_end_s[other][groups] += together_s
            self._comm_s[groups] += together_s
            self._off_s += float(together_s.max())
        return longer_s

    def _computing_s(self) -> "FloatArray":
        """Return for how long the GPU of each rank goes on to compute if nothing else happens [s]."""
        found = np.zeros(len(self._now))
        for stream, following_s in enumerate(self._uninterrupted_s):
            left_s = np.where(np.isfinite(self._left_s[stream]), self._left_s[stream], 0.0)
            left_s += np.where(left_s > 0, following_s[self._position[stream]] * self._compute_factor, 0.0)
            found = np.maximum(found, left_s)
        return found * self._comm_slowdown

    def _advance(self) -> bool:
        """Take every rank that may to its next end of an operation; tell whether there was one."""
        kernels = np.isfinite(self._left_s)
        number = kernels.sum(axis=0)
        # A kernel has an equal part of its GPU, and all are slower while communication runs.
        shared = np.maximum(number, 1)
        pace = (
            shared if self._comm_slowdown == 1 else shared * np.where(self._communicating > 0, self._comm_slowdown, 1.0)
        )
        least_s = self._left_s.min(axis=0)
        kernel_end_s = self._now + np.maximum(least_s, 0.0) * pace
        next_s = np.minimum(kernel_end_s, self._comm_end_s.min(axis=0))
        goes = np.isfinite(next_s) & self._may_go(next_s)
        if not np.count_nonzero(goes):
            return False
        passed_s = np.zeros(len(goes))
        np.subtract(next_s, self._now, out=passed_s, where=goes)
        np.copyto(self._now, next_s, where=goes)
        np.add(self._share_s, passed_s / shared, out=self._share_s, where=kernels)
        before = self._left_s
        self._left_s = before - passed_s / pace
        # At one instant kernels end before collectives.
        by_kernel = goes & (kernel_end_s <= next_s)
        self._end_kernels(kernels & by_kernel & (before <= least_s + _SAME_TIME * self._now))
        self._end_collectives(goes & ~by_kernel)
        return True

    def _may_go(self, next_s: "FloatArray") -> "BoolArray":
        """Tell which ranks may go to their next end: those that no collective can reach before.

        A rank that waits for its group does not know yet when the collective ends. It cannot be before any rank that is
        still missing could arrive; and what comes first of all can come now.
        """
        waiting = [meeting for meeting in self._open.values() if np.count_nonzero(meeting.waiting)]
        if not waiting:
            return np.ones(len(next_s), dtype=bool)
        is_waiting = np.logical_or.reduce([meeting.waiting for meeting in waiting])
        at_least_s = np.where(is_waiting | ~np.isfinite(next_s), self._now, next_s)
        limit_s = np.full(len(next_s), _NEVER)
        for meeting in waiting:
            bounds = meeting.earliest_starts_s(at_least_s)
            limit_s = np.where(meeting.waiting, np.minimum(limit_s, bounds), limit_s)
        return np.asarray(next_s <= np.maximum(limit_s, next_s.min()))

    def _end_kernels(self, ended: "BoolArray") -> None:
        for stream, ranks in enumerate(ended):
            if not np.count_nonzero(ranks):
                continue
            for position, here in self._at_positions(stream, ranks):
                operation = self._streams[stream][position]
                assert not isinstance(operation, Communicate)
                busy_s = self._busy_s[operation.part]
                np.add(busy_s, self._share_s[stream], out=busy_s, where=here)
                self._keep_span(OperationId(stream, position), here)
            np.copyto(self._share_s[stream], 0.0, where=ranks)
            np.copyto(self._left_s[stream], _NEVER, where=ranks)
            self._end(stream, ranks)

    def _end_collectives(self, ranks: "BoolArray") -> None:
        for stream in range(len(self._streams)):
            ended = ranks & (self._comm_end_s[stream] <= self._now)
            if not np.count_nonzero(ended):
                continue
            for position, here in self._at_positions(stream, ended):
                self._keep_span(OperationId(stream, position), here)
            np.copyto(self._comm_end_s[stream], _NEVER, where=ended)
            np.copyto(self._met_s, self._now, where=ended)
            self._communicating -= ended
            self._end(stream, ended)

    def _end(self, stream: int, ranks: "BoolArray") -> None:
        self._is_running[stream] &= ~ranks
        self._position[stream] += ranks

    def _keep_span(self, which: OperationId, ranks: "BoolArray") -> None:
        rank = self._watched
        if rank is not None and ranks[rank] and self._now[rank] > self._began_s[which.stream][rank]:
            operation = self._streams[which.stream][which.position]
            began_s, now_s = float(self._began_s[which.stream][rank]), float(self._now[rank])
            self._spans.append(make_span(operation, which, began_s, now_s, rank))


def _uninterrupted_s(operations: "tuple[object, ...]") -> "FloatArray":
    """Return for each operation the seconds of the kernels after it that follow without waiting for anything."""
    found = np.zeros(len(operations) + 1)
    for position in range(len(operations) - 2, -1, -1):
        following = operations[position + 1]
        waits = isinstance(following, Communicate) or bool(getattr(following, "after", ()))
        found[position] = 0.0 if waits else getattr(following, "seconds", 0.0) + found[position + 1]
    return found

"""The input of a runner, a program with the time of every kernel, and its output, the timeline of one iteration."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import get_args

from msgspec import Struct
from msgspec.structs import replace

from simnet.engine.result import Breakdown, RankWaits, Span
from simnet.strategies.program import Communicate, Compute, IterationPart, Operation, OperationId, Waiting

TimedOperation = Compute | Communicate
Streams = tuple[tuple[TimedOperation, ...], ...]
ITERATION_PARTS = get_args(IterationPart)
PARTS_ON_GPU = (*ITERATION_PARTS, *get_args(Waiting))


class Timeline(Struct, frozen=True, kw_only=True):
    """The mean time of an iteration on the slowest rank [s], and what ran there.

    Attributes:
        iteration_s: of all iterations that were simulated, or of the one.
        breakdown: where it went.
        comm_s: what communication took of it.
        spans: of the longest iteration.
        inner: one of further steps, if any.
        iterations_s: every iteration where several were simulated; empty: the one.
        waits: how long ranks waited for each other, where they are not alike.
        off_s: by how much the mean may be off that of the exact executor.
        fidelity: the executor, where the scenario did not decide.
    """

    iteration_s: float
    breakdown: Breakdown
    comm_s: float
    spans: tuple[Span, ...]
    inner: "Timeline | None" = None
    iterations_s: tuple[float, ...] = ()
    waits: RankWaits | None = None
    off_s: float = 0.0
    fidelity: str = ""

    @property
    def overlap(self) -> float:
        """The fraction of communication that compute hid, 0 if there was no communication."""
        if self.comm_s <= 0:
            return 0.0
        return min(max(1 - self.breakdown.exposed_comm_s / self.comm_s, 0.0), 1.0)

    @property
    def longest_pause_s(self) -> float:
        """The longest time in which the GPU of the slowest rank does nothing [s]."""
        of_ranks: dict[int, list[Span]] = defaultdict(list)
        for span in self.spans:
            of_ranks[span.rank].append(span)
        # Steps that are all alike may wait inside, too, as the ranks of a node for each other.
        of_alike_s = self.inner.longest_pause_s if self.inner else 0.0
        return max(of_alike_s, *map(_longest_gap, of_ranks.values()))

    def of_period(self, num_steps: int, number: int, inner: "Timeline | None") -> "Timeline":
        """Return the mean step of a period; spans stay those of these steps.

        Args:
            num_steps: of the period.
            number: of further steps in it that are alike.
            inner: one of these; None if there are none.
        """

        def mean(name: str) -> float:
            value = attrgetter(name)
            return float((value(self) + (number * value(inner) if inner else 0.0)) / num_steps)

        return replace(
            self,
            iteration_s=mean("iteration_s"),
            breakdown=Breakdown(**{part: mean(f"breakdown.{part}") for part in Breakdown.__struct_fields__}),
            comm_s=mean("comm_s"),
            off_s=mean("off_s"),
            inner=inner,
        )


def collectives_of(streams: Sequence[Sequence[Operation]]) -> Iterator[OperationId]:
    """Yield every collective of a program, stream by stream: the order in which they are drawn."""
    for stream, operations in enumerate(streams):
        for position, operation in enumerate(operations):
            if isinstance(operation, Communicate):
                yield OperationId(stream, position)


def num_collectives(streams: Sequence[Sequence[Operation]]) -> int:
    """Return how many these are."""
    return sum(1 for _ in collectives_of(streams))


def _longest_gap(spans: list[Span]) -> float:
    """Return the longest time without work of the GPU between the first and the last end of what ran on a rank [s]."""
    longest_s, busy_until_s = 0.0, 0.0
    # By their start: kernels of two streams overlap, and a gap is where none of them runs.
    for span in sorted((span for span in spans if span.stream == "compute"), key=lambda span: span.start_s):
        longest_s = max(longest_s, span.start_s - busy_until_s)
        busy_until_s = max(busy_until_s, span.end_s)
    return max(longest_s, max(span.end_s for span in spans) - busy_until_s)


def make_timeline(end_s: float, busy_s: Mapping[str, float], spans: Sequence[Span]) -> Timeline:
    """Return the timeline of one rank.

    Args:
        end_s: when its last operation ended.
        busy_s: seconds of its GPU by part of the iteration; the rest of the iteration is exposed communication.
        spans: what ran on it.
    """
    parts = {f"{part}_s": busy_s.get(part, 0.0) for part in ITERATION_PARTS}
    # What is no work of the GPU is waiting for messages. Sums of parts may exceed the end by rounding.
    exposed_s = max(end_s - sum(parts.values()), 0.0)
    return Timeline(
        iteration_s=end_s,
        breakdown=Breakdown(exposed_comm_s=exposed_s, **parts),
        comm_s=sum(span.end_s - span.start_s for span in spans if span.stream == "communication"),
        spans=tuple(spans),
    )


def make_span(operation: Operation, which: OperationId, start_s: float, end_s: float, rank: int = 0) -> Span:
    """Return the span of an operation, which has this place in its program."""
    if isinstance(operation, Communicate):
        return Span(
            stream="communication",
            name=operation.schedule.collective,
            algorithm=operation.schedule.label,
            start_s=start_s,
            end_s=end_s,
            rank=rank,
            bucket=operation.bucket,
            message_bytes=operation.message_bytes,
            operation=which,
        )
    name = operation.name or operation.part
    return Span(
        stream="compute",
        name=name,
        start_s=start_s,
        end_s=end_s,
        rank=rank,
        bucket=operation.bucket,
        operation=which,
    )

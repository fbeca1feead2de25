"""What a runner takes, a program whose seconds are known, and what it leaves: what one iteration took."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from simnet.program import Communicate, Compute
from simnet.result import Breakdown, Span

TimedOperation = Compute | Communicate
"""An operation whose seconds are known."""
Streams = tuple[tuple[TimedOperation, ...], ...]
PARTS = ("forward", "backward", "encode", "decode", "optimizer")


class Timeline(Struct, frozen=True, kw_only=True):
    """What an iteration took on its slowest rank [s], and what ran there."""

    iteration_s: float
    breakdown: Breakdown
    comm_s: float
    spans: tuple[Span, ...]

    @property
    def overlap(self) -> float:
        """The part of communication that ran beside compute, 0 if there was no communication."""
        if self.comm_s <= 0:
            return 0.0
        return min(max(1 - self.breakdown.exposed_comm_s / self.comm_s, 0.0), 1.0)


def make_timeline(end_s: float, busy_s: Mapping[str, float], spans: Sequence[Span]) -> Timeline:
    """Return the timeline of one rank.

    Args:
        end_s: when its last operation ended.
        busy_s: seconds of its GPU by part of the iteration; what they leave of the iteration is exposed communication.
        spans: what ran there.
    """
    parts = {f"{part}_s": busy_s.get(part, 0.0) for part in PARTS}
    exposed_s = max(end_s - sum(parts.values()), 0.0)
    return Timeline(
        iteration_s=end_s,
        breakdown=Breakdown(exposed_comm_s=exposed_s, **parts),
        comm_s=sum(make_span.end_s - make_span.start_s for make_span in spans if make_span.stream == "communication"),
        spans=tuple(spans),
    )


def make_span(operation: TimedOperation, start_s: float, end_s: float, rank: int = 0) -> Span:
    """Return what an operation leaves in the timeline."""
    if isinstance(operation, Communicate):
        return Span(
            stream="communication",
            name=operation.schedule.collective,
            algorithm=operation.schedule.algorithm,
            start_s=start_s,
            end_s=end_s,
            rank=rank,
            bucket=operation.bucket,
            message_bytes=operation.message_bytes,
        )
    name = operation.name or operation.part
    return Span(stream="compute", name=name, start_s=start_s, end_s=end_s, rank=rank, bucket=operation.bucket)

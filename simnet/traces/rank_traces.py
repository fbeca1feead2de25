"""The steps of one rank in its trace of torch.profiler: compute, the rest of the step, and its collectives.

With a GPU a step is what the CPU launched in it, and compute is where kernels ran. Without one, compute is the step
less the time in collectives that no operator hides.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simnet.core.errors import SimnetError
from simnet.traces import kineto, kineto_events
from simnet.traces.kineto_events import Span, TracedRank, TraceEvent, TraceHeader

OF_ALL = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier", re.IGNORECASE)
"""Names of collectives that end on no rank before all have come."""
_AGAIN = "profile every rank with torch.profiler after init_process_group"


@dataclass(frozen=True, kw_only=True)
class SentCollective:
    """A collective of a step on one rank.

    Attributes:
        name: as the trace has it.
        ranks: of its process group; () where the trace does not say them.
        number: among those of this name and group in the step, from 0.
        span: when it ran on this rank, by the clock of its node [s].
    """

    name: str
    ranks: tuple[int, ...]
    number: int
    span: Span


@dataclass(frozen=True, kw_only=True)
class RankTraceStep:
    """A step of a rank; `own_s` is its time less what it waited in collectives, `compute_s` where it computed [s]."""

    name: str
    compute_s: float
    own_s: float
    sent: tuple[SentCollective, ...]


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """The trace of a rank.

    Attributes:
        where: the file, as messages call it.
        rank: its number.
        world_size: ranks of the run.
        host: name of its machine; "" where the trace does not say it.
        num_gpus: GPUs of its machine; 0 without any.
        span: from its first step to its last, since 1970 [s].
        steps: in order.
    """

    where: str
    rank: int
    world_size: int
    host: str
    num_gpus: int
    span: Span
    steps: tuple[RankTraceStep, ...]


def parse(data: Mapping[str, Any], path: Path) -> RankTrace:
    """Return the steps of a rank.

    Raises:
        SimnetError: the trace does not say its rank, has no steps, or an event of another form.
    """
    about = kineto_events.header(data, path)
    if about.distributed is None:
        raise SimnetError(f"{path}: distributedInfo: missing: must say the rank; {_AGAIN}")
    if about.distributed.rank >= about.distributed.world_size:
        raise SimnetError(
            f"{path}: distributedInfo: rank {about.distributed.rank} of {about.distributed.world_size}: must be below "
            f"that; {_AGAIN}"
        )
    events = kineto_events.events(data, path)
    marks = kineto_events.steps(events, path)
    on_gpu = any(event.category == "kernel" for event in events)
    start_s = about.base_ns * 1e-9
    return RankTrace(
        where=str(path),
        rank=about.distributed.rank,
        world_size=about.distributed.world_size,
        host=about.host,
        num_gpus=len(about.devices) if on_gpu else 0,
        span=(start_s + marks[0].start_s, start_s + marks[-1].end_s),
        steps=_steps(events, marks, about, path, on_gpu=on_gpu),
    )


def _steps(
    events: Sequence[TraceEvent], marks: Sequence[TraceEvent], about: TraceHeader, path: Path, *, on_gpu: bool
) -> tuple[RankTraceStep, ...]:
    found: list[RankTraceStep] = []
    ended_s: float | None = None
    for mark, inside in zip(marks, _by_step(events, marks, on_gpu=on_gpu), strict=True):
        sent = [event for event in inside if kineto_events.is_communication(event, on_gpu=on_gpu)]
        computed = kineto_events.union(event for event in inside if kineto_events.is_compute(event, on_gpu=on_gpu))
        whole = _on_gpu([*computed, *map(_span, sent)], ended_s) if on_gpu and computed else _span(mark)
        own_s = whole[1] - whole[0] - _exposed_s(sent, computed, whole)
        compute_s = kineto_events.length(computed) if on_gpu else own_s
        if not computed or compute_s <= 0:
            raise SimnetError(f"{path}: {mark.name}: nothing was computed in it; profile whole training steps")
        found.append(
            RankTraceStep(
                name=mark.name, compute_s=compute_s, own_s=max(own_s, compute_s), sent=_collectives(sent, about)
            )
        )
        ended_s = whole[1]
    return tuple(found)


def _by_step(events: Sequence[TraceEvent], marks: Sequence[TraceEvent], *, on_gpu: bool) -> list[list[TraceEvent]]:
    """Return the events of each step: of a GPU those that were launched in it, else those that start in it."""
    launched = kineto_events.launch_times(events) if on_gpu else {}
    starts = [mark.start_s for mark in marks]
    found: list[list[TraceEvent]] = [[] for _ in marks]
    for event in events:
        if on_gpu and event.category != "kernel":
            continue
        began_s = launched.get(kineto_events.number(event.args, "correlation"), event.start_s)
        place = bisect_right(starts, began_s) - 1
        if place >= 0 and began_s < marks[place].end_s:
            found[place].append(event)
    return found


def _span(event: TraceEvent) -> Span:
    return event.start_s, event.end_s


def _on_gpu(ran: Sequence[Span], ended_s: float | None) -> Span:
    """Return a step on the clock of the GPU: from the end of the step before it, if there is one, to its own end."""
    first_s, last_s = min(start for start, _ in ran), max(end for _, end in ran)
    return (first_s if ended_s is None else min(ended_s, last_s)), last_s


def _exposed_s(sent: Sequence[TraceEvent], computed: Sequence[Span], whole: Span) -> float:
    """Return how long a step was in collectives and did not compute [s]."""
    spans = [(max(event.start_s, whole[0]), min(event.end_s, whole[1])) for event in sent]
    spans = [(start, end) for start, end in spans if start < end]
    both = kineto_events.union_of_spans([*spans, *computed])
    return kineto_events.length(both) - kineto_events.length(computed)


def _collectives(sent: Sequence[TraceEvent], about: TraceHeader) -> tuple[SentCollective, ...]:
    """Return the collectives at which all ranks of a group wait for each other, in the order of their start."""
    counts: Counter[tuple[str, tuple[int, ...]]] = Counter()
    found = []
    for event in sorted(sent, key=lambda one: one.start_s):
        name, ranks = kineto.traced_collective(event).name, _group(event, about)
        if OF_ALL.search(name):
            found.append(SentCollective(name=name, ranks=ranks, number=counts[name, ranks], span=_span(event)))
            counts[name, ranks] += 1
    return tuple(found)


def _group(event: TraceEvent, about: TraceHeader) -> tuple[int, ...]:
    """Return the ranks of a collective's process group; () where the trace does not say them."""
    distributed = about.distributed or TracedRank()
    known = {one.pg_name: one.ranks for one in distributed.pg_config}
    named = known.get(str(event.args.get("Process Group Name", ""))) or kineto_events.ranks_of(
        event.args.get("Process Group Ranks")
    )
    if named:
        return tuple(sorted(named))
    everyone = tuple(range(distributed.world_size))
    size = kineto_events.number(event.args, "Group size")
    # gloo does not name the group: where all groups have the same ranks, it must be these.
    several = {tuple(sorted(ranks)) for ranks in known.values() if len(ranks) > 1} or {everyone}
    if size == distributed.world_size:
        return everyone
    return next(iter(several)) if len(several) == 1 and not size else ()

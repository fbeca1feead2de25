"""The traces of all ranks of a run, put side by side: who came last at which collective, by clocks that may differ.

With a GPU a step is what the CPU launched in it, and compute is where kernels ran. Without one, compute is the step
less the time in collectives that no operator hides.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from simnet.calibration.fit import counted
from simnet.calibration.rank_samples import MetCollective, RankSamples, met
from simnet.core.errors import SimnetError
from simnet.traces import kineto
from simnet.traces.kineto import Event, Span, Trace

SLACK_S = 60.0
"""By how much clocks of nodes may differ."""
MOST_UNMATCHED = 0.5
"""Part of the collectives that may lack ranks; more are those of another run."""
OF_ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives that end on no rank before all have come."""
_AGAIN = "profile every rank with torch.profiler after init_process_group"
_ONE_RUN = "must be traces of one run; give those of all its ranks, and no others"
Key = tuple[str, tuple[int, ...], int]
"""Name of a collective, ranks of its group, and its number among these in a step."""


@dataclass(frozen=True, kw_only=True)
class RankTraceStep:
    """A step of a rank.

    Attributes:
        name: of its mark.
        compute_s: how long the rank computed [s].
        own_s: the step less what it waited in collectives [s].
        sent: when each collective ran, by the clock of the rank's node [s].
        num_unknown: collectives whose process group the trace does not say.
    """

    name: str
    compute_s: float
    own_s: float
    sent: dict[Key, Span]
    num_unknown: int


def samples_of(traces: Sequence[Trace], ranks_per_node: int | None) -> RankSamples:
    """Return the steps of all ranks of a run.

    Args:
        traces: one of every rank.
        ranks_per_node: ranks of a node; None to find them in the traces.

    Raises:
        SimnetError: a rank is missing or comes twice, the traces are of different runs or steps, or do not say which
            ranks share a node.
    """
    in_order = sorted(traces, key=lambda trace: trace.rank)
    for trace in in_order:
        _check_rank(trace)
    _check_one_run(in_order)
    steps = [steps_of(trace) for trace in in_order]
    _check_steps(in_order, steps)
    per_node = ranks_per_node if ranks_per_node is not None else _ranks_per_node(in_order)
    if in_order[0].world_size % per_node:
        raise SimnetError(
            f"--ranks-per-node {per_node}: the traces are of {in_order[0].world_size} ranks: must divide that; give "
            "the ranks of a node"
        )
    collectives, notes = _collectives(in_order, steps)
    others = f" and {len(traces) - 1} others" if len(traces) > 1 else ""
    return RankSamples(
        where=f"{traces[0].where}{others}",
        ranks_per_node=per_node,
        compute_s=np.array([[step.compute_s for step in of_rank] for of_rank in steps]),
        own_s=np.array([[step.own_s for step in of_rank] for of_rank in steps]),
        collectives=collectives,
        notes=notes,
    )


def _check_rank(trace: Trace) -> None:
    about = trace.about.distributed
    if about is None:
        raise SimnetError(f"{trace.where}: distributedInfo: missing: must say the rank; {_AGAIN}")
    if about.rank >= about.size:
        raise SimnetError(
            f"{trace.where}: distributedInfo: rank {about.rank} of {about.size}: must be below that; {_AGAIN}"
        )


def _check_one_run(traces: Sequence[Trace]) -> None:
    """Refuse traces that are not one of every rank of one run; they come in the order of their ranks."""
    first = traces[0]
    spans = [_since_1970(trace) for trace in traces]
    for trace, span in zip(traces[1:], spans[1:], strict=True):
        if trace.world_size != first.world_size:
            sizes = f"{trace.world_size} ranks, and {first.where} of {first.world_size}"
            raise SimnetError(f"{trace.where}: of {sizes}: {_ONE_RUN}")
        # Runs one after the other have the same ranks and steps: only their clocks tell them apart.
        apart_s = max(span[0] - spans[0][1], spans[0][0] - span[1])
        if apart_s > SLACK_S:
            raise SimnetError(f"{trace.where}: {apart_s:.0f} s from {first.where}: {_ONE_RUN}")
    for before, trace in pairwise(traces):
        if trace.rank == before.rank:
            raise SimnetError(
                f"{trace.where}: rank {trace.rank}, as {before.where}: must be one trace a rank; {_ONE_RUN}"
            )
    missing = sorted(set(range(first.world_size)) - {trace.rank for trace in traces})
    if missing and len(traces) > 1:
        what = f"rank {missing[0]} of {first.world_size} is missing"
        raise SimnetError(f"{first.where}: {what}: must be one trace of every rank; add it")
    if missing:
        raise SimnetError(
            f"{first.where}: rank {first.rank} of {first.world_size} alone: a slow rank shows in comparison with "
            "others; give the traces of all ranks, or their folder"
        )


def _since_1970(trace: Trace) -> Span:
    """Return from when to when the steps of a trace went [s]."""
    start_s = trace.about.base_ns * 1e-9
    return start_s + trace.marks[0].start_s, start_s + trace.marks[-1].end_s


def _check_steps(traces: Sequence[Trace], steps: Sequence[Sequence[RankTraceStep]]) -> None:
    first = traces[0]
    for trace, of_rank in zip(traces[1:], steps[1:], strict=True):
        if len(of_rank) != len(steps[0]):
            raise SimnetError(
                f"{trace.where}: {len(of_rank)} steps, {first.where} has {len(steps[0])}: must be as many; profile "
                "the same steps of every rank"
            )
        for step, its in zip(of_rank, steps[0], strict=True):
            if step.name != its.name:
                raise SimnetError(
                    f"{trace.where}: {step.name} where {first.where} has {its.name}: must be the same; profile the "
                    "same steps of every rank"
                )


def _ranks_per_node(traces: Sequence[Trace]) -> int:
    """Return the ranks of a node by the names of machines, or else by their GPUs."""
    first = traces[0]
    hosts = [trace.about.host for trace in traces]
    num_gpus = len(first.about.devices) if first.on_gpu else 0
    if all(hosts):
        per_node = hosts.count(hosts[0])
        # Launchers number the ranks node by node: else a node is no block, and the traces do not say it.
        blocks = [set(hosts[start : start + per_node]) for start in range(0, len(hosts), per_node)]
        if len(set(hosts)) * per_node == len(hosts) and all(len(block) == 1 for block in blocks):
            return per_node
    elif num_gpus and first.world_size % num_gpus == 0:
        return num_gpus
    raise SimnetError(f"{first.where}: does not say which ranks share a node: give --ranks-per-node")


def steps_of(trace: Trace) -> tuple[RankTraceStep, ...]:
    """Return the steps of a rank.

    Raises:
        SimnetError: nothing was computed in a step, or nothing says which kernels are of which step.
    """
    trace.check_launches()
    steps: list[RankTraceStep] = []
    ended_s: float | None = None
    for mark, inside in zip(trace.marks, _by_step(trace), strict=True):
        sent = sorted((event for event in inside if event.collective is not None), key=lambda event: event.start_s)
        computed = kineto.union(event for event in inside if kineto.is_compute(event, on_gpu=trace.on_gpu))
        whole = mark.start_s, mark.end_s
        if trace.on_gpu and computed:
            # On the clock of the GPU: from the end of the step before it, if there is one, to its own end.
            ran = [*computed, *((event.start_s, event.end_s) for event in sent)]
            last_s = max(end for _, end in ran)
            whole = (min(start for start, _ in ran) if ended_s is None else min(ended_s, last_s)), last_s
        waits = [(max(event.start_s, whole[0]), min(event.end_s, whole[1])) for event in sent]
        both = kineto.union_of_spans([*(span for span in waits if span[0] < span[1]), *computed])
        exposed_s = kineto.length(both) - kineto.length(computed)
        own_s = whole[1] - whole[0] - exposed_s
        # On a CPU operators do not cover what Python does between them.
        compute_s = kineto.length(computed) if trace.on_gpu else own_s
        if not computed or compute_s <= 0:
            raise SimnetError(f"{trace.where}: {mark.name}: nothing was computed in it; profile whole training steps")
        spans, num_unknown = _sent(sent, trace)
        steps.append(
            RankTraceStep(
                name=mark.name,
                compute_s=compute_s,
                own_s=max(own_s, compute_s),
                sent=spans,
                num_unknown=num_unknown,
            )
        )
        ended_s = whole[1]
    return tuple(steps)


def _by_step(trace: Trace) -> list[list[Event]]:
    """Return the events of each step: of a GPU those that were launched in it, else those that start in it."""
    starts = [mark.start_s for mark in trace.marks]
    by_step: list[list[Event]] = [[] for _ in starts]
    for event in trace.events:
        # What a CPU does while it launches hides behind its GPU.
        if trace.on_gpu and event.category not in kineto.KERNELS:
            continue
        place = bisect_right(starts, event.launched_s) - 1
        if place >= 0 and event.launched_s < trace.marks[place].end_s:
            by_step[place].append(event)
    return by_step


def _sent(sent: Sequence[Event], trace: Trace) -> tuple[dict[Key, Span], int]:
    """Return the collectives at which all ranks of a group wait for each other, and how many are of an unknown one."""
    counts: Counter[tuple[str, tuple[int, ...]]] = Counter()
    spans: dict[Key, Span] = {}
    num_unknown = 0
    for event in sent:
        assert event.collective is not None
        kind = event.collective.kind
        if kind not in OF_ALL:
            continue
        ranks = tuple(sorted(trace.distributed.ranks_of(event.collective, trace.world_size)))
        num_unknown += not ranks
        if len(ranks) > 1:
            spans[kind, ranks, counts[kind, ranks]] = event.start_s, event.end_s
            # The same collective comes several times in a step, in the same order on all ranks.
            counts[kind, ranks] += 1
    return spans, num_unknown


def _collectives(
    traces: Sequence[Trace], steps: Sequence[Sequence[RankTraceStep]]
) -> tuple[tuple[MetCollective, ...], tuple[str, ...]]:
    """Return the collectives at which ranks met, and a note on those that cannot be matched."""
    collectives: list[MetCollective] = []
    num_unmatched = num_unknown = 0
    for number in range(len(steps[0])):
        by_key: dict[Key, dict[int, Span]] = {}
        num_unknown += steps[0][number].num_unknown
        for trace, of_rank in zip(traces, steps, strict=True):
            for key, span in of_rank[number].sent.items():
                by_key.setdefault(key, {})[trace.rank] = span
        # Only where every rank of the group has it can be said who came last.
        matched = [ranks for (_, group, _), ranks in by_key.items() if tuple(sorted(ranks)) == group]
        num_unmatched += len(by_key) - len(matched)
        collectives += _collectives_of(matched)
    # A profile may begin or end inside a step, so that some are missing in every run.
    if num_unmatched > MOST_UNMATCHED * (num_unmatched + len(collectives)):
        raise SimnetError(
            f"{traces[-1].where}: {num_unmatched} of {num_unmatched + len(collectives)} collectives lack some of their "
            f"ranks: {_ONE_RUN}"
        )
    notes = (
        (num_unmatched, "without some of its ranks in the step: left out"),
        (num_unknown, "whose process group the trace does not say: left out"),
    )
    return tuple(collectives), tuple(f"{counted(number, 'collective')} {text}" for number, text in notes if number)


def _collectives_of(matched: Sequence[dict[int, Span]]) -> list[MetCollective]:
    """Return the collectives of one step.

    A collective ends for all ranks at about one time, whatever their clocks say: who was in it for the shortest time
    came last. A rank that waits in two at a time waits once.
    """
    until_s: dict[int, float] = {}
    collectives = []
    # In order of time: a wait that two collectives share counts once.
    for sent in sorted(matched, key=lambda spans: min(span[0] for span in spans.values())):
        ranks = tuple(sorted(sent))
        lengths_s = [sent[rank][1] - sent[rank][0] for rank in ranks]
        waits_s = []
        for rank, length_s in zip(ranks, lengths_s, strict=True):
            start_s = sent[rank][0]
            end_s = start_s + length_s - min(lengths_s)
            waits_s.append(max(end_s - max(start_s, until_s.get(rank, start_s)), 0.0))
            until_s[rank] = max(end_s, until_s.get(rank, end_s))
        collectives.append(met(ranks, np.array(waits_s), lengths_s.index(min(lengths_s))))
    return collectives

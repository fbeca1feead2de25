"""The traces of all ranks of a run, put side by side: who came last at which collective, by clocks that may differ."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from simnet.calibration.fitted_part import counted
from simnet.calibration.rank_samples import MetCollective, RankSamples, met
from simnet.core.errors import SimnetError
from simnet.traces.rank_traces import RankTrace, SentCollective

SLACK_S = 60.0
"""By how much clocks of nodes may differ."""
MOST_UNMATCHED = 0.5
"""Part of the collectives that may lack ranks; more are those of another run."""
_ONE_RUN = "must be traces of one run; give those of all its ranks, and no others"
Key = tuple[str, tuple[int, ...], int]
"""Name of a collective, ranks of its group, and its number among these in a step."""


def samples_of(traces: Sequence[RankTrace], ranks_per_node: int | None) -> RankSamples:
    """Return the steps of all ranks of a run.

    Args:
        traces: one of every rank.
        ranks_per_node: ranks of a node; None to find them in the traces.

    Raises:
        SimnetError: a rank is missing or comes twice, the traces are of different runs or steps, or do not say which
            ranks share a node.
    """
    in_order = sorted(traces, key=lambda one: one.rank)
    _check_one_run(in_order)
    _check_steps(in_order)
    per_node = ranks_per_node if ranks_per_node is not None else _ranks_per_node(in_order)
    if in_order[0].world_size % per_node:
        raise SimnetError(
            f"--ranks-per-node {per_node}: the traces are of {in_order[0].world_size} ranks: must divide that; give "
            "the ranks of a node"
        )
    collectives, notes = _collectives(in_order)
    others = f" and {len(traces) - 1} others" if len(traces) > 1 else ""
    return RankSamples(
        where=f"{traces[0].where}{others}",
        ranks_per_node=per_node,
        compute_s=np.array([[step.compute_s for step in one.steps] for one in in_order]),
        own_s=np.array([[step.own_s for step in one.steps] for one in in_order]),
        collectives=collectives,
        notes=notes,
    )


def _check_one_run(traces: Sequence[RankTrace]) -> None:
    """Refuse traces that are not one of every rank of one run; they come in the order of their ranks."""
    first = traces[0]
    for one in traces[1:]:
        if one.world_size != first.world_size:
            sizes = f"{one.world_size} ranks, and {first.where} of {first.world_size}"
            raise SimnetError(f"{one.where}: of {sizes}: {_ONE_RUN}")
        if one.span[0] > first.span[1] + SLACK_S or first.span[0] > one.span[1] + SLACK_S:
            apart_s = max(one.span[0] - first.span[1], first.span[0] - one.span[1])
            raise SimnetError(f"{one.where}: {apart_s:.0f} s from {first.where}: {_ONE_RUN}")
    for before, one in pairwise(traces):
        if one.rank == before.rank:
            raise SimnetError(f"{one.where}: rank {one.rank}, as {before.where}: must be one trace a rank; {_ONE_RUN}")
    missing = sorted(set(range(first.world_size)) - {one.rank for one in traces})
    if missing and len(traces) > 1:
        what = f"rank {missing[0]} of {first.world_size} is missing"
        raise SimnetError(f"{first.where}: {what}: must be one trace of every rank; add it")
    if missing:
        raise SimnetError(
            f"{first.where}: rank {first.rank} of {first.world_size} alone: a slow rank shows in comparison with "
            "others; give the traces of all ranks, or their folder"
        )


def _check_steps(traces: Sequence[RankTrace]) -> None:
    first = traces[0]
    for one in traces[1:]:
        if len(one.steps) != len(first.steps):
            raise SimnetError(
                f"{one.where}: {len(one.steps)} steps, {first.where} has {len(first.steps)}: must be as many; profile "
                "the same steps of every rank"
            )
        for mine, its in zip(one.steps, first.steps, strict=True):
            if mine.name != its.name:
                raise SimnetError(
                    f"{one.where}: {mine.name} where {first.where} has {its.name}: must be the same; profile the same "
                    "steps of every rank"
                )


def _ranks_per_node(traces: Sequence[RankTrace]) -> int:
    """Return the ranks of a node by the names of machines, or else by their GPUs.

    Raises:
        SimnetError: the traces say neither, or ranks of a node do not follow each other.
    """
    first = traces[0]
    hosts = [one.host for one in traces]
    if all(hosts):
        per_node = hosts.count(first.host)
        blocks = [set(hosts[start : start + per_node]) for start in range(0, len(hosts), per_node)]
        if len(set(hosts)) * per_node == len(hosts) and all(len(block) == 1 for block in blocks):
            return per_node
    elif first.num_gpus and first.world_size % first.num_gpus == 0:
        return first.num_gpus
    raise SimnetError(f"{first.where}: does not say which ranks share a node: give --ranks-per-node")


def _collectives(traces: Sequence[RankTrace]) -> tuple[tuple[MetCollective, ...], tuple[str, ...]]:
    """Return the collectives at which ranks met, and a note on those that cannot be matched.

    Raises:
        SimnetError: most cannot, since the traces are of different runs.
    """
    found: list[MetCollective] = []
    num_unmatched = num_unknown = 0
    for number in range(len(traces[0].steps)):
        by_key: dict[Key, dict[int, SentCollective]] = {}
        num_unknown += sum(not one.ranks for one in traces[0].steps[number].sent)
        for trace in traces:
            for one in trace.steps[number].sent:
                if len(one.ranks) > 1:
                    by_key.setdefault((one.name, one.ranks, one.number), {})[trace.rank] = one
        matched = [ranks for (_, group, _), ranks in by_key.items() if tuple(sorted(ranks)) == group]
        num_unmatched += len(by_key) - len(matched)
        found += _met(matched)
    if num_unmatched > MOST_UNMATCHED * (num_unmatched + len(found)):
        raise SimnetError(
            f"{traces[-1].where}: {num_unmatched} of {num_unmatched + len(found)} collectives lack some of their "
            f"ranks: {_ONE_RUN}"
        )
    notes = (
        (num_unmatched, "without some of its ranks in the step: left out"),
        (num_unknown, "whose process group the trace does not say: left out"),
    )
    return tuple(found), tuple(f"{counted(number, 'collective')} {text}" for number, text in notes if number)


def _met(matched: Sequence[dict[int, SentCollective]]) -> list[MetCollective]:
    """Return the collectives of one step.

    A collective ends for all ranks at about one time, whatever their clocks say: who was in it for the shortest time
    came last. A rank that waits in two at a time waits once.
    """
    until_s: dict[int, float] = {}
    found = []
    for sent in sorted(matched, key=lambda one: min(place.span[0] for place in one.values())):
        ranks = tuple(sorted(sent))
        lengths_s = [sent[rank].span[1] - sent[rank].span[0] for rank in ranks]
        waits_s = []
        for rank, length_s in zip(ranks, lengths_s, strict=True):
            start_s = sent[rank].span[0]
            end_s = start_s + length_s - min(lengths_s)
            waits_s.append(max(end_s - max(start_s, until_s.get(rank, start_s)), 0.0))
            until_s[rank] = max(end_s, until_s.get(rank, end_s))
        found.append(met(ranks, np.array(waits_s), lengths_s.index(min(lengths_s))))
    return found

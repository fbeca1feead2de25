"""Fit slow ranks, jitter and pauses to the times of every rank, as faults of a cluster."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from simnet.calibration import jitter_fit, pause_fit, slow_rank_fit
from simnet.calibration.jitter_fit import FittedJitter
from simnet.calibration.pause_fit import FittedPause
from simnet.calibration.rank_samples import RankSamples
from simnet.calibration.slow_rank_fit import RankFactor
from simnet.core.units import format_seconds

if TYPE_CHECKING:
    from simnet.core.bounded_types import BoolArray

MUCH_IN_COMMON = 0.3
"""Part of the variance that is common to all ranks from which on a note says so."""
MOST_NAMED = 8
FaultTable = Mapping[str, object]
"""A fault as it stands in a scenario."""


class VariedRank(Struct, frozen=True, kw_only=True):
    """What was found of a rank.

    Attributes:
        rank: its number.
        node: number of its node.
        local_rank: its number in the node.
        compute_s: median of its compute in a step, without pauses [s].
        factor: that / the median of the others.
        low: end of the interval of the factor; the intervals of all ranks hold together with about 90 %.
        high: the other end.
        is_slow: whether it becomes a slow rank.
        came_last: part of its collectives at which it came last; null where nobody waited.
        held_s: by how long it held up the typical rank of its groups in a mean step; null where nobody waited [s].
        pauses: steps in which it paused.
        paused_s: how long, in all of these together [s].
    """

    rank: int
    node: int
    local_rank: int
    compute_s: float
    factor: float
    low: float
    high: float
    is_slow: bool
    came_last: float | None
    held_s: float | None
    pauses: int
    paused_s: float


class FittedVariation(Struct, frozen=True, kw_only=True):
    """The variation of a run.

    Attributes:
        where: files that it was fitted to.
        num_steps: steps of each rank.
        ranks_per_node: ranks of each node.
        compute_s: mean compute in a step of the ranks that are not slow, without pauses [s].
        cv: of their compute, standard deviation / mean; 0 where it hardly varies.
        ranks: all of them, in order.
        faults: as they stand in a scenario.
        notes: sentences for people.
    """

    where: str
    num_steps: int
    ranks_per_node: int
    compute_s: float
    cv: float
    ranks: tuple[VariedRank, ...]
    faults: tuple[FaultTable, ...]
    notes: tuple[str, ...]


def fit(samples: RankSamples) -> FittedVariation:
    """Return slow ranks, jitter and pauses."""
    paused = pause_fit.find(samples.own_s)
    pauses = pause_fit.fit(samples.own_s, paused)
    kept = [mine[~still] for mine, still in zip(samples.compute_s, paused, strict=True)]
    factors = slow_rank_fit.fit(kept)
    ordinary = [rank for rank, one in enumerate(factors) if not one.is_slow]
    jitter = jitter_fit.fit([kept[rank] for rank in ordinary])
    return FittedVariation(
        where=samples.where,
        num_steps=samples.num_steps,
        ranks_per_node=samples.ranks_per_node,
        compute_s=float(np.concatenate([kept[rank] for rank in ordinary]).mean()),
        cv=jitter.cv if jitter else 0.0,
        ranks=tuple(_ranks(samples, paused, factors)),
        faults=tuple(_faults(factors, jitter, pauses, samples.ranks_per_node)),
        notes=(*samples.notes, *_notes(samples, paused, factors, pauses, ordinary)),
    )


def _ranks(samples: RankSamples, paused: "BoolArray", factors: Sequence[RankFactor]) -> list[VariedRank]:
    came_last, held_s = samples.came_last, samples.held_s
    excess_s = np.where(paused, samples.own_s - np.median(samples.own_s, axis=1, keepdims=True), 0.0)
    return [
        VariedRank(
            rank=rank,
            node=rank // samples.ranks_per_node,
            local_rank=rank % samples.ranks_per_node,
            compute_s=one.median_s,
            factor=one.factor,
            low=one.low,
            high=one.high,
            is_slow=one.is_slow,
            came_last=None if came_last is None else float(came_last[rank]),
            held_s=None if held_s is None else float(held_s[rank]),
            pauses=int(paused[rank].sum()),
            paused_s=float(excess_s[rank].sum()),
        )
        for rank, one in enumerate(factors)
    ]


def _faults(
    factors: Sequence[RankFactor], jitter: FittedJitter | None, pauses: Sequence[FittedPause], ranks_per_node: int
) -> list[FaultTable]:
    found: list[FaultTable] = [
        {
            "kind": "slow_rank",
            "node": rank // ranks_per_node,
            "local_rank": rank % ranks_per_node,
            "compute_slowdown": round(one.factor, 4),
        }
        for rank, one in enumerate(factors)
        if one.is_slow
    ]
    if jitter is not None:
        varies = {"samples": list(jitter.samples)} if jitter.samples else {"cv": round(jitter.cv, 5)}
        found.append({"kind": "compute_jitter", **varies})
    return found + [_pause(one) for one in pauses]


def _pause(one: FittedPause) -> FaultTable:
    ranks = {"ranks": list(one.ranks)} if one.ranks else {}
    when = {"every": one.every} if one.every is not None else {"probability": _digits(one.probability or 0.0)}
    return {"kind": "pause", **ranks, "pause": format_seconds(one.pause_s), **when}


def _digits(number: float) -> float:
    """Return a number with four digits, more than any of these is known to."""
    return float(f"{number:.4g}")


def _notes(
    samples: RankSamples,
    paused: "BoolArray",
    factors: Sequence[RankFactor],
    pauses: Sequence[FittedPause],
    ordinary: Sequence[int],
) -> list[str]:
    notes = []
    if fast := [rank for rank, one in enumerate(factors) if one.is_fast]:
        notes.append(
            f"{_named(fast)}: faster than the others by more than 2 %, for which no fault is written; the mean compute "
            "holds them"
        )
    single = int(paused.sum()) - sum(one.number for one in pauses)
    if single:
        notes.append(f"{single} long {'step' if single == 1 else 'steps'}, too few for a pause, left out of the jitter")
    if any(one.every is not None for one in pauses):
        notes.append("all ranks pause in the same steps, as for a checkpoint: every is their mean distance")
    logs = np.where(paused, np.nan, np.log(samples.compute_s / np.median(samples.compute_s, axis=1, keepdims=True)))
    common = jitter_fit.common_part(logs[list(ordinary)]) if len(ordinary) > 1 else 0.0
    if common > MUCH_IN_COMMON:
        notes.append(
            f"{common:.0%} of the variance is common to all ranks in a step (batches of different length, shared "
            "cores): compute_jitter draws every rank by itself, so that simulated waits are longer than real ones"
        )
    return notes


def _named(ranks: Sequence[int]) -> str:
    """Return ranks for people: the first of them."""
    listed = ", ".join(map(str, ranks[:MOST_NAMED]))
    more = f" and {len(ranks) - MOST_NAMED} more" if len(ranks) > MOST_NAMED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed}{more}"

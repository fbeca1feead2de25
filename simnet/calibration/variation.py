"""Fit slow ranks, jitter and pauses to the times of every rank, and write them as faults of a scenario.

A step that is far longer than those of its rank is a pause; what is left of a rank's compute is set beside that of the
other ranks, and how the ordinary ones vary is the jitter. Of arrays a row is a rank, a column
a step.
"""

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

import simnet.cluster.faults  # noqa: F401 - makes them known
from simnet.calibration.fit import Floats
from simnet.calibration.rank_samples import SIGNIFICANCE, RankSamples
from simnet.cluster.hardware import Cluster
from simnet.core.bounded_types import MAX_SPREAD
from simnet.core.schema import build
from simnet.core.units import format_seconds

if TYPE_CHECKING:
    from simnet.core.bounded_types import BoolArray, IntArray

MOST_SAMPLES = 200
"""Of jitter that is not lognormal."""
_MIN_DEVIATIONS = 5.0  # robust standard deviations of the logarithm by which a pause exceeds its rank's median step
_MIN_EXCESS = 0.2  # part of the median by which it is longer at least
_MIN_PAUSES = 2  # of which something is said; one alone has no probability
_MOST_OFTEN = 0.1  # part of all steps of all ranks; what comes more often is no pause, but how compute varies
_TOGETHER = 0.8  # part of the ranks that pause in a step from which on they pause together
_OWN_SIGNIFICANCE = 0.01  # of all ranks together: from here on a rank that pauses most has pauses of its own
_LEAST_SLOWDOWN = 1.02  # the interval of a slow rank's factor begins here or above
_MIN_CV = 0.001  # below it, clocks and rounding vary as much
_MAX_CV = 10.0  # that a scenario takes of a lognormal
_MUCH_IN_COMMON = 0.3  # part of the variance that is common to all ranks from which on a note says so
_MOST_NAMED = 8
_ROBUST = 1.4826  # standard deviation of a normal distribution / median absolute deviation
_MEDIAN_OF_MEANS = math.sqrt(math.pi / 2)  # standard deviation of a median / that of a mean, of many normal numbers
_KOLMOGOROV = 0.895  # critical value at 5 % where mean and variance are those of the sample; see `fits_lognormal`
_ROUNDS = 64  # the set of slow ranks settles in fewer, except where it returns to one before
_WIDTH = 118
# Any will do: no fitted fault looks at links.
_LINK = {"bandwidth": "1 Gbit/s", "latency": "0 s"}


class VariedRank(Struct, frozen=True, kw_only=True):
    """What was found of a rank.

    Attributes:
        rank: its number.
        node: number of its node.
        local_rank: its number in the node.
        compute_s: median of its compute in a step, without pauses [s].
        factor: that / the median of the others' medians, slow ones left out.
        low: end of the interval of the factor; the intervals of all ranks hold together with about 90 %.
        high: the other end.
        is_slow: whether it is surely slower, by enough: it becomes a slow rank.
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


class RunVariation(Struct, frozen=True, kw_only=True):
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
    faults: tuple[Mapping[str, object], ...]
    notes: tuple[str, ...]


def fit(samples: RankSamples) -> RunVariation:
    """Return slow ranks, jitter and pauses."""
    per_node = samples.ranks_per_node
    paused = find_pauses(samples.own_s)
    excess_s = np.where(paused, samples.own_s - np.median(samples.own_s, axis=1, keepdims=True), 0.0)
    compute_s = np.where(paused, np.nan, samples.compute_s)
    medians_s, factors, lows, highs = beside_others(compute_s)
    is_slow = lows >= _LEAST_SLOWDOWN
    ranks = tuple(
        VariedRank(
            rank=rank,
            node=rank // per_node,
            local_rank=rank % per_node,
            compute_s=float(medians_s[rank]),
            factor=float(factors[rank]),
            low=float(lows[rank]),
            high=float(highs[rank]),
            is_slow=bool(is_slow[rank]),
            came_last=came_last,
            held_s=held_s,
            pauses=int(paused[rank].sum()),
            paused_s=float(excess_s[rank].sum()),
        )
        for rank, (came_last, held_s) in enumerate(_waits(samples))
    )
    slow = (
        {
            "kind": "slow_rank",
            "node": rank.node,
            "local_rank": rank.local_rank,
            "compute_slowdown": round(rank.factor, 4),
        }
        for rank in ranks
        if rank.is_slow
    )
    cv, jitter = _jitter(compute_s[~is_slow])
    pauses, num_left = _pauses(excess_s, paused)
    notes = []
    if fast := [rank.rank for rank in ranks if rank.high <= 1 / _LEAST_SLOWDOWN]:
        more = f" and {len(fast) - _MOST_NAMED} more" if len(fast) > _MOST_NAMED else ""
        notes.append(
            f"{'rank' if len(fast) == 1 else 'ranks'} {', '.join(map(str, fast[:_MOST_NAMED]))}{more}: faster than the "
            "others by more than 2 %, for which no fault is written; the mean compute holds them"
        )
    if num_left:
        notes.append(f"{num_left} long step, too few for a pause, left out of the jitter")
    if any("every" in pause for pause in pauses):
        notes.append("all ranks pause in the same steps, as for a checkpoint: every is their mean distance")
    return RunVariation(
        where=samples.where,
        num_steps=samples.num_steps,
        ranks_per_node=per_node,
        compute_s=float(np.nanmean(compute_s[~is_slow])),
        cv=cv,
        ranks=ranks,
        faults=(*slow, *jitter, *pauses),
        notes=(*samples.notes, *notes, *_note_on_common(samples.compute_s[~is_slow], paused[~is_slow])),
    )


def text(variation: RunVariation) -> str:
    """Return the faults as TOML to put into a scenario, below some lines of comment.

    Raises:
        SimnetError: a fault is none that a scenario takes, such as a rank 1000 times as slow as the others.
    """
    import tomli_w

    nodes = len(variation.ranks) // variation.ranks_per_node
    shape = {"num_nodes": nodes, "ranks_per_node": variation.ranks_per_node, "intra_node": _LINK, "inter_node": _LINK}
    cluster = {"name": "fitted", **shape, "faults": [dict(fault) for fault in variation.faults]}
    build(Cluster, cluster, f"{variation.where}: the fitted faults")
    # A line break in a name would end the comment: what does not print becomes "?".
    where = "".join(character if character.isprintable() else "?" for character in variation.where)
    lines = [
        f"# Fitted by simnet calibrate --variation to {where}: {len(variation.ranks)} ranks, "
        f"{variation.num_steps} steps",
        f"# Mean compute of a step on ranks that are not slow: {format_seconds(variation.compute_s)}",
    ]
    if not variation.faults:
        lines.append("# Nothing was found: no rank is slow, none pauses, and compute hardly varies")
    for fault in variation.faults:
        plain = {key: value for key, value in fault.items() if key != "samples"}
        lines += ["", "[[cluster.faults]]", tomli_w.dumps(plain).rstrip("\n")]
        samples = fault.get("samples")
        if isinstance(samples, list):  # many to a line
            numbers = f"{', '.join(f'{sample:g}' for sample in samples)},"
            wrapped = textwrap.fill(numbers, _WIDTH, initial_indent="  ", subsequent_indent="  ")
            lines += ["samples = [", wrapped, "]"]
    return "\n".join(lines) + "\n"


def find_pauses(own_s: Floats) -> "BoolArray":
    """Tell of each step of each rank whether the rank paused in it.

    Args:
        own_s: times of the steps without waits for others [s].
    """
    deviations = np.log(own_s)
    deviations -= np.median(deviations, axis=1, keepdims=True)
    sizes = np.abs(deviations)
    spread = _ROBUST * np.maximum(np.median(sizes, axis=1, keepdims=True), np.median(sizes))
    is_long = np.asarray(deviations > np.maximum(_MIN_DEVIATIONS * spread, np.log1p(_MIN_EXCESS)))
    alone = is_long & ~_together(is_long)
    return is_long & ~alone if alone.mean() > _MOST_OFTEN else is_long


def _together(paused: "BoolArray") -> "BoolArray":
    """Tell of each step whether ranks pause together in it."""
    return np.asarray(paused.mean(axis=0) >= _TOGETHER)


def _pauses(excess_s: Floats, paused: "BoolArray") -> tuple[list[Mapping[str, object]], int]:
    """Return pauses as faults, and how many long steps are too few to be one.

    All ranks together come first, then single ranks, then the others each by itself.
    """
    from scipy.stats import binom

    faults: list[Mapping[str, object]] = []
    num_ranks, num_steps = paused.shape
    together = _together(paused)
    if together.sum() >= _MIN_PAUSES:
        mean_s = float(excess_s[:, together][paused[:, together]].mean())
        faults.append({"kind": "pause", "pause": format_seconds(mean_s), "every": round(num_steps / together.sum())})
        paused = paused & ~together
    counts: IntArray = paused.sum(axis=1)
    # One more than were seen, since a rate of zero would make any two pauses of a rank its own.
    rates = (counts.sum() - counts + 1) / (num_steps * (num_ranks - 1) + 1)
    chances = binom.sf(counts - 1, num_steps, np.minimum(rates, 1.0))
    has_own = (counts >= _MIN_PAUSES) & (chances < _OWN_SIGNIFICANCE / num_ranks)
    others = np.flatnonzero(~has_own).tolist()
    for ranks in (*([int(rank)] for rank in np.flatnonzero(has_own)), others):
        of_ranks = paused[ranks]
        if of_ranks.sum() >= _MIN_PAUSES:
            only = {"ranks": ranks} if len(ranks) < num_ranks else {}
            length = format_seconds(float(excess_s[ranks][of_ranks].mean()))
            # Four digits, more than any of these is known to.
            probability = float(f"{of_ranks.sum() / of_ranks.size:.4g}")
            faults.append({"kind": "pause", **only, "pause": length, "probability": probability})
    left = int(counts[others].sum())
    return faults, left if left < _MIN_PAUSES else 0


def beside_others(compute_s: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return each rank's median [s], its factor on the median of the others, and the ends of the factor's interval.

    The others' median is that of their medians, slow ranks left out. The intervals of all ranks hold together with a
    probability of about 90 %.

    Args:
        compute_s: of each rank in its steps; nan where it paused [s].
    """
    medians_s, starts_s, ends_s = intervals_of_medians(compute_s)
    # As logarithms, in which the doubts of a quotient add up in squares.
    below, above = np.log(medians_s / starts_s), np.log(ends_s / medians_s)
    is_slow = np.zeros(len(medians_s), dtype=bool)
    for _ in range(_ROUNDS):
        factors = medians_s / _median_of_others(medians_s, ~is_slow)
        # The median of the others is in doubt, too, though less.
        number = np.maximum((~is_slow).sum() - ~is_slow, 1)
        doubt = _median_of_others(below + above, ~is_slow) / 2 / np.sqrt(number)
        doubt *= np.where(number < 3, 1.0, _MEDIAN_OF_MEANS)
        lows = factors * np.exp(-np.hypot(below, doubt))
        before, is_slow = is_slow, lows >= _LEAST_SLOWDOWN
        if (before == is_slow).all():
            break
        # Without the slow ones the others' median is that of ordinary ranks, beside which more may be slow.
    return medians_s, factors, lows, factors * np.exp(np.hypot(above, doubt))


def intervals_of_medians(times_s: Floats, significance: float = SIGNIFICANCE) -> tuple[Floats, Floats, Floats]:
    """Return the median of each rank, and the ends of its interval: two of the times, chosen by their order.

    The intervals are free of any distribution, and hold together with 1 - `significance`. Of too few times they say
    nothing: they reach `MAX_SPREAD` times beyond them.

    Source: the number of times below the median is binomial with probability 1/2 (David and Nagaraja, "Order
        Statistics", 2003, chapter 7.1); the level is divided by the number of ranks (Bonferroni).

    Example:
        >>> [ends.tolist() for ends in intervals_of_medians(np.arange(1.0, 101.0)[None])]
        [[50.5], [42.0], [59.0]]
    """
    from scipy.stats import binom

    ordered = np.sort(times_s, axis=1)  # nan comes last
    each, counts = np.arange(len(times_s)), (~np.isnan(times_s)).sum(axis=1)
    level = significance / len(times_s) / 2
    left_out = binom.ppf(level, counts, 0.5).astype(int)
    # `ppf` returns the first count that is beyond the level: one fewer keeps it.
    left_out -= binom.cdf(left_out, counts, 0.5) > level
    doubt = np.where(left_out < 0, MAX_SPREAD, 1.0)
    left_out = np.maximum(left_out, 0)
    return (
        (ordered[each, (counts - 1) // 2] + ordered[each, counts // 2]) / 2,
        ordered[each, left_out] / doubt,
        ordered[each, counts - 1 - left_out] * doubt,
    )


def _median_of_others(values: Floats, is_counted: "BoolArray") -> Floats:
    """Return for each rank the median of the counted values of the others; where there are none, its own value."""
    # One sort serves all ranks: the median of the others lies beside that of all.
    ordered = np.sort(values[is_counted])
    number = len(ordered) - is_counted
    places = np.where(is_counted, np.searchsorted(ordered, values), len(ordered))
    middle = [place + (place >= places) for place in ((number - 1) // 2, number // 2)]
    low, high = (ordered[np.clip(place, 0, len(ordered) - 1)] for place in middle)
    return np.where(number > 0, (low + high) / 2, values)


def _jitter(compute_s: Floats) -> tuple[float, list[Mapping[str, object]]]:
    """Return how ordinary ranks vary around their own means, as a coefficient of variation and as a fault.

    The fault is a lognormal, or quantiles where that does not fit. There is none where ranks hardly vary.
    """
    factors = (compute_s / np.nanmean(compute_s, axis=1, keepdims=True))[~np.isnan(compute_s)]
    cv = math.sqrt(math.expm1(float(np.log(factors).std(ddof=1)) ** 2))
    if cv < _MIN_CV:
        return 0.0, []
    if cv <= _MAX_CV and fits_lognormal(factors):
        return cv, [{"kind": "compute_jitter", "cv": round(cv, 5)}]
    number = min(MOST_SAMPLES, len(factors))
    quantiles = np.quantile(factors, (np.arange(number) + 0.5) / number)
    # A scenario takes no factor of 0.
    samples = np.maximum(np.round(quantiles / quantiles.mean(), 4), 1e-4).tolist()
    return float(factors.std(ddof=1)), [{"kind": "compute_jitter", "samples": samples}]


def fits_lognormal(factors: Floats) -> bool:
    """Tell whether a lognormal with the mean and variance of the logarithms fits, by Kolmogorov and Smirnov at 5 %.

    Source: Stephens, "EDF statistics for goodness of fit and some comparisons", JASA 69, 1974, table 1.3: the
        parameters are those of the sample, for which the usual table would hardly ever refuse.
    """
    from scipy.special import ndtr
    from scipy.stats import kstest

    logs = np.log(factors)
    distance = float(kstest((logs - logs.mean()) / logs.std(ddof=1), ndtr).statistic)
    root = math.sqrt(len(factors))
    return distance * (root - 0.01 + 0.85 / root) < _KOLMOGOROV


def _waits(samples: RankSamples) -> list[tuple[float | None, float | None]]:
    """Return at which part of its collectives each rank came last, and by how long it held up the typical one [s]."""
    if not samples.collectives:
        return [(None, None)] * samples.num_ranks
    took_part, last, held_s = np.zeros((3, samples.num_ranks))
    for collective in samples.collectives:
        took_part[list(collective.ranks)] += 1
        last[collective.last] += max(collective.waits_s) > 0
        held_s[collective.last] += float(np.median(collective.waits_s))
    return list(zip((last / np.maximum(took_part, 1)).tolist(), (held_s / samples.num_steps).tolist(), strict=True))


def _note_on_common(compute_s: Floats, paused: "BoolArray") -> list[str]:
    """Return a note where much of the variance is common to all ranks of a step, and that is no chance.

    Source: the intraclass correlation of a one-way analysis of variance over steps in which no rank paused (Shrout and
        Fleiss, Psychological Bulletin 86, 1979).
    """
    logs = np.log(compute_s / np.median(compute_s, axis=1, keepdims=True))[:, ~paused.any(axis=0)]
    num_ranks, num_steps = logs.shape
    if num_ranks < 2 or num_steps < 3:
        return []
    between = num_ranks * float(logs.mean(axis=0).var(ddof=1))
    within = float(logs.var(axis=0, ddof=1).mean())
    whole = between + (num_ranks - 1) * within
    deviation = math.sqrt(2 / ((num_steps - 1) * num_ranks * (num_ranks - 1)))
    if between - within <= max(_MUCH_IN_COMMON, 3 * deviation) * whole:
        return []
    return [
        f"{(between - within) / whole:.0%} of the variance is common to all ranks in a step (batches of different "
        "length, shared cores): compute_jitter draws every rank by itself, so that simulated waits are longer than "
        "real ones"
    ]

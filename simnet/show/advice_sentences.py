"""What an advice says in plain words."""

from collections.abc import Iterator, Sequence

from simnet.compare.advice import Advice, RankedSystem
from simnet.compare.crossing import Range
from simnet.compare.verdict import MEASURE_FIRST, PAYS, UNCERTAIN
from simnet.compare.whatif import SLOW_KERNEL_FACTOR
from simnet.units import format_seconds

MAX_NAMED = 3
GBIT = 1e9 / 8
PUBLISHED = (
    "Published: compressing gradients was faster than optimized data-parallel training in 6 of more than 200 set-ups "
    "typical of data centers (Agarwal et al., On the Utility of Gradient Compression in Distributed Training Systems, "
    "MLSys 2022, abstract)."
)
SPEED_ONLY = (
    "Speed only: whether a system reaches the same loss in as many steps is another question, see "
    "docs/evidence/systems-training.md."
)


def sentences(advice: Advice) -> list[str]:
    """Return what to use or that none pays and why, what DDP alone gains, and what to bear in mind."""
    return [_verdict(advice), *_uncertain(advice), _dense(advice), *_rates(advice), SPEED_ONLY, PUBLISHED]


def ranges_text(ranges: Sequence[Range]) -> str:
    """Return ranges of bandwidth: "below 62 Gbit/s"."""
    return " and ".join(map(_range_text, ranges)) or "nowhere tried"


def _range_text(ends: Range) -> str:
    low, high = (None if end is None else f"{end / GBIT:.3g} Gbit/s" for end in ends)
    if low is None:
        return "at all bandwidths tried" if high is None else f"below {high}"
    return f"above {low}" if high is None else f"from {low} to {high}"


def _verdict(advice: Advice) -> str:
    best = advice.best
    if best is None:
        surely = " surely" if advice.with_verdict(UNCERTAIN, MEASURE_FIRST) else ""
        return f"None pays{surely}: {_reason(advice)}."
    others = [row for row in advice.with_verdict("pays") if row is not best]
    also = f" So do {_named(others)}." if others else ""
    where = f"; it pays with NICs {ranges_text(best.pays_in)}" if best.pays_in else ""
    fast = f"{best.speedup.value:.2f} times as fast as {advice.baseline} at its best"
    return f"{best.name} pays: {fast} ({_known(best)}){where}{_missed(best, ', but missed')}.{also}"


def _missed(row: RankedSystem, lead: str) -> str:
    """Say of which of the shipped trainings a system missed the target."""
    return f"{lead} the target in {', '.join(row.missed_in)}" if row.missed_in else ""


def _known(row: RankedSystem) -> str:
    """Return what is known of the uncertainty of a speedup."""
    speedup = row.speedup
    known = ["{:.2f} to {:.2f}, 90 % interval".format(*speedup.interval) if speedup.interval else "a point estimate"]
    if speedup.model_error > 1:
        known.append(f"published speedups were predicted {100 * (speedup.model_error - 1):.0f} % off on average")
    if speedup.if_kernels_slow is not None:
        known.append(
            f"{speedup.if_kernels_slow:.2f} if its kernels take {SLOW_KERNEL_FACTOR:.1f} times as long as estimated"
        )
    return "; ".join(known)


def _reason(advice: Advice) -> str:
    """Say what keeps the baseline from being beaten, or from being surely beaten."""
    if advice.scenario.cluster.world_size == 1:
        return "one rank has nothing to exchange"
    step = f"a step of {advice.baseline} at its best takes {format_seconds(advice.baseline_system.iteration_s)}"
    if advice.speedup_without_comm < PAYS:
        fast = f"{advice.speedup_without_comm:.2f} times as fast"
        return f"{step}, and with communication that costs nothing it would be only {fast}"
    step += f", and free communication would make it {advice.speedup_without_comm:.2f} times as fast"
    if advice.with_verdict(UNCERTAIN, MEASURE_FIRST):
        return f"{step}, but too little is known of the systems that may gain from it"
    if not advice.compressing:
        return f"{step}, but no system that compresses could be predicted"
    if advice.baseline_system.bound == "latency":
        return f"{step}, but what bounds it is latency, which fewer bytes do not shorten"
    first = advice.compressing[0]
    bound = "its codec" if first.bound == "codec" else first.bound
    fast = f"{first.speedup.value:.2f} times as fast"
    return f"{step}, but the fastest other system, {first.name}, is {fast}, bound by {bound}"


def _uncertain(advice: Advice) -> Iterator[str]:
    """Yield a sentence on each kind of system that may pay."""
    unsure, to_measure = advice.with_verdict(UNCERTAIN), advice.with_verdict(MEASURE_FIRST)
    estimated = [row for row in to_measure if not row.speedup.unmeasured]
    for rows, limit in ((unsure, "within its uncertainty"), (estimated, "but measure its kernels first")):
        if rows:
            first, *others = rows
            more = f" So may {_named(others)}." if others else ""
            yield f"{first.name} may pay, {limit}: {first.speedup.value:.2f} times as fast ({_known(first)}).{more}"
    unmeasured = [row for row in to_measure if row.speedup.unmeasured]
    if unmeasured:
        room = ", ".join(f"{row.name} {format_seconds(row.headroom_s)}" for row in unmeasured)
        yield (
            "To be measured first, since kernels of theirs have no time here and no estimate worth the name (simnet "
            f"measure kernels); they pay if these add no more to a step than: {room}."
        )


def _dense(advice: Advice) -> str:
    """Say what DDP gains without compression, and how much against what papers compare with."""
    gain = advice.plain_iteration_s / advice.baseline_system.iteration_s
    best = advice.best
    against = f"; against that {best.name} is {best.speedup_vs_plain:.2f} times as fast" if best else ""
    return (
        f"Without compression, {advice.baseline} at its best is {gain:.2f} times as fast as plain DDP on a flat "
        f"ring{against}."
    )


def _rates(advice: Advice) -> Iterator[str]:
    """Yield what other bandwidths rest on."""
    measured_on = advice.scenario.calibration.inter_node.measured_on
    if measured_on is not None and any(row.curve for row in advice.compressing):
        yield f"At other bandwidths the efficiency of links is taken to be that measured on {measured_on.text()}."


def _named(rows: Sequence[RankedSystem]) -> str:
    """Return names with speedups, the first few."""
    names = [f"{row.name} ({row.speedup.value:.2f}{_missed(row, '; missed')})" for row in rows[:MAX_NAMED]]
    more = len(rows) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")

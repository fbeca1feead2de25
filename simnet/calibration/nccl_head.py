"""Who took part in a run of nccl-tests: nodes, ranks and GPU, also where lines of the list of devices are torn."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from simnet.core.errors import SimnetError

_RANK = re.compile(
    r"#\s+Rank\s+(\d{1,9})\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+([^\s<>]+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)"
)
MAX_LOST = 2
"""Ranks after the last whole line that may have been lost."""
MAX_LOST_SHARE = 0.5
"""Of all ranks; where more are lost, the rest is not to be trusted either."""
TOLERANCE = 1e-4
"""Relative, of a ratio of bandwidths beyond the rounding of both."""
MANY_NODES = 3
"""Nodes from which on one that is short of ranks is taken as a lost line, even where the ratio cannot tell."""


@dataclass(frozen=True, kw_only=True)
class BusRatio:
    """Bus over algorithm bandwidth of an all-reduce, as printed: 2(n - 1)/n on n ranks.

    Attributes:
        value: the ratio.
        rounding: its relative error by the two decimals of both bandwidths.
    """

    value: float
    rounding: float

    def fits(self, ranks: int) -> bool:
        """Tell whether so many ranks have this ratio."""
        expected = 2 * (ranks - 1) / ranks
        return abs(self.value - expected) <= (TOLERANCE + self.rounding) * max(expected, self.value)

    def tells_apart(self, ranks: int, others: int) -> bool:
        """Tell whether the digits suffice to tell two numbers of ranks apart."""
        return abs(2 / ranks - 2 / others) > 2 * (TOLERANCE + self.rounding) * self.value


@dataclass(frozen=True, kw_only=True)
class RunShape:
    """Nodes, ranks on each, and the GPU."""

    num_nodes: int
    ranks_per_node: int
    gpu: str


def shape(lines: Sequence[str], name: str, ratio: BusRatio | None, *, must_fit: bool) -> RunShape:
    """Return who took part.

    A rank whose line is torn leaves a gap in the numbers, which go from 0 to the number of ranks. A line that is lost
    at the end leaves none: then the ratio of the bandwidths shows it.

    Args:
        lines: of the log, without ranks in front.
        name: of the log, for messages.
        ratio: of bandwidths, if the log tells one.
        must_fit: whether the ratio is that of an all-reduce for sure; else it may be of another collective.

    Raises:
        SimnetError: no rank is listed, nodes have unequal numbers of ranks, or the list does not go with the ratio.
    """
    ranks = {int(found[1]): (found[2], found[3].strip()) for line in lines if (found := _RANK.match(line))}
    if not ranks:
        raise SimnetError(
            f"{name}: no line '# Rank 0 Pid ... on HOST device ...'; give the whole output with its header"
        )
    counts = Counter(host for host, _ in ranks.values())
    listed = max(ranks) + 1
    totals = [one for one in range(listed, listed + MAX_LOST + 1) if _is_even(one, counts)]
    told = [total for total in totals if _is_told(total, listed, len(counts), ratio)]
    if not told and not must_fit and listed in totals:
        told = [listed]
    if told:
        gpu = next(iter(ranks.values()))[1]
        return RunShape(num_nodes=len(counts), ranks_per_node=told[0] // len(counts), gpu=gpu)
    if listed not in totals:
        raise SimnetError(
            f"{name}: nodes with {sorted(set(counts.values()))} ranks: all nodes must have the same number; drop this "
            "log"
        )
    raise SimnetError(f"{name}: {listed} ranks are listed: the bandwidths are of another number; run nccl-tests again")


def _is_even(total: int, counts: Counter[str]) -> bool:
    per_node, rest = divmod(total, len(counts))
    return not rest and max(counts.values()) <= per_node and counts.total() >= (1 - MAX_LOST_SHARE) * total


def _is_told(total: int, listed: int, num_nodes: int, ratio: BusRatio | None) -> bool:
    """Tell whether a ratio of bandwidths speaks for a number of ranks; without one, the list is believed."""
    if total == listed:
        return ratio is None or ratio.fits(total)
    is_clear = num_nodes >= MANY_NODES or (ratio is not None and ratio.tells_apart(total, listed))
    return ratio is not None and ratio.fits(total) and is_clear

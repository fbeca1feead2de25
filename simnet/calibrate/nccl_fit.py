"""Fit the costs of NCCL's all-reduce to logs of nccl-tests."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simnet.calibrate.nccl_log import NcclLog
from simnet.calibrate.nccl_model import AllReduces, Floats, NcclCosts, all_reduce_s
from simnet.errors import SimnetError
from simnet.numeric import least_squares

LARGE_BYTES = 1024**2
"""Messages from this size on fit LL128 and Simple, smaller ones fit LL."""
TINY_BYTES = 4096
"""Smaller messages all take the same time, so they add nothing to the fit."""
MIN_ROWS = 4
_GUESS = NcclCosts(
    node_bytes_per_s=1e11,
    net_bytes_per_s=1e11,
    start_s=30e-6,
    exposed=0.3,
    ll_start_s=8e-6,
    ll_hop=2.0,
    ll_fraction=0.1,
)
_LIMITS = {"ll_fraction": (0.01, 0.5), "exposed": (0.0, 1.0), "ll_start_s": (0.0, 1.0), "start_s": (0.0, 1.0)}


@dataclass(frozen=True, kw_only=True)
class TimedAllReduces:
    """All-reduces with the measured time of each [s]."""

    all_reduces: AllReduces
    times_s: Floats

    def select(self, chosen: "np.ndarray[tuple[int], np.dtype[np.generic]]") -> "TimedAllReduces":
        """Return the all-reduces at a mask or at indices."""
        all_reduces = self.all_reduces
        return TimedAllReduces(
            all_reduces=AllReduces(
                message_bytes=all_reduces.message_bytes[chosen],
                ranks_per_node=all_reduces.ranks_per_node[chosen],
                num_nodes=all_reduces.num_nodes[chosen],
            ),
            times_s=self.times_s[chosen],
        )

    def relative_errors(self, costs: NcclCosts) -> Floats:
        """Return the signed relative error of each all-reduce: modelled / measured - 1."""
        return all_reduce_s(self.all_reduces, costs) / self.times_s - 1


def select_all_reduces(logs: Sequence[NcclLog], least_bytes: int = TINY_BYTES) -> TimedAllReduces:
    """Return the all-reduces in logs, each out of place and in place.

    Raises:
        SimnetError: a log has another collective or one GPU.
    """
    for log in logs:
        if log.world_size == 1:
            raise SimnetError(f"{log.name}: one GPU sends nothing; drop this log")
        if log.collective != "all_reduce":
            raise SimnetError(f"{log.name}: {log.collective}: only all_reduce logs can be fitted; drop this log")
    rows = [
        (row.message_bytes, log.ranks_per_node, log.num_nodes, time_s)
        for log in logs
        for row in log.rows
        for time_s in row.times_s
        if time_s is not None and row.message_bytes >= least_bytes
    ]
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    return TimedAllReduces(
        all_reduces=AllReduces(message_bytes=table[:, 0], ranks_per_node=table[:, 1], num_nodes=table[:, 2]),
        times_s=table[:, 3],
    )


def fit_costs(train: TimedAllReduces, start: NcclCosts | None = None) -> NcclCosts:
    """Fit costs by least squares of relative errors: large messages first, then LL on the small ones.

    Args:
        train: at least `MIN_ROWS` all-reduces from `LARGE_BYTES` on.
        start: first guess, such as the costs of a fit to nearly the same all-reduces.

    Raises:
        SimnetError: too few large messages.
    """
    large = train.select(train.all_reduces.message_bytes >= LARGE_BYTES)
    if len(large.times_s) < MIN_ROWS:
        raise SimnetError(
            f"{len(large.times_s)} times from 1 MiB on: at least {MIN_ROWS} are needed; run nccl-tests with -e 1G"
        )
    names = _large_names(large)
    # LL is made slow, so that no large message uses it and the two stages have no cost in common.
    costs = _fitted(replace(start or _first_guess(large), ll_fraction=_LIMITS["ll_fraction"][0]), names, large)
    small = train.select(train.all_reduces.message_bytes < LARGE_BYTES)
    if len(small.times_s) < MIN_ROWS:
        return replace(costs, ll_start_s=_GUESS.ll_start_s, ll_hop=_GUESS.ll_hop, ll_fraction=_GUESS.ll_fraction)
    guess = start or _GUESS
    costs = replace(costs, ll_start_s=guess.ll_start_s, ll_hop=guess.ll_hop, ll_fraction=guess.ll_fraction)
    return _fitted(costs, ("ll_start_s", "ll_hop", "ll_fraction"), small)


def determined_names(train: TimedAllReduces) -> tuple[str, ...]:
    """Return the names of the costs that these all-reduces determine."""
    has_small = int(np.sum(train.all_reduces.message_bytes < LARGE_BYTES)) >= MIN_ROWS
    large = train.select(train.all_reduces.message_bytes >= LARGE_BYTES)
    return _large_names(large) + (("ll_start_s", "ll_hop", "ll_fraction") if has_small else ())


def _large_names(large: TimedAllReduces) -> tuple[str, ...]:
    """Return the names of the costs that large messages determine."""
    in_one_node = large.all_reduces.num_nodes == 1
    names = ["start_s"]
    if in_one_node.any():
        names.append("node_bytes_per_s")
    # The exposed fraction of a chunk (S/n) differs from a lower bandwidth only if the number of ranks n varies.
    if len(np.unique(large.all_reduces.ranks_per_node[in_one_node])) > 1:
        names.append("exposed")
    if not in_one_node.all():
        names.append("net_bytes_per_s")
    return tuple(names)


def _first_guess(large: TimedAllReduces) -> NcclCosts:
    """Return costs with the largest bus bandwidth in a node and across nodes; one stands for the other if missing."""
    all_reduces = large.all_reduces
    bus = 2 * (all_reduces.ranks - 1) / all_reduces.ranks * all_reduces.message_bytes / large.times_s
    best = {
        many: float(np.max(bus[(all_reduces.num_nodes > 1) == many], initial=0.0)) or float(bus.max())
        for many in (False, True)
    }
    exposed = _GUESS.exposed if "exposed" in _large_names(large) else 0.0
    return replace(_GUESS, node_bytes_per_s=best[False], net_bytes_per_s=best[True], exposed=exposed)


def _fitted(costs: NcclCosts, names: Sequence[str], train: TimedAllReduces) -> NcclCosts:
    """Fit the named costs as factors on their first guess, which gives seconds and bytes per second one scale."""
    scales = [getattr(costs, name) or getattr(_GUESS, name) for name in names]

    def tried(factors: Sequence[float]) -> NcclCosts:
        found = zip(names, scales, factors, strict=True)
        return replace(costs, **{name: _limited(name, scale * factor) for name, scale, factor in found})

    def residuals(factors: Sequence[float]) -> Sequence[float]:
        errors: list[float] = train.relative_errors(tried(factors)).tolist()
        return errors

    return tried(least_squares(residuals, [1.0] * len(names)))


def _limited(name: str, value: float) -> float:
    low, high = _LIMITS.get(name, (1e-12, np.inf))
    return float(min(max(value, low), high))

"""Fit the costs of NCCL's all-reduce, as the simulator runs it, to logs of nccl-tests.

In a fit all links have a bandwidth of 1 B/s, so that an efficiency is a bus bandwidth in B/s.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from simnet.calibration.nccl_log import NcclLog
from simnet.calibration.solvers import least_squares
from simnet.cluster import nccl_model
from simnet.cluster.nccl_costs import NcclCosts
from simnet.cluster.nccl_model import RING_HOP_S, BusBandwidths
from simnet.core.errors import SimnetError
from simnet.core.units import Duration

Floats = NDArray[np.float64]

LARGE_BYTES = 1024**2
"""Messages from this size on fit the costs of LL128 and Simple, all of them those of LL."""
TINY_BYTES = 4096
"""Smaller messages all take the same time, so they add nothing to the fit."""
MIN_ROWS = 4
HUBER = 0.1
"""Relative error beyond which a row counts by its distance and not by the square of the distance: the first messages of
a log may take several times their time."""
_GUESS = NcclCosts(
    start_s=Duration(40e-6),
    ll_start_s=Duration(8e-6),
    ll_hop_s=Duration(1.2e-6),
    inter_node_hop_s=Duration(5e-6),
    ll_efficiency=0.07,
    exposed=0.5,
    intra_node_efficiency=1e11,
    inter_node_efficiency=1e11,
)
_LIMITS = {
    "ll_efficiency": (0.01, 0.5), "exposed": (1e-6, 1.0), "ll_start_s": (0.0, 1.0), "start_s": (0.0, 1.0),
    "ll_hop_s": (0.0, 1.0), "inter_node_hop_s": (0.0, 1.0),
}  # fmt: skip
DURATIONS = ("start_s", "ll_start_s", "ll_hop_s", "inter_node_hop_s")
_LL = ("ll_start_s", "ll_hop_s", "ll_efficiency")
_OF_ALL_SIZES = (*_LL, "inter_node_hop_s")
TURNS = 3


@dataclass(frozen=True, kw_only=True)
class TimedShape:
    """All-reduces on one number of nodes and ranks: messages [B], and the measured time of each [s]."""

    num_nodes: int
    ranks_per_node: int
    message_bytes: Floats
    times_s: Floats

    def select(self, chosen: "np.ndarray[tuple[int], np.dtype[np.generic]]") -> "TimedShape":
        """Return the all-reduces at a mask or at indices."""
        return TimedShape(
            num_nodes=self.num_nodes,
            ranks_per_node=self.ranks_per_node,
            message_bytes=self.message_bytes[chosen],
            times_s=self.times_s[chosen],
        )

    def relative_errors(self, costs: NcclCosts) -> Floats:
        """Return the signed relative error of each all-reduce: modelled / measured - 1."""
        return all_reduce_s(costs, self.num_nodes, self.ranks_per_node, self.message_bytes) / self.times_s - 1


Rows = tuple[TimedShape, ...]


def all_reduce_s(costs: NcclCosts, num_nodes: int, ranks_per_node: int, message_bytes: Floats) -> Floats:
    """Return the time of each message in its fastest algorithm and protocol [s]."""
    found = nccl_model.candidates(costs, num_nodes, ranks_per_node)
    at = rates_of(costs)
    latencies = np.array([one.latency_s for one in found])
    s_per_byte = np.array([nccl_model.s_per_byte(one, at) for one in found])
    fastest: Floats = np.min(latencies[:, None] + s_per_byte[:, None] * message_bytes, axis=0)
    return fastest


def rates_of(costs: NcclCosts) -> BusBandwidths:
    """Return the fitted bus bandwidths [B/s]; links that no log measured do not limit."""
    intra_node, inter_node = costs.intra_node_efficiency, costs.inter_node_efficiency
    return BusBandwidths(
        float("inf") if intra_node is None else intra_node, float("inf") if inter_node is None else inter_node
    )


def select_all_reduces(logs: Sequence[NcclLog], least_bytes: int = TINY_BYTES) -> Rows:
    """Return the all-reduces in logs by their shape, each out of place and in place.

    Raises:
        SimnetError: a log has another collective or one GPU.
    """
    for log in logs:
        if log.world_size == 1:
            raise SimnetError(f"{log.name}: one GPU sends nothing; drop this log")
        if log.collective != "all_reduce":
            raise SimnetError(f"{log.name}: {log.collective}: only all_reduce logs can be fitted; drop this log")
    found: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for log in logs:
        found.setdefault((log.num_nodes, log.ranks_per_node), []).extend(
            (row.message_bytes, time_s)
            for row in log.rows
            for time_s in row.times_s
            if time_s is not None and row.message_bytes >= least_bytes
        )
    return tuple(_shape(*shape, rows) for shape, rows in found.items() if rows)


def _shape(num_nodes: int, ranks_per_node: int, rows: Sequence[tuple[int, float]]) -> TimedShape:
    table = np.array(rows, dtype=np.float64)
    return TimedShape(
        num_nodes=num_nodes, ranks_per_node=ranks_per_node, message_bytes=table[:, 0], times_s=table[:, 1]
    )


def relative_errors(rows: Rows, costs: NcclCosts) -> Floats:
    """Return the signed relative error of every all-reduce: modelled / measured - 1."""
    return np.concatenate([shape.relative_errors(costs) for shape in rows])


def fit_costs(train: Rows, start: NcclCosts | None = None) -> NcclCosts:
    """Fit costs by least squares of relative errors: those of LL128 and Simple to large messages, others to all.

    Small messages do not move the costs of the large ones: a bandwidth that explains them would be off where it counts.
    Costs that the rows do not determine keep the values of NCCL's own table, or are missing.

    Args:
        train: at least `MIN_ROWS` all-reduces from `LARGE_BYTES` on.
        start: first guess, such as the costs of a fit to nearly the same all-reduces.

    Raises:
        SimnetError: too few large messages.
    """
    large, _ = _split(train)
    if _count(large) < MIN_ROWS:
        raise SimnetError(
            f"{_count(large)} times from 1 MiB on: at least {MIN_ROWS} are needed; run nccl-tests with -e 1G"
        )
    names = determined_names(train)
    if "ll_start_s" not in names:
        return _fitted(start or _first_guess(large, names), names, large)
    costs = start
    if costs is None:
        # LL is made slow, so that no large message uses it in the first turn.
        slow = replace(_first_guess(large, names), ll_efficiency=_LIMITS["ll_efficiency"][0])
        costs = _fitted(slow, [name for name in names if name not in _LL], large)
        costs = replace(costs, ll_efficiency=_GUESS.ll_efficiency)
    for turn in range(TURNS):
        if turn or start is not None:
            costs = _fitted(costs, [name for name in names if name not in _OF_ALL_SIZES], large)
        costs = _fitted(costs, [name for name in names if name in _OF_ALL_SIZES], train)
    return costs


def determined_names(train: Rows) -> tuple[str, ...]:
    """Return the names of the costs that these all-reduces determine."""
    large, small = _split(train)
    in_one_node = {shape.ranks_per_node for shape in large if shape.num_nodes == 1}
    node_counts = {shape.num_nodes for shape in large}
    names = ["start_s"]
    if in_one_node:
        names.append("intra_node_efficiency")
    # The exposed fraction of a chunk (S/n) differs from a lower bandwidth only if the number of ranks n varies.
    if len(in_one_node) > 1:
        names.append("exposed")
    if max(node_counts, default=1) > 1:
        names.append("inter_node_efficiency")
    # One number of nodes gives the sum of a start and its hops, two tell them apart.
    if len(node_counts) > 1:
        names.append("inter_node_hop_s")
    if _count(small) >= MIN_ROWS:
        names += ["ll_start_s", "ll_efficiency"]
        if in_one_node and len({(shape.num_nodes, shape.ranks_per_node) for shape in small}) > 1:
            names.append("ll_hop_s")
    return tuple(names)


def _split(train: Rows) -> tuple[Rows, Rows]:
    """Return the large and the small messages."""
    large = tuple(shape.select(shape.message_bytes >= LARGE_BYTES) for shape in train)
    small = tuple(shape.select(shape.message_bytes < LARGE_BYTES) for shape in train)
    return tuple(one for one in large if len(one.times_s)), tuple(one for one in small if len(one.times_s))


def _count(rows: Rows) -> int:
    return sum(len(shape.times_s) for shape in rows)


def _first_guess(large: Rows, names: Sequence[str]) -> NcclCosts:
    """Return costs with the largest bus bandwidth in a node and across nodes; nothing limits where none is known."""
    best = {False: 0.0, True: 0.0}
    for shape in large:
        ranks = shape.num_nodes * shape.ranks_per_node
        bus = 2 * (ranks - 1) / ranks * shape.message_bytes / shape.times_s
        best[shape.num_nodes > 1] = max(best[shape.num_nodes > 1], float(bus.max()))
    return replace(
        _GUESS,
        intra_node_efficiency=best[False] or None,
        inter_node_efficiency=best[True] or None,
        exposed=_GUESS.exposed if "exposed" in names else _LIMITS["exposed"][0],
        inter_node_hop_s=_GUESS.inter_node_hop_s if "inter_node_hop_s" in names else Duration(0),
        ll_hop_s=_GUESS.ll_hop_s if "ll_hop_s" in names else Duration(RING_HOP_S["LL"][0]),
    )


def _fitted(costs: NcclCosts, names: Sequence[str], train: Rows) -> NcclCosts:
    """Fit the named costs as factors on their first guess, which gives seconds and bytes per second one scale."""
    scales = [getattr(costs, name) or getattr(_GUESS, name) for name in names]

    def tried(factors: Sequence[float]) -> NcclCosts:
        found = zip(names, scales, factors, strict=True)
        return replace(costs, **{name: _limited(name, scale * factor) for name, scale, factor in found})

    def residuals(factors: Sequence[float]) -> Sequence[float]:
        errors = relative_errors(train, tried(factors))
        far = np.abs(errors) > HUBER
        # The square of a far row's residual grows with its error, not with the error's square.
        errors[far] = np.sign(errors[far]) * np.sqrt(2 * HUBER * np.abs(errors[far]) - HUBER**2)
        found: list[float] = errors.tolist()
        return found

    return tried(least_squares(residuals, [1.0] * len(names)))


def _limited(name: str, value: float) -> float:
    low, high = _LIMITS.get(name, (1e-12, np.inf))
    limited = float(min(max(value, low), high))
    return Duration(limited) if name in DURATIONS else limited

"""Fit the costs of NCCL's collectives, as the simulator runs them, to logs of nccl-tests: a calibration, and its links.

`nccl` holds what was fitted, and `algorithm = "nccl"` takes it. Collectives of compressing systems are timed by links:
the simulated flat ring takes launch + 2(n - 1)(latency + s / (efficiency(s) x bandwidth)) with sends of s = S/n bytes,
and the efficiency is the one for which this time is that of NCCL's ring. In a fit all links have a bandwidth of 1 B/s,
so that an efficiency is a bus bandwidth in B/s.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from simnet.calibration import fit, nccl_log
from simnet.calibration.comparison import Comparison, Role
from simnet.calibration.fit import (
    Fit,
    FittedPart,
    Floats,
    Interval,
    Prior,
    Values,
    counted,
    duration_text,
    rate_text,
    text_with_interval,
)
from simnet.calibration.nccl_log import UNKNOWN, NcclLog
from simnet.cluster import nccl_model
from simnet.cluster.hardware import Cluster
from simnet.cluster.nccl_costs import BANDS, LEAST_RATE, NcclCosts, band
from simnet.cluster.nccl_model import RING_HOP_S, BusBandwidths, Candidate
from simnet.cluster.schedule import Protocol
from simnet.core.errors import SimnetError, cut
from simnet.core.units import Bandwidth, Duration, Size, format_bytes, format_seconds

LARGE_BYTES = BANDS["below_16_mib"]
"""Messages from this size on tell bandwidths; a fit needs `MIN_ROWS` of them."""
TINY_BYTES = 256
"""Smaller messages all take the same time, and would only add weight to it."""
MIN_ROWS = 4
HUBER = 1.5
"""Standard deviations from which on a row counts by its distance and not by the square of the distance: the first
messages of a log may take several times their time."""
SIGMAS = ((2**19, 0.20), (2**22, 0.15), (2**24, 0.05))
"""Relative error that is expected of the model, by message [B]; log-linear between: as it was off on 32 GPUs."""
LL_HOP_RATIO, LL_HOP_POWER = "ll_hop_ratio", 0.6
"""What a hop between nodes takes in LL beyond NCCL's table, over what the hop of the other protocols lets expect: the
two are alike over InfiniBand; a transport that adds a hundred microseconds to large messages adds less to small."""
PRIORS = {
    "start_s": Prior(47.4e-6, 0.5),
    "ll_start_s": Prior(8.8e-6, 0.7),
    "ll_hop_s": Prior(1.3e-6, 0.3),
    "inter_node_hop_s": Prior(6.5e-6, 0.4),
    LL_HOP_RATIO: Prior(1.0, 0.35),
    "ll_efficiency": Prior(0.084, 0.5),
    "ll_tree_rate": Prior(4e9, 1.0),
    "exposed": Prior(0.39, 0.5),
    "intra_node_efficiency": Prior(0.75, 0.15),
    "inter_node_efficiency": Prior(0.80, 0.20),
    "nvls_start_s": Prior(200e-6, 0.8),
    "nvls_efficiency": Prior(0.56, 0.25),
}
"""What is believed of costs before any row: Azure's in the middle, as far around it as seven other clusters are
(docs/evidence/simulator.md)."""
NVLS_NIC = Prior(0.90, 0.20)
"""The same of NICs beside GPUs with NVSwitches that reduce: a tree through these fills a node's NICs at two nodes."""
LL_TREE_RATES = (3e8, 3e9, 3e10)
"""Where the search begins: between these, rings in LL hide the trees."""
OPEN, OPEN_HOP_SPREAD = 0.8, 1.2
"""Share of the belief in a hop that is left where no row had a say, and the deviation that is shown then: hops
are alike over RDMA, and fifty times as long over TCP."""
NO_RATES_SPREAD = 1.0
"""Of bandwidths where no cluster gives nominal rates: around the fastest row."""
MIN_EXPOSED = 1e-6
NVLS_GPUS = ("H100-80GB", "H200", "H800", "H20", "GH200", "B200", "GB200", "B300")
NVLS_RANKS, NVLS_SHARE = 8, 0.98
"""GPUs of a node on one NVSwitch, and the share of its NICs beyond which no ring can have made a bus bandwidth."""
DURATIONS = ("start_s", "ll_start_s", "ll_hop_s", "inter_node_hop_s", "ll_inter_node_hop_s", "nvls_start_s")
SEND_BYTES = tuple(2**power for power in range(12, 31))
TOLERANCE = 0.01
"""Points of the curve are left out where interpolation between the kept ones is this close."""
EfficiencyCurve = list[tuple[float, float]]
BAND_WORDS = dict(zip(BANDS, ("below 1 MiB", "from 1 to 16 MiB", "from 16 MiB on"), strict=True))


COLLECTIVES: dict[str, Callable[[NcclCosts, int, int], tuple[Candidate, ...]]] = {
    "all_reduce": nccl_model.candidates,
    "all_gather": nccl_model.gather_candidates,
    "reduce_scatter": nccl_model.gather_candidates,
    "broadcast": nccl_model.broadcast_candidates,
    "reduce": nccl_model.broadcast_candidates,
}
"""The ways in which NCCL may run each collective that is fitted."""
ALL_TO_ALL, SEND = "all_to_all", "send"
MIN_ELASTICITY = 0.5
"""Of the time over the message at the largest ones: bytes must take half of the time for a bandwidth."""
MIN_NUMBERS = 3
"""Numbers of nodes from which on an extrapolation rests on more than two points."""
SLOWER = 0.9
"""A ratio of bus bandwidths below which fewer nodes are said to be slower than more."""
_SHOWN_LENGTH = 80
BEYOND = {"below_1_mib": 0.20, "below_16_mib": 0.20, "from_16_mib": 0.08}
"""Standard deviation of the logarithm of a time on a number of nodes that was not fitted, by size: as four nodes of
H100 differ from what two say, and 32 GPUs of Azure from what 16 do."""
RING_WAYS = {"all_reduce": 2.0}
"""How often a ring passes (n - 1)/n of the message through each link; once where it is not said."""


@dataclass(frozen=True, kw_only=True)
class TimedShape:
    """One collective on one number of nodes and ranks: messages [B], and the measured time of each [s]."""

    collective: str = "all_reduce"
    num_nodes: int
    ranks_per_node: int
    message_bytes: Floats
    times_s: Floats

    def select(self, chosen: "np.ndarray[tuple[int], np.dtype[np.generic]]") -> "TimedShape":
        """Return the messages at a mask or at indices."""
        return changed(self, message_bytes=self.message_bytes[chosen], times_s=self.times_s[chosen])

    def modelled_s(self, costs: NcclCosts) -> Floats:
        """Return the time of each message in its fastest algorithm and protocol [s]."""
        ways = candidates(costs, self)
        at = rates_of(costs)
        latencies = np.array([way.latency_s for way in ways])
        s_per_byte = np.array([nccl_model.s_per_byte(way, at) for way in ways])
        # NCCL's tuner takes the fastest by a table of its own: the fit assumes that the table is right.
        fastest: Floats = np.min(latencies[:, None] + s_per_byte[:, None] * self.message_bytes, axis=0)
        return fastest


Rows = tuple[TimedShape, ...]


class Allowed(NamedTuple):
    """What NCCL may take, as `NCCL_ALGO` and `NCCL_PROTO` say; None: all."""

    algorithm: Literal["ring"] | None = None
    protocol: Protocol | None = None


ANY = Allowed()


def candidates(costs: NcclCosts, shape: TimedShape | NcclLog) -> tuple[Candidate, ...]:
    """Return every way in which NCCL may run a collective on these nodes and ranks."""
    return COLLECTIVES[shape.collective](costs, shape.num_nodes, shape.ranks_per_node)


def rates_of(costs: NcclCosts) -> BusBandwidths:
    """Return the fitted bus bandwidths [B/s]; links that no log measured do not limit."""
    intra_node, inter_node = costs.intra_node_efficiency, costs.inter_node_efficiency
    return BusBandwidths(
        float("inf") if intra_node is None else intra_node,
        float("inf") if inter_node is None else inter_node,
        float("inf") if costs.nvls_efficiency is None else costs.nvls_efficiency,
        float("inf") if costs.ll_tree_rate is None else costs.ll_tree_rate,
    )


def select(logs: Sequence[NcclLog], least_bytes: int = TINY_BYTES) -> Rows:
    """Return the messages of logs by their collective and shape, each out of place and in place."""
    by_shape: dict[tuple[str, int, int], list[tuple[int, float]]] = {}
    for log in logs:
        by_shape.setdefault((log.collective, log.num_nodes, log.ranks_per_node), []).extend(log.times(least_bytes))
    return tuple(
        TimedShape(
            collective=collective,
            num_nodes=num_nodes,
            ranks_per_node=ranks_per_node,
            message_bytes=np.array([size for size, _ in rows], dtype=np.float64),
            times_s=np.array([time_s for _, time_s in rows]),
        )
        for (collective, num_nodes, ranks_per_node), rows in by_shape.items()
        if rows
    )


def fit_costs(
    train: Rows, rates: "NominalRates | None" = None, *, has_nvls: bool = False, allowed: Allowed = ANY
) -> tuple[NcclCosts, dict[str, Interval]]:
    """Fit the costs that messages have a say in: the most likely ones, given `PRIORS`.

    Args:
        train: at least `MIN_ROWS` messages from `LARGE_BYTES` on.
        rates: of the links, which priors of bandwidths are fractions of; without them nothing is believed of these.
        has_nvls: whether NCCL may reduce in NVSwitches.
        allowed: what NCCL may take.

    Returns:
        The costs, bandwidths in B/s, and the 90 % interval of each that was fitted, as factors on it.
    """
    large = sum(int((shape.message_bytes >= LARGE_BYTES).sum()) for shape in train)
    if large < MIN_ROWS:
        raise SimnetError(f"{large} times from 1 MiB on: at least {MIN_ROWS} are needed; run nccl-tests with -e 1G")
    priors = _priors(train, rates, has_nvls=has_nvls)

    def times_s(values: Values, rows: Sequence[TimedShape]) -> Floats:
        costs = _costs(values, allowed)
        return np.concatenate([shape.modelled_s(costs) for shape in rows])

    values, spreads = Fit(
        rows=train,
        times=np.concatenate([shape.times_s for shape in train]),
        model=times_s,
        free={name: prior.middle for name, prior in priors.items()},
        prior=priors,
    ).posterior(
        np.concatenate([sigma(shape.message_bytes) for shape in train]),
        HUBER,
        [{"ll_tree_rate": rate} for rate in LL_TREE_RATES] if "ll_tree_rate" in priors else ({},),
    )
    # Rows had next to no say in the hop: what is believed is as narrow as RDMA, and the network may be TCP.
    if spreads.get("inter_node_hop_s", 0.0) > OPEN * PRIORS["inter_node_hop_s"].spread:
        spreads["inter_node_hop_s"] = OPEN_HOP_SPREAD
    if LL_HOP_RATIO in spreads:
        of_ratio = spreads.pop(LL_HOP_RATIO)
        spreads["ll_inter_node_hop_s"] = float(np.hypot(of_ratio, LL_HOP_POWER * spreads["inter_node_hop_s"]))
    return _costs(values, allowed), {name: fit.factors_of(spread) for name, spread in spreads.items()}


def sigma(message_bytes: Floats) -> Floats:
    """Return the relative error that the model is expected to have at these messages."""
    at, errors = zip(*SIGMAS, strict=True)
    expected: Floats = np.exp(np.interp(np.log2(message_bytes), np.log2(np.array(at)), np.log(np.array(errors))))
    return expected


def _priors(train: Rows, rates: "NominalRates | None", *, has_nvls: bool) -> dict[str, Prior]:
    """Return what is believed of the costs that these shapes have."""
    in_node = any(shape.num_nodes == 1 for shape in train)
    across = any(shape.num_nodes > 1 for shape in train)
    names = ["start_s", "ll_start_s", "ll_efficiency"]
    names += ["ll_hop_s"] if any(shape.ranks_per_node > 1 for shape in train) else []
    names += ["exposed"] if in_node else []
    names += ["inter_node_hop_s", LL_HOP_RATIO, "ll_tree_rate"] if across else []
    names += ["nvls_start_s"] if has_nvls else []
    priors = {name: PRIORS[name] for name in names}
    levels = [("intra_node_efficiency", False, in_node), ("inter_node_efficiency", True, across)]
    for name, is_across, is_there in levels:
        if is_there and rates is None:
            # Of links without a nominal rate the fastest row says most: some message has nearly filled them.
            priors[name] = Prior(_best(train, across=is_across), NO_RATES_SPREAD)
        elif is_there and rates is not None:
            nominal = rates.inter_bytes_per_s if is_across else rates.intra_bytes_per_s
            prior = NVLS_NIC if is_across and has_nvls else PRIORS[name]
            priors[name] = prior._replace(middle=prior.middle * nominal)
    if has_nvls and rates is not None:
        prior = PRIORS["nvls_efficiency"]
        priors["nvls_efficiency"] = prior._replace(middle=prior.middle * rates.intra_bytes_per_s)
    return priors


def _best(train: Rows, *, across: bool) -> float:
    """Return the largest bus bandwidth inside a node or across nodes [B/s]."""
    return max(float(_bus_bandwidths(shape).max()) for shape in train if (shape.num_nodes > 1) == across)


def _bus_bandwidths(shape: TimedShape) -> Floats:
    ranks = shape.num_nodes * shape.ranks_per_node
    # As nccl-tests prints it: what each link carries, so that the number says how full it is.
    passed = RING_WAYS.get(shape.collective, 1.0) * (ranks - 1) / ranks
    bandwidths: Floats = passed * shape.message_bytes / shape.times_s
    return bandwidths


def _costs(values: Values, allowed: Allowed) -> NcclCosts:
    """Return costs with bandwidths in B/s; those without a value are what is believed before any row, or missing."""
    optional = ("intra_node_efficiency", "inter_node_efficiency", "nvls_start_s", "nvls_efficiency", "ll_tree_rate")
    known = {name: prior.middle for name, prior in PRIORS.items() if name not in optional} | dict(values)
    usual_s = PRIORS["inter_node_hop_s"].middle
    # The hop in LL is believed to follow the other one, so that logs which tell one bound both.
    expected_s = usual_s * (known["inter_node_hop_s"] / usual_s) ** LL_HOP_POWER
    known["ll_inter_node_hop_s"] = known.pop(LL_HOP_RATIO) * expected_s
    # Logs of one node: what is believed of a network must not enter a calibration as if it had been measured.
    if "inter_node_hop_s" not in values:
        known["inter_node_hop_s"] = known["ll_inter_node_hop_s"] = 0.0
    if "exposed" not in values:
        known["exposed"] = MIN_EXPOSED
    if "ll_tree_rate" in known:
        known["ll_tree_rate"] = Bandwidth(max(known["ll_tree_rate"], LEAST_RATE))
    return NcclCosts(
        algorithm=allowed.algorithm,
        protocol=allowed.protocol,
        **{name: Duration(value) if name in DURATIONS else value for name, value in known.items()},  # type: ignore[arg-type]
    )


def with_nvls(train: Rows, cluster: Cluster | None) -> bool:
    """Tell whether NCCL reduces in NVSwitches: with GPUs that can, or where two nodes are faster than rings can be."""
    if cluster is None:
        return False
    rates = nominal_rates(cluster)
    across = [shape for shape in train if shape.num_nodes > 1 and shape.ranks_per_node > 1]
    # Known of whole nodes of eight GPUs on one NVSwitch; what fewer of them do is not.
    can = cluster.gpu.startswith(NVLS_GPUS) and any(shape.ranks_per_node == NVLS_RANKS for shape in across)
    faster = [_bus_bandwidths(shape).max() > NVLS_SHARE * rates.inter_bytes_per_s for shape in across]
    return can or any(faster)


@dataclass(frozen=True, kw_only=True)
class NominalRates:
    """Rates that efficiencies are fractions of [B/s]: of a link in a node and of a node's NICs; and these NICs."""

    intra_bytes_per_s: float
    inter_bytes_per_s: float
    nics_per_node: int = 1


def _fitted_rates(costs: NcclCosts) -> NominalRates:
    """Return the fitted rates in place of a cluster's, one for the other where one is missing."""
    fitted = [rate for rate in (costs.intra_node_efficiency, costs.inter_node_efficiency) if rate is not None]
    return NominalRates(intra_bytes_per_s=fitted[0], inter_bytes_per_s=fitted[-1])


def nominal_rates(cluster: Cluster) -> NominalRates:
    """Return the rates of a cluster."""
    return NominalRates(
        intra_bytes_per_s=float(cluster.intra_node.bytes_per_s),
        inter_bytes_per_s=float(cluster.inter_node.bytes_per_s) * cluster.nics_per_node,
        nics_per_node=cluster.nics_per_node,
    )


@dataclass(frozen=True, kw_only=True)
class SortedLogs:
    """Logs by what becomes of them.

    Attributes:
        fitted: to fit the costs of NCCL to.
        compared: other collectives where all-reduces tell the costs: predicted, each row shown.
        all_to_alls: across nodes, which tell by how much less they fill the NICs.
        sends: inside a node where nothing else tells its links.
        skipped: why the others tell nothing, a sentence each.
    """

    fitted: tuple[NcclLog, ...]
    compared: tuple[NcclLog, ...]
    all_to_alls: tuple[NcclLog, ...]
    sends: tuple[NcclLog, ...]
    skipped: tuple[str, ...]


def sort(logs: Sequence[NcclLog]) -> SortedLogs:
    """Return what becomes of each log. All-reduces tell the costs of a level, other rings where there are none."""
    flaws = {log: flaw(log) or _lack(log) for log in logs}
    # A level is the inside of a node, or what is between nodes: each has a bandwidth of its own.
    large = {(log.collective, log.num_nodes > 1) for log, why in flaws.items() if not why}
    # Small messages tell latencies, where larger ones of the same level tell its bandwidth.
    flaws |= {
        log: "" for log in logs if not flaw(log) and _is_small(log) and (log.collective, log.num_nodes > 1) in large
    }
    useful = [log for log, why in flaws.items() if not why]
    rings = [log for log in useful if log.collective in COLLECTIVES]
    # Other collectives have fewer candidates in NCCL, so that an all-reduce says more of every cost.
    reduced = {log.num_nodes > 1 for log in rings if log.collective == "all_reduce"}
    fitted = [log for log in rings if log.collective == "all_reduce" or (log.num_nodes > 1) not in reduced]
    sends = [log for log in useful if log.collective == SEND]
    in_node = any(log.num_nodes == 1 for log in fitted)
    skipped = [f"{log.name}: {why}" for log, why in flaws.items() if why]
    skipped += [f"{log.name}: {SEND}: the links inside a node are those of the other logs" for log in sends if in_node]
    return SortedLogs(
        fitted=tuple(fitted),
        compared=tuple(log for log in rings if log not in fitted),
        all_to_alls=tuple(log for log in useful if log.collective == ALL_TO_ALL),
        sends=() if in_node else tuple(sends),
        skipped=tuple(skipped),
    )


def flaw(log: NcclLog) -> str:
    """Return why a log tells nothing of links, whatever its rows are; empty if it does."""
    if log.world_size == 1:
        return "one GPU sends nothing"
    if log.collective == UNKNOWN:
        return "nothing names its program, and it is no all-reduce by its operator and its bandwidths"
    if log.collective == ALL_TO_ALL and log.num_nodes == 1:
        return f"{ALL_TO_ALL} inside a node: no part of a calibration"
    if log.collective == SEND and log.num_nodes > 1:
        return f"{SEND} between nodes: one flow does not fill the NICs of a node"
    if log.collective not in (*COLLECTIVES, ALL_TO_ALL, SEND):
        return f"{log.collective}: no part of a calibration is fitted to it"
    return ""


def _is_small(log: NcclLog) -> bool:
    """Return whether a whole log tells no bandwidth, but may tell latencies."""
    return not log.failure and max(row.message_bytes for row in log.rows) >= TINY_BYTES


def _lack(log: NcclLog) -> str:
    """Return why the rows of a log tell no bandwidth; empty if they do."""
    failed = f" (the run failed: {cut(log.failure, _SHOWN_LENGTH)})" if log.failure else ""
    largest = max(row.message_bytes for row in log.rows)
    if largest < LARGE_BYTES:
        return f"its largest message is {format_bytes(largest)}{failed}: a bandwidth needs 1 MiB and more"
    if nccl_log.elasticity(log) < MIN_ELASTICITY:
        return f"the time of its largest messages hardly grows with them{failed}: a bandwidth needs larger ones"
    return ""


def fit_logs(
    logs: Sequence[NcclLog],
    held_out: Sequence[NcclLog],
    cluster: Cluster | None,
    *,
    is_needed: bool,
    allowed: Allowed = ANY,
) -> list[FittedPart]:
    """Fit the logs that help; those that do not are named in a note.

    Args:
        logs: logs to fit.
        held_out: logs to predict.
        cluster: gives the nominal bandwidths, which efficiencies are fractions of.
        is_needed: whether nothing else is there to fit.
        allowed: what NCCL may take.

    Raises:
        SimnetError: no log helps although one is needed, or too few rows.
    """
    known = sort(logs)
    skipped = [*known.skipped, *(f"{log.name}: {flaw(log)}" for log in held_out if flaw(log))]
    if not (known.fitted or known.sends) and is_needed:
        raise SimnetError(f"{'; '.join(skipped)}: no log is left; give one of all_reduce_perf on several GPUs")
    kept = [log for log in held_out if log.collective in COLLECTIVES and not flaw(log)]
    notes = [f"{reason}: skipped" for reason in skipped]
    notes += [_rows_text(log) for log in (*known.fitted, *known.compared, *known.all_to_alls, *known.sends)]
    if not known.fitted:
        return [FittedPart(table={}, notes=tuple(notes))]
    part = fit_part(known.fitted, [*known.compared, *kept], cluster, known.all_to_alls, allowed)
    return [changed(part, notes=(*notes, *part.notes))]


def _rows_text(log: NcclLog) -> str:
    failed = f"; the run failed then: {cut(log.failure, _SHOWN_LENGTH)}" if log.failure else ""
    which = "" if log.collective == "all_reduce" else f" of {log.collective}"
    return f"{log.name}: {counted(len(log.rows), 'row')}{which} of {log.layout_text}{failed}"


def fit_part(
    logs: Sequence[NcclLog],
    held_out: Sequence[NcclLog],
    cluster: Cluster | None,
    all_to_alls: Sequence[NcclLog] = (),
    allowed: Allowed = ANY,
) -> FittedPart:
    """Fit logs of `COLLECTIVES`, with intervals and residuals.

    Args:
        logs: logs to fit.
        held_out: logs to predict.
        cluster: gives the nominal bandwidths, which efficiencies are fractions of.
        all_to_alls: logs across nodes.
        allowed: what NCCL may take.

    Raises:
        SimnetError: too few rows, or links that are slower than what was measured.
    """
    train = select(logs)
    nominal = None if cluster is None else nominal_rates(cluster)
    # NVSwitches reduce by the protocol Simple alone, and not in rings.
    has_nvls = with_nvls(train, cluster) and allowed.algorithm is None and allowed.protocol in {None, "Simple"}
    costs, spread = fit_costs(train, nominal, has_nvls=has_nvls, allowed=allowed)
    rates = nominal or _fitted_rates(costs)
    _check_rates(costs, rates)
    shown = {name.removesuffix("_s"): _shown(name, getattr(costs, name), factors) for name, factors in spread.items()}
    # Intervals of costs say how well these are known; the scatter, how far the model is off with the right ones.
    whole, intervals = table(costs, logs, rates, spread), _intervals(spread, logs) | _scatter(train, costs)
    if cluster is not None and costs.inter_node_efficiency is not None:
        whole["nccl"] |= _fabric(costs, cluster.inter_node.alpha_s)
    if all_to_all := _all_to_all(costs, all_to_alls):
        key, (efficiency, factors) = "all_to_all_efficiency", all_to_all
        whole[key], intervals[key] = round(efficiency, 4), factors
        shown[key] = text_with_interval(efficiency, factors, "{:.3f}".format)
    return FittedPart(
        table=whole,
        shown=shown,
        intervals=intervals,
        residuals=(*_residuals(logs, costs, "fitted"), *_residuals(held_out, costs, "held out")),
        notes=_notes(train, cluster, logs),
    )


def _all_to_all(costs: NcclCosts, logs: Sequence[NcclLog]) -> tuple[float, Interval] | None:
    """Return the rate at which all-to-alls fill the NICs over that of the ring, with its interval as factors."""
    if costs.inter_node_efficiency is None:
        return None
    # The largest messages: smaller ones are bound by their latencies, which the all-reduces tell.
    ratios = [
        log.ranks_per_node * (log.world_size - log.ranks_per_node) / log.world_size * size / time_s
        / costs.inter_node_efficiency
        for log in logs
        for size, time_s in log.times(LARGE_BYTES)
        if size >= max(row.message_bytes for row in log.rows) / 16
    ]  # fmt: skip
    if not ratios:
        return None
    # Above 1 would be noise: the ring's bytes leave through the same NICs.
    value = min(float(np.median(ratios)), 1.0)
    low, high = np.percentile(ratios, [fit.LOW, fit.HIGH]) / value
    return value, (min(float(low), 1.0), min(max(float(high), 1.0), 1 / value))


def _check_rates(costs: NcclCosts, rates: NominalRates) -> None:
    """Refuse a cluster whose links are slower than what was measured."""
    for level, fitted, nominal in (
        ("intra_node", costs.intra_node_efficiency, rates.intra_bytes_per_s),
        ("inter_node", costs.inter_node_efficiency, rates.inter_bytes_per_s),
    ):
        if fitted is not None and fitted > nominal:
            raise SimnetError(
                f"--cluster: {level}: {nominal / 1e9:.4g} GB/s: the logs reach {fitted / 1e9:.4g} GB/s: must be at "
                "least as fast; give the cluster of the logs"
            )


def table(
    costs: NcclCosts, logs: Sequence[NcclLog], rates: NominalRates, spread: dict[str, Interval]
) -> dict[str, Any]:
    """Return the fitted part of a calibration, in file form."""
    intra_s, inter_s = costs.ll_hop_s, RING_HOP_S["LL"][1] + (costs.ll_inter_node_hop_s or 0.0)
    parts: dict[str, Any] = {
        "collective_launch": duration_text(costs.ll_start_s), "flat_ring_latency": "mean",
        "intra_node": {"latency": duration_text(intra_s)}, "nccl": _nccl_table(costs, logs, rates),
    }  # fmt: skip
    # Smaller logs would end the curve before the bandwidth is reached.
    curved = [log for log in logs if max(row.message_bytes for row in log.rows) >= LARGE_BYTES]
    single_node = [log for log in curved if log.num_nodes == 1]
    multi_node = {log.num_nodes: log for log in sorted(curved, key=lambda log: log.world_size) if log.num_nodes > 1}
    if single_node:
        shape = max(single_node, key=lambda log: log.world_size)
        curve = _curve(costs, shape, intra_s, rates.intra_bytes_per_s)
        parts["intra_node"] = _link(curve, intra_s, rates.intra_bytes_per_s, single_node)
    if multi_node:
        curves = {
            nodes: _curve(costs, shape, _mean_hop_s(shape, intra_s, inter_s), rates.inter_bytes_per_s)
            for nodes, shape in sorted(multi_node.items())
        }
        # A cluster gives the rate of a NIC, and this is checked against it.
        nic_bytes_per_s = rates.inter_bytes_per_s / rates.nics_per_node
        parts["inter_node"] = {"measured_on": rate_text(nic_bytes_per_s)}
        keys = {"efficiency": "inter_node_efficiency", "latency": "ll_inter_node_hop_s"}
        intervals = {key: [round(at, 4) for at in spread[name]] for key, name in keys.items() if name in spread}
        parts["by_nodes"] = [
            {
                "nodes": nodes,
                "efficiency": _points(curve),
                "latency": duration_text(inter_s),
                "intervals": intervals,
                "source": f"nccl-tests {_programs(multi_node.values())} on {multi_node[nodes].world_size} GPUs",
            }
            for nodes, curve in curves.items()
        ]
    return parts


def _nccl_table(costs: NcclCosts, logs: Sequence[NcclLog], rates: NominalRates) -> dict[str, object]:
    fitted: dict[str, object] = {
        "start": duration_text(costs.start_s),
        "ll_start": duration_text(costs.ll_start_s),
        "ll_hop": duration_text(costs.ll_hop_s),
        "inter_node_hop": duration_text(costs.inter_node_hop_s),
        "ll_inter_node_hop": duration_text(costs.ll_inter_node_hop_s or 0.0),
        "ll_efficiency": round(costs.ll_efficiency, 5),
        **({"ll_tree_rate": rate_text(costs.ll_tree_rate)} if costs.ll_tree_rate is not None else {}),
        "exposed": round(costs.exposed, 6),
    }
    if costs.intra_node_efficiency is not None:
        fitted["intra_node_efficiency"] = round(costs.intra_node_efficiency / rates.intra_bytes_per_s, 5)
    if costs.inter_node_efficiency is not None:
        fitted["inter_node_efficiency"] = round(costs.inter_node_efficiency / rates.inter_bytes_per_s, 5)
    if costs.nvls_start_s is not None and costs.nvls_efficiency is not None:
        fitted["nvls_start"] = duration_text(costs.nvls_start_s)
        fitted["nvls_efficiency"] = round(costs.nvls_efficiency / rates.intra_bytes_per_s, 5)
    only = {"algorithm": costs.algorithm, "protocol": costs.protocol}
    fitted |= {key: value for key, value in only.items() if value is not None}
    return {**fitted, "source": f"nccl-tests {_programs(logs)} on {_gpus(logs)} GPUs"}


def _fabric(costs: NcclCosts, alpha_s: Duration) -> dict[str, object]:
    """Return the latency of the fabric where the fitted hops do not hold it, so that it counts for theirs."""
    return {"fabric_latency": alpha_s.text()} if nccl_model.added_hop_s(costs, alpha_s) > 0 else {}


def _gpus(logs: Sequence[NcclLog]) -> str:
    return ", ".join(map(str, sorted({log.world_size for log in logs})))


def _programs(logs: Iterable[NcclLog]) -> str:
    return ", ".join(dict.fromkeys(log.collective for log in logs))


def _mean_hop_s(shape: NcclLog, intra_s: float, inter_s: float) -> float:
    # One send in ranks_per_node of a ring leaves its node; "mean" (flat_ring_latency) charges the average of all.
    crossing = 1 / shape.ranks_per_node
    return crossing * inter_s + (1 - crossing) * intra_s


def _link(curve: EfficiencyCurve, latency_s: float, bytes_per_s: float, logs: Sequence[NcclLog]) -> dict[str, object]:
    return {
        "latency": duration_text(latency_s),
        "measured_on": rate_text(bytes_per_s),
        "efficiency": _points(curve),
        "source": f"nccl-tests {_programs(logs)} on {_gpus(logs)} GPUs; the curve is that of "
        f"{max(log.world_size for log in logs)}",
    }


def _points(curve: EfficiencyCurve) -> list[list[object]]:
    return [[Size(size).text(), round(value, 4)] for size, value in curve]


def _curve(costs: NcclCosts, shape: NcclLog, latency_s: float, bytes_per_s: float) -> EfficiencyCurve:
    """Return the efficiency by send size, up to the largest of the logs, without needless points."""
    # The simulated ring pays them one after the other: what NCCL's ring takes is shared out among them.
    sends = 2 * (shape.world_size - 1)
    largest = max(row.message_bytes for row in shape.rows) / shape.world_size
    sizes = [float(size) for size in SEND_BYTES if size <= largest] or [float(SEND_BYTES[0])]
    rings = [
        candidate
        for candidate in nccl_model.candidates(costs, shape.num_nodes, shape.ranks_per_node)
        if candidate.algorithm == "ring"
    ]
    at = rates_of(costs)
    times = np.array([min(nccl_model.seconds(ring, at, size * shape.world_size) for ring in rings) for size in sizes])
    # The rest of the time, after what the simulated ring pays by itself.
    # Where the latency alone exceeds the time of NCCL's ring, the bytes cost nothing: efficiency 1.
    each_s = np.maximum((times - costs.ll_start_s) / sends - latency_s, 1e-9)
    efficiency = np.minimum(np.array(sizes) / bytes_per_s / each_s, 1.0)
    return _thinned(list(zip(sizes, efficiency.tolist(), strict=True)))


def _thinned(curve: EfficiencyCurve) -> EfficiencyCurve:
    """Leave out points that interpolation between the kept ones reproduces, log-linear as in the simulator."""
    kept = [curve[0]]
    # A stretch goes as far as interpolation reproduces all points inside; its last point begins the next.
    for end in range(2, len(curve)):
        inside = curve[curve.index(kept[-1]) + 1 : end]
        if any(abs(_interpolated(kept[-1], curve[end], size) / value - 1) > TOLERANCE for size, value in inside):
            kept.append(curve[end - 1])
    return [*kept, curve[-1]] if len(curve) > 1 else kept


def _interpolated(low: tuple[float, float], high: tuple[float, float], size: float) -> float:
    part = np.log(size / low[0]) / np.log(high[0] / low[0])
    return float(low[1] + part * (high[1] - low[1]))


def _intervals(spread: dict[str, Interval], logs: Sequence[NcclLog]) -> dict[str, Interval]:
    """Return the intervals by calibration key; the interval of a bandwidth holds for its whole efficiency curve."""
    by_key = {f"nccl.{name.removesuffix('_s')}": factors for name, factors in spread.items()}
    # The links of other collectives hold the same costs.
    # Small messages go by LL, whose start and hop the links of other collectives take.
    links = {"ll_start_s": "collective_launch", "ll_hop_s": "intra_node.latency"}
    if any(log.num_nodes == 1 for log in logs):
        links["intra_node_efficiency"] = "intra_node.efficiency"
    return by_key | {key: spread[name] for name, key in links.items() if name in spread}


def _scatter(train: Rows, costs: NcclCosts) -> dict[str, Interval]:
    """Return how far a time may be from what the costs say, by size: as rows scatter, and other numbers of nodes do."""
    sizes = np.concatenate([shape.message_bytes for shape in train])
    bands = np.searchsorted([*BANDS.values()], sizes, side="right") - 1
    # In logarithms, since an error of a factor two must count alike either way.
    off = np.log(np.concatenate([shape.times_s / shape.modelled_s(costs) for shape in train]))
    factors = {}
    for number, (key, least) in enumerate(BANDS.items()):
        inside = off[bands == number]
        scatter = float(np.sqrt(np.mean(inside**2))) if inside.size else float(sigma(np.array([max(least, 1.0)]))[0])
        factors[f"nccl.{key}"] = fit.factors_of(float(np.hypot(scatter, BEYOND[key])))
    return factors


def _residuals(logs: Sequence[NcclLog], costs: NcclCosts, role: Role) -> list[Comparison]:
    """Return the residuals of every row: of fitted logs together, of held-out ones by size."""
    return [
        Comparison(
            # A fit is judged as a whole; a prediction by size, since latencies and bandwidths fail apart.
            series=f"{log.collective}, {log.layout_text}"
            + ("" if role == "fitted" else f", {BAND_WORDS[band(row.message_bytes)]}"),
            label=f"{format_bytes(row.message_bytes)}, {best.name}{', in place' if in_place else ''}",
            measured=measured_s,
            predicted=predicted_s,
            role=role,
        )
        for log in logs
        for row in log.rows
        # Rows that were left out of the fit are no residuals of it.
        if row.message_bytes >= (TINY_BYTES if role == "fitted" else 1)
        for best, predicted_s in [_predicted(costs, log, row.message_bytes)]
        for in_place, measured_s in enumerate(row.times_s)
        if measured_s is not None
    ]


def _predicted(costs: NcclCosts, log: NcclLog, message_bytes: float) -> tuple[nccl_model.Candidate, float]:
    """Return the fastest algorithm and protocol for a message, and its time [s]."""
    at = rates_of(costs)
    best = nccl_model.fastest(candidates(costs, log), at, message_bytes)
    return best, nccl_model.seconds(best, at, message_bytes)


def _notes(train: Rows, cluster: Cluster | None, logs: Sequence[NcclLog]) -> tuple[str, ...]:
    notes = []
    if cluster is None:
        notes.append(
            "without --cluster, efficiencies are fractions of the fitted bandwidths; give the cluster that uses the "
            "calibration these rates (measured_on)"
        )
    if sum(int((shape.message_bytes < LARGE_BYTES).sum()) for shape in train) < MIN_ROWS:
        notes.append(
            "too few times below 1 MiB: the latencies of small messages are those of other clusters; run nccl-tests "
            "with -b 8"
        )
    notes += _slower(logs)
    numbers = sorted({log.num_nodes for log in logs})
    if numbers[-1] > 1 and len(numbers) < MIN_NUMBERS:
        notes.append(few_numbers_note(numbers))
    if numbers[-1] == 2:
        notes.append(
            "at two nodes a tree sends half as much as beyond: how much of the NICs more nodes fill is open by "
            "inter_node_efficiency's interval and more; measure three or more nodes"
        )
    return tuple(notes)


def few_numbers_note(numbers: Sequence[int]) -> str:
    """Return what rests on few numbers of nodes, ascending."""
    more = "a third number" if len(numbers) == MIN_NUMBERS - 1 else "two more numbers"
    return (
        f"{counted(len(numbers), 'number')} of nodes: beyond {numbers[-1]} nodes nothing shows how the bandwidth goes "
        f"on; measure {more}"
    )


def _slower(logs: Sequence[NcclLog]) -> list[str]:
    """Return where fewer nodes are slower than more, at the largest message of both."""
    best: dict[tuple[str, int], dict[int, dict[int, float]]] = {}
    for log in logs:
        by_size = best.setdefault((log.collective, log.ranks_per_node), {}).setdefault(log.num_nodes, {})
        passed = RING_WAYS.get(log.collective, 1.0) * (log.world_size - 1) / log.world_size
        for size, time_s in log.times(LARGE_BYTES):
            by_size[size] = max(by_size.get(size, 0.0), passed * size / time_s)
    sentences = []
    for by_nodes in best.values():
        across = [nodes for nodes in sorted(by_nodes) if nodes > 1]
        for few, more in pairwise(across):
            common = by_nodes[few].keys() & by_nodes[more].keys()
            # At the largest message of both: smaller ones are slower for their latencies.
            rates = [by_nodes[nodes][max(common)] for nodes in (few, more)] if common else [1.0, 1.0]
            if rates[0] < SLOWER * rates[1]:
                sentences.append(
                    f"{few} nodes reach {rates[0] / 1e9:.4g} GB/s with {format_bytes(max(common))}, {more} nodes "
                    f"{rates[1] / 1e9:.4g} GB/s: fewer nodes are slower, so that one of the logs is not of a quiet "
                    "network; measure it again"
                )
    return sentences


def _shown(name: str, value: float, spread: Interval | None) -> str:
    def text(number: float) -> str:
        if name.endswith(("node_efficiency", "nvls_efficiency", "ll_tree_rate")):
            return f"{number / 1e9:.1f} GB/s"
        return format_seconds(number) if name in DURATIONS else f"{number:.3f}"

    return text_with_interval(value, spread, text)

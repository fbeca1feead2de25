"""From logs of nccl-tests to a calibration: the costs of NCCL's all-reduce, and links for all other collectives.

`nccl` holds what was fitted, and `algorithm = "nccl"` takes it. Other collectives (those of compressing systems) are
timed by links: the simulated flat ring takes launch + 2(n - 1)(latency + s / (efficiency(s) x bandwidth)) with sends of
s = S/n bytes, and the efficiency is the one for which this time is that of NCCL's ring.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simnet.calibration import bootstrap
from simnet.calibration.comparison import Comparison, Role
from simnet.calibration.fitted_part import FittedPart, Interval, duration_text, text_with_interval
from simnet.calibration.nccl_fit import (
    DURATIONS,
    LARGE_BYTES,
    Rows,
    TimedShape,
    determined_names,
    fit_costs,
    rates_of,
    select_all_reduces,
)
from simnet.calibration.nccl_log import NcclLog
from simnet.cluster import nccl_model
from simnet.cluster.hardware import Cluster
from simnet.cluster.nccl_costs import NcclCosts
from simnet.cluster.nccl_model import RING_HOP_S
from simnet.core.bounded_types import MAX_SPREAD
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth, Size, format_bytes, format_seconds

SEND_BYTES = tuple(2**power for power in range(12, 31))
TOLERANCE = 0.01
"""Points of the curve are left out where interpolation between the kept ones is this close."""
EfficiencyCurve = list[tuple[float, float]]
_LATENCIES = {"ll_start_s": "the start of LL", "ll_hop_s": "its latency"}
SIZE_CLASSES = ((0, "below 1 MiB"), (LARGE_BYTES, "from 1 to 16 MiB"), (16 * LARGE_BYTES, "from 16 MiB on"))
"""The least message of each class [B]; NCCL changes algorithm and protocol about there."""


@dataclass(frozen=True, kw_only=True)
class NominalRates:
    """Rates that efficiencies are fractions of [B/s]: of a link in a node and of a node's NICs; and these NICs."""

    intra_bytes_per_s: float
    inter_bytes_per_s: float
    nics_per_node: int = 1


def nominal_rates(costs: NcclCosts, cluster: Cluster | None) -> NominalRates:
    """Return the rates of a cluster, or the fitted ones without a cluster, one for the other where one is missing."""
    if cluster is None:
        fitted = [rate for rate in (costs.intra_node_efficiency, costs.inter_node_efficiency) if rate is not None]
        return NominalRates(intra_bytes_per_s=fitted[0], inter_bytes_per_s=fitted[-1])
    return NominalRates(
        intra_bytes_per_s=float(cluster.intra_node.bytes_per_s),
        inter_bytes_per_s=float(cluster.inter_node.bytes_per_s) * cluster.nics_per_node,
        nics_per_node=cluster.nics_per_node,
    )


def fit_logs(logs: Sequence[NcclLog], held_out: Sequence[NcclLog], cluster: Cluster | None, draws: int) -> FittedPart:
    """Fit logs, with intervals and residuals.

    Args:
        logs: logs to fit.
        held_out: logs to predict.
        cluster: gives the nominal bandwidths, which efficiencies are fractions of.
        draws: bootstrap resamples.

    Raises:
        SimnetError: a log that cannot be fitted, or too few rows.
    """
    train = select_all_reduces(logs)
    costs = fit_costs(train)
    rates = nominal_rates(costs, cluster)
    _check_rates(costs, rates)
    names = determined_names(train)
    point = {name: float(getattr(costs, name)) for name in names}

    def draw(rng: np.random.Generator) -> dict[str, float]:
        again = fit_costs(_resampled(train, rng), start=costs)
        return {name: float(getattr(again, name)) for name in names}

    spread = bootstrap.interval_factors(point, draw, draws)
    # A cost that is fitted as nearly 0 may be thousands of times larger in a resample: the rows do not determine it.
    unbounded = [name for name in _LATENCIES if name in spread and spread[name][1] == MAX_SPREAD]
    spread = {name: factors for name, factors in spread.items() if name not in unbounded}
    return FittedPart(
        table=table(costs, logs, rates, spread),
        shown={name.removesuffix("_s"): _shown(name, value, spread.get(name)) for name, value in point.items()},
        intervals=_intervals(spread, logs),
        residuals=(*_residuals(logs, costs, "fitted"), *_residuals(held_out, costs, "held out")),
        notes=_notes(names, unbounded, cluster, logs),
    )


def _check_rates(costs: NcclCosts, rates: NominalRates) -> None:
    """Refuse a cluster whose links are slower than what was measured.

    Raises:
        SimnetError: one is.
    """
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
) -> dict[str, object]:
    """Return the fitted part of a calibration, in file form."""
    intra_s, inter_s = costs.ll_hop_s, RING_HOP_S["LL"][1] + costs.inter_node_hop_s
    parts: dict[str, object] = {
        "collective_launch": duration_text(costs.ll_start_s), "flat_ring_latency": "mean",
        "intra_node": {"latency": duration_text(intra_s)}, "nccl": _nccl_table(costs, logs, rates),
    }  # fmt: skip
    single_node = [log for log in logs if log.num_nodes == 1]
    multi_node = {log.num_nodes: log for log in sorted(logs, key=lambda log: log.world_size) if log.num_nodes > 1}
    if single_node:
        shape = max(single_node, key=lambda log: log.world_size)
        curve = _curve(costs, shape, intra_s, rates.intra_bytes_per_s)
        parts["intra_node"] = _link(curve, intra_s, rates.intra_bytes_per_s, single_node)
    if multi_node:
        curves = {
            nodes: _curve(costs, shape, _mean_hop_s(shape, intra_s, inter_s), rates.inter_bytes_per_s)
            for nodes, shape in sorted(multi_node.items())
        }
        nic_bytes_per_s = rates.inter_bytes_per_s / rates.nics_per_node
        parts["inter_node"] = {"measured_on": _rate_text(nic_bytes_per_s)}
        keys = {"efficiency": "inter_node_efficiency", "latency": "inter_node_hop_s"}
        intervals = {key: [round(at, 4) for at in spread[name]] for key, name in keys.items() if name in spread}
        parts["by_nodes"] = [
            {
                "nodes": nodes,
                "efficiency": _points(curve),
                "latency": duration_text(inter_s),
                "intervals": intervals,
                "source": f"nccl-tests all_reduce on {multi_node[nodes].world_size} GPUs",
            }
            for nodes, curve in curves.items()
        ]
    return parts


def _nccl_table(costs: NcclCosts, logs: Sequence[NcclLog], rates: NominalRates) -> dict[str, object]:
    found: dict[str, object] = {
        "start": duration_text(costs.start_s),
        "ll_start": duration_text(costs.ll_start_s),
        "ll_hop": duration_text(costs.ll_hop_s),
        "inter_node_hop": duration_text(costs.inter_node_hop_s),
        "ll_efficiency": round(costs.ll_efficiency, 5),
        "exposed": round(costs.exposed, 6),
    }
    if costs.intra_node_efficiency is not None:
        found["intra_node_efficiency"] = round(costs.intra_node_efficiency / rates.intra_bytes_per_s, 5)
    if costs.inter_node_efficiency is not None:
        found["inter_node_efficiency"] = round(costs.inter_node_efficiency / rates.inter_bytes_per_s, 5)
    return {**found, "source": f"nccl-tests all_reduce on {_gpus(logs)} GPUs"}


def _gpus(logs: Sequence[NcclLog]) -> str:
    return ", ".join(map(str, sorted({log.world_size for log in logs})))


def _mean_hop_s(shape: NcclLog, intra_s: float, inter_s: float) -> float:
    # One send in ranks_per_node of a ring leaves its node; "mean" (flat_ring_latency) charges the average of all.
    crossing = 1 / shape.ranks_per_node
    return crossing * inter_s + (1 - crossing) * intra_s


def _link(curve: EfficiencyCurve, latency_s: float, bytes_per_s: float, logs: Sequence[NcclLog]) -> dict[str, object]:
    return {
        "latency": duration_text(latency_s),
        "measured_on": _rate_text(bytes_per_s),
        "efficiency": _points(curve),
        "source": f"nccl-tests all_reduce on {_gpus(logs)} GPUs; the curve is that of "
        f"{max(log.world_size for log in logs)}",
    }


def _rate_text(bytes_per_s: float) -> str:
    return Bandwidth(float(f"{bytes_per_s:.4g}")).text()


def _points(curve: EfficiencyCurve) -> list[list[object]]:
    return [[Size(size).text(), round(value, 4)] for size, value in curve]


def _curve(costs: NcclCosts, shape: NcclLog, latency_s: float, bytes_per_s: float) -> EfficiencyCurve:
    """Return the efficiency by send size, up to the largest of the logs, without needless points."""
    sends = 2 * (shape.world_size - 1)
    largest = max(row.message_bytes for row in shape.rows) / shape.world_size
    sizes = [float(size) for size in SEND_BYTES if size <= largest] or [float(SEND_BYTES[0])]
    rings = [one for one in _candidates(costs, shape) if one.algorithm == "ring"]
    at = rates_of(costs)
    times = np.array([min(nccl_model.seconds(one, at, size * shape.world_size) for one in rings) for size in sizes])
    # Where the latency alone exceeds the time of NCCL's ring, the bytes cost nothing: efficiency 1.
    each_s = np.maximum((times - costs.ll_start_s) / sends - latency_s, 1e-9)
    efficiency = np.minimum(np.array(sizes) / bytes_per_s / each_s, 1.0)
    return _thinned(list(zip(sizes, efficiency.tolist(), strict=True)))


def _candidates(costs: NcclCosts, log: NcclLog) -> tuple[nccl_model.Candidate, ...]:
    return nccl_model.candidates(costs, log.num_nodes, log.ranks_per_node)


def _thinned(curve: EfficiencyCurve) -> EfficiencyCurve:
    """Leave out points that interpolation between the kept ones reproduces, log-linear as in the simulator."""
    kept = [curve[0]]
    for end in range(2, len(curve)):
        inside = curve[curve.index(kept[-1]) + 1 : end]
        if any(abs(_interpolated(kept[-1], curve[end], size) / value - 1) > TOLERANCE for size, value in inside):
            kept.append(curve[end - 1])
    return [*kept, curve[-1]] if len(curve) > 1 else kept


def _interpolated(low: tuple[float, float], high: tuple[float, float], size: float) -> float:
    part = np.log(size / low[0]) / np.log(high[0] / low[0])
    return float(low[1] + part * (high[1] - low[1]))


def _resampled(train: Rows, rng: np.random.Generator) -> Rows:
    """Return a resample with as many samples of each shape, so that every group stays in the fit."""

    def resample(shape: TimedShape) -> TimedShape:
        return shape.select(rng.integers(len(shape.times_s), size=len(shape.times_s)))

    return tuple(map(resample, train))


def _intervals(spread: dict[str, Interval], logs: Sequence[NcclLog]) -> dict[str, Interval]:
    """Return the intervals by calibration key; the interval of a bandwidth holds for its whole efficiency curve."""
    found = {f"nccl.{name.removesuffix('_s')}": factors for name, factors in spread.items()}
    # The links of other collectives hold the same costs.
    links = {"ll_start_s": "collective_launch", "ll_hop_s": "intra_node.latency"}
    if any(log.num_nodes == 1 for log in logs):
        links["intra_node_efficiency"] = "intra_node.efficiency"
    return found | {key: spread[name] for name, key in links.items() if name in spread}


def _residuals(logs: Sequence[NcclLog], costs: NcclCosts, role: Role) -> list[Comparison]:
    """Return the residuals: of fitted logs those from 1 MiB on, of held-out ones those of every row by its size.

    Below 1 MiB NCCL stays in LL where LL128 would be faster, which no fit of the fastest follows: such rows say nothing
    about whether the fit is a good one, but a reader who holds a log out wants to see them.
    """
    return [
        Comparison(
            series=f"all_reduce, {log.layout_text}"
            + ("" if role == "fitted" else f", {_size_class(row.message_bytes)}"),
            label=f"{format_bytes(row.message_bytes)}, {best.name}{', in place' if in_place else ''}",
            measured=measured_s,
            predicted=predicted_s,
            role=role,
        )
        for log in logs
        for row in log.rows
        if row.message_bytes >= (LARGE_BYTES if role == "fitted" else 1)
        for best, predicted_s in [_predicted(costs, log, row.message_bytes)]
        for in_place, measured_s in enumerate(row.times_s)
        if measured_s is not None
    ]


def _predicted(costs: NcclCosts, log: NcclLog, message_bytes: float) -> tuple[nccl_model.Candidate, float]:
    """Return the fastest algorithm and protocol for a message, and its time [s]."""
    at = rates_of(costs)
    best = nccl_model.fastest(_candidates(costs, log), at, message_bytes)
    return best, nccl_model.seconds(best, at, message_bytes)


def _size_class(message_bytes: float) -> str:
    return [name for least, name in SIZE_CLASSES if message_bytes >= least][-1]


def _notes(
    names: Sequence[str], unbounded: Sequence[str], cluster: Cluster | None, logs: Sequence[NcclLog]
) -> tuple[str, ...]:
    notes = []
    if cluster is None:
        notes.append(
            "without --cluster, efficiencies are fractions of the fitted bandwidths; give the cluster that uses the "
            "calibration these rates (measured_on)"
        )
    if "ll_start_s" not in names:
        notes.append("too few times below 1 MiB: the latencies are guesses; run nccl-tests with -b 8")
    if any(log.num_nodes > 1 for log in logs) and "inter_node_hop_s" not in names:
        notes.append(
            "logs of one number of nodes: hops between nodes are those of NCCL's table; fit a log of one node, or of "
            "another number of nodes, with them"
        )
    if unbounded:
        costs = " and ".join(_LATENCIES[name] for name in unbounded)
        notes.append(f"too few times below 1 MiB to fit {costs}: written without an interval; run nccl-tests with -b 8")
    return tuple(notes)


def _shown(name: str, value: float, spread: Interval | None) -> str:
    def text(number: float) -> str:
        if name.endswith("node_efficiency"):
            return f"{number / 1e9:.1f} GB/s"
        return format_seconds(number) if name in DURATIONS else f"{number:.3f}"

    return text_with_interval(value, spread, text)

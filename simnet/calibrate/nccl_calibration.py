"""From logs of nccl-tests to a calibration: latencies, and an efficiency by send size, that reproduce NCCL's times.

A simulated flat ring takes launch + 2(n - 1)(latency + s / (efficiency(s) x bandwidth)) with sends of s = S/n bytes.
The efficiency is the one for which this time equals that of `nccl_model`'s ring, at the largest group of the logs.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from simnet.calibrate import bootstrap
from simnet.calibrate.fitted_part import FittedPart, Interval, duration_text, text_with_interval
from simnet.calibrate.nccl_fit import LARGE_BYTES, TimedAllReduces, determined_names, fit_costs, select_all_reduces
from simnet.calibrate.nccl_log import NcclLog
from simnet.calibrate.nccl_model import HOP_S, AllReduces, NcclCosts, all_reduce_s, chosen, ring_all_reduce_s
from simnet.comparison import Comparison, Role
from simnet.hardware import Cluster
from simnet.units import Bandwidth, Size, format_bytes, format_seconds
from simnet.values import MAX_SPREAD

SEND_BYTES = tuple(2**power for power in range(12, 31))
TOLERANCE = 0.01
"""Points of the curve are left out where interpolation between the kept ones is this close."""
EfficiencyCurve = list[tuple[float, float]]
_LL_COSTS = {"ll_start_s": "the launch", "ll_hop": "the latency"}


@dataclass(frozen=True, kw_only=True)
class NominalRates:
    """Rates that efficiencies are fractions of [B/s]: of a link in a node and of one NIC; and the NICs of a node."""

    intra_bytes_per_s: float
    nic_bytes_per_s: float
    nics_per_node: int = 1


def nominal_rates(costs: NcclCosts, cluster: Cluster | None) -> NominalRates:
    """Return the rates of a cluster, or the fitted ones without a cluster."""
    if cluster is None:
        return NominalRates(intra_bytes_per_s=costs.node_bytes_per_s, nic_bytes_per_s=costs.net_bytes_per_s)
    return NominalRates(
        intra_bytes_per_s=float(cluster.intra_node.bytes_per_s),
        nic_bytes_per_s=float(cluster.inter_node.bytes_per_s),
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
    names = determined_names(train)
    point = {name: value for name, value in asdict(costs).items() if name in names}

    def draw(rng: np.random.Generator) -> dict[str, float]:
        # Each starts at the fit of all rows; an exposed part of exactly 0 would have no factor to vary.
        again = fit_costs(_resampled(train, rng), start=replace(costs, exposed=costs.exposed or 1e-3))
        return {name: value for name, value in asdict(again).items() if name in names}

    spread = bootstrap.interval_factors(point, draw, draws)
    # A cost that is fitted as nearly 0 may be thousands of times larger in a resample: the rows do not determine it.
    unbounded = [name for name in _LL_COSTS if name in spread and spread[name][1] == MAX_SPREAD]
    spread = {name: factors for name, factors in spread.items() if name not in unbounded}
    return FittedPart(
        table=table(costs, logs, nominal_rates(costs, cluster)),
        shown={name: _shown(name, value, spread.get(name)) for name, value in point.items()},
        intervals=_intervals(spread, logs),
        residuals=(*_residuals(logs, costs, "fitted"), *_residuals(held_out, costs, "held out")),
        notes=_notes(names, unbounded, cluster),
    )


def table(costs: NcclCosts, logs: Sequence[NcclLog], rates: NominalRates) -> dict[str, object]:
    """Return the fitted part of a calibration, in file form."""
    intra_s, inter_s = (costs.ll_hop * hop_s for hop_s in HOP_S["ring"]["LL"])
    parts: dict[str, object] = {
        "collective_launch": duration_text(costs.ll_start_s), "flat_ring_latency": "mean",
        "intra_node": {"latency": duration_text(intra_s)},
    }  # fmt: skip
    single_node = [log for log in logs if log.num_nodes == 1]
    multi_node = [log for log in logs if log.num_nodes > 1]
    if single_node:
        shape = max(single_node, key=lambda log: log.world_size)
        curve = _curve(costs, shape, intra_s, rates.intra_bytes_per_s)
        parts["intra_node"] = _link(curve, intra_s, rates.intra_bytes_per_s, single_node)
    if multi_node:
        shape = max(multi_node, key=lambda log: log.world_size)
        # One send in ranks_per_node of a ring leaves its node; "mean" (flat_ring_latency) charges the average of all.
        crossing = 1 / shape.ranks_per_node
        mean_s = crossing * inter_s + (1 - crossing) * intra_s
        curve = _curve(costs, shape, mean_s, rates.nic_bytes_per_s * rates.nics_per_node)
        parts["inter_node"] = _link(curve, inter_s, rates.nic_bytes_per_s, multi_node)
    return parts


def _link(curve: EfficiencyCurve, latency_s: float, bytes_per_s: float, logs: Sequence[NcclLog]) -> dict[str, object]:
    gpus = ", ".join(str(log.world_size) for log in logs)
    return {
        "latency": duration_text(latency_s),
        "measured_on": Bandwidth(float(f"{bytes_per_s:.4g}")).text(),
        "efficiency": [[Size(size).text(), round(value, 4)] for size, value in curve],
        "source": f"nccl-tests all_reduce on {gpus} GPUs; the curve is that of {max(log.world_size for log in logs)}",
    }


def _curve(costs: NcclCosts, shape: NcclLog, latency_s: float, bytes_per_s: float) -> EfficiencyCurve:
    """Return the efficiency by send size, up to the largest of the logs, without needless points."""
    sends = 2 * (shape.world_size - 1)
    largest = max(row.message_bytes for row in shape.rows) / shape.world_size
    sizes = [float(size) for size in SEND_BYTES if size <= largest]
    times = ring_all_reduce_s(_all_reduces([size * shape.world_size for size in sizes], shape), costs)
    # Where the latency alone exceeds the time of NCCL's ring, the bytes cost nothing: efficiency 1.
    each_s = np.maximum((times - costs.ll_start_s) / sends - latency_s, 1e-9)
    efficiency = np.minimum(np.array(sizes) / bytes_per_s / each_s, 1.0)
    return _thinned(list(zip(sizes, efficiency.tolist(), strict=True)))


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


def _all_reduces(message_bytes: Sequence[float], shape: NcclLog) -> AllReduces:
    sizes = np.array(message_bytes, dtype=np.float64)
    return AllReduces(
        message_bytes=sizes,
        ranks_per_node=np.full_like(sizes, shape.ranks_per_node),
        num_nodes=np.full_like(sizes, shape.num_nodes),
    )


def _resampled(train: TimedAllReduces, rng: np.random.Generator) -> TimedAllReduces:
    """Return a resample with as many samples of each number of GPUs, so that every group stays in the fit."""
    ranks = train.all_reduces.ranks
    picks = [rng.choice(np.flatnonzero(ranks == count), size=int(np.sum(ranks == count))) for count in np.unique(ranks)]
    return train.select(np.concatenate(picks))


def _intervals(spread: dict[str, Interval], logs: Sequence[NcclLog]) -> dict[str, Interval]:
    """Return the intervals by calibration key; the interval of a bandwidth holds for its whole efficiency curve."""
    keys: dict[str, tuple[str, ...]] = {"ll_start_s": ("collective_launch",), "ll_hop": ("intra_node.latency",)}
    if any(log.num_nodes == 1 for log in logs):
        keys["node_bytes_per_s"] = ("intra_node.efficiency",)
    if any(log.num_nodes > 1 for log in logs):
        keys["net_bytes_per_s"] = ("inter_node.efficiency",)
        keys["ll_hop"] = ("intra_node.latency", "inter_node.latency")
    return {key: spread[name] for name, found in keys.items() if name in spread for key in found}


def _residuals(logs: Sequence[NcclLog], costs: NcclCosts, role: Role) -> list[Comparison]:
    """Return the residuals of large messages, out of place, or in place where only this was measured."""
    found = []
    for log in logs:
        rows = [row for row in log.rows if row.message_bytes >= LARGE_BYTES]
        all_reduces = _all_reduces([row.message_bytes for row in rows], log)
        for row, time_s, name in zip(rows, all_reduce_s(all_reduces, costs), chosen(all_reduces, costs), strict=True):
            measured_s = row.times_s[0] if row.times_s[0] is not None else row.times_s[1]
            if measured_s is not None:
                found.append(
                    Comparison(
                        series=f"all_reduce, {log.layout_text}",
                        label=f"{format_bytes(row.message_bytes)}, {name}",
                        measured=measured_s,
                        predicted=float(time_s),
                        role=role,
                    )
                )
    return found


def _notes(names: Sequence[str], unbounded: Sequence[str], cluster: Cluster | None) -> tuple[str, ...]:
    notes = []
    if cluster is None:
        notes.append(
            "without --cluster, efficiencies are fractions of the fitted bandwidths; give the cluster that uses the "
            "calibration these rates (measured_on)"
        )
    if "ll_hop" not in names:
        notes.append("too few times below 1 MiB: the latencies are guesses; run nccl-tests with -b 8")
    if unbounded:
        costs = " and ".join(_LL_COSTS[name] for name in unbounded)
        notes.append(f"too few times below 1 MiB to fit {costs}: written without an interval; run nccl-tests with -b 8")
    return tuple(notes)


def _shown(name: str, value: float, spread: Interval | None) -> str:
    def text(number: float) -> str:
        if name.endswith("bytes_per_s"):
            return f"{number / 1e9:.1f} GB/s"
        return format_seconds(number) if name.endswith("_s") else f"{number:.3f}"

    return text_with_interval(value, spread, text)

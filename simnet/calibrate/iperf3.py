"""Read what `iperf3 -J` prints: the goodput of a NIC, and the round-trip time under load."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simnet.calibrate.fit import Fitted
from simnet.errors import SimnetError
from simnet.hardware import Cluster
from simnet.units import Bandwidth

MOST_EFFICIENCY = 1.05
"""Goodput above the nominal rate by more than this means that the wrong rate was given."""


def looks_like(data: Mapping[str, Any]) -> bool:
    """Tell whether a JSON object is a result of iperf3."""
    return "start" in data and "end" in data and "intervals" in data


def fitted(data: Mapping[str, Any], path: Path, cluster: Cluster | None) -> Fitted:
    """Return the efficiency between nodes as goodput over nominal bandwidth, with the spread over the intervals.

    The latency is not written: under load the round-trip time is that of full queues.

    Args:
        data: what iperf3 printed.
        path: how messages call it.
        cluster: whose NIC was measured; without one the goodput itself becomes the nominal bandwidth.

    Raises:
        SimnetError: the run failed, was UDP, or its numbers make no sense.
    """
    if data.get("error"):
        raise SimnetError(f"{path}: iperf3 says {data['error']!r}: run it again")
    bits = _bits_per_s(data["end"], path)
    per_interval = _intervals(data["intervals"], path)
    nominal = float(cluster.inter_node.bytes_per_s) * cluster.nics_per_node if cluster else bits / 8
    efficiency = bits / 8 / nominal
    if efficiency > MOST_EFFICIENCY:
        raise SimnetError(
            f"{path}: {bits / 1e9:.4g} Gbit/s: more than the NICs of the cluster give; name its own --cluster"
        )
    rtt = _round_trip_s(data["end"])
    return Fitted(
        table={
            "inter_node": {
                "measured_on": Bandwidth(float(f"{nominal / (cluster.nics_per_node if cluster else 1):.4g}")).text(),
                "efficiency": round(min(efficiency, 1.0), 4),
                "source": f"iperf3: {bits / 1e9:.4g} Gbit/s of payload",
            }
        },
        shown={
            "goodput": f"{bits / 1e9:.4g} Gbit/s",
            **({"round trip under load": f"{rtt * 1e6:.4g} us"} if rtt else {}),
        },
        intervals={"inter_node.efficiency": _spread(per_interval, bits)},
        notes=(f"{path.name}: no latency: a round trip under load is that of full queues; measure collectives for it",),
    )


def _intervals(intervals: Any, path: Path) -> list[float]:
    """Return the goodput of each interval [bit/s], without those at the start that iperf3 was told to omit."""
    try:
        sums = [one["sum"] for one in intervals]
        return [float(one["bits_per_second"]) for one in sums if not one.get("omitted")]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SimnetError(f"{path}: intervals: damaged: give the whole output of iperf3 -J") from error


def _bits_per_s(end: Any, path: Path) -> float:
    try:
        bits = float(end["sum_received"]["bits_per_second"])
    except (KeyError, TypeError, ValueError) as error:
        raise SimnetError(
            f"{path}: no end.sum_received.bits_per_second: give the whole output of iperf3 -J over TCP"
        ) from error
    if not bits > 0:
        raise SimnetError(f"{path}: end.sum_received.bits_per_second: {bits!r}: must be above 0; run it again")
    return bits


def _round_trip_s(end: Any) -> float | None:
    """Return the mean round-trip time of all streams [s], where the system tells it."""
    streams = end.get("streams") or ()
    times = [float(one["sender"].get("mean_rtt", 0)) for one in streams if "sender" in one]
    return sum(times) / len(times) * 1e-6 if times and all(times) else None


def _spread(per_interval: list[float], whole: float) -> tuple[float, float]:
    """Return the middle 90 % of the intervals as factors on the whole."""
    if not per_interval:
        return 1.0, 1.0
    ordered = sorted(per_interval)
    cut = int(0.05 * (len(ordered) - 1))
    return min(ordered[cut] / whole, 1.0), max(ordered[-1 - cut] / whole, 1.0)

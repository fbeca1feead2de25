"""Read the output of `iperf3 -J`: the goodput of a NIC, and the round-trip time under load."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from simnet.calibration.fit import FittedPart, rate_text
from simnet.cluster.hardware import Cluster
from simnet.core.errors import SimnetError, shown
from simnet.core.schema import build

MAX_EFFICIENCY = 1.05
"""A goodput further above the nominal rate means that the cluster given is another one."""

Rate = Annotated[float, Meta(gt=0.0, le=1e18)]
"""[bit/s]"""


class _Goodput(Struct):
    bits_per_second: Rate


class _Sum(Struct):
    bits_per_second: Annotated[float, Meta(ge=0.0, le=1e18)]
    omitted: bool = False


class _ReportInterval(Struct):
    sum: _Sum


class _Sender(Struct):
    mean_rtt: Annotated[float, Meta(ge=0.0, le=1e12)] = 0.0


class _StreamTotals(Struct):
    sender: _Sender | None = None


class _Totals(Struct):
    sum_received: _Goodput
    streams: tuple[_StreamTotals, ...] = ()


Limit = Annotated[float, Meta(ge=0.0)]
"""A rate that iperf3 was told to keep, by -b or --fq-rate [bit/s]; 0 is none."""


class _Rates(Struct, frozen=True):
    target_bitrate: Limit = 0.0
    fqrate: Limit = 0.0


class _RunStart(Struct, frozen=True):
    test_start: _Rates = _Rates()
    target_bitrate: Limit = 0.0
    fq_rate: Limit = 0.0


class _Iperf3Result(Struct):
    """The parts of a TCP run that are read."""

    end: _Totals
    intervals: tuple[_ReportInterval, ...]
    start: _RunStart = _RunStart()

    @property
    def goodput(self) -> list[float]:
        """Goodput of each reported interval [bit/s], without those that iperf3 omits (-O)."""
        return [interval.sum.bits_per_second for interval in self.intervals if not interval.sum.omitted]

    @property
    def limits(self) -> dict[str, float]:
        """Rates that the run was told to keep, by option [bit/s]; older versions name one of them elsewhere."""
        test_start = self.start.test_start
        return {
            "-b": max(test_start.target_bitrate, self.start.target_bitrate),
            "--fq-rate": max(test_start.fqrate, self.start.fq_rate),
        }


def looks_like(data: Mapping[str, Any]) -> bool:
    """Return whether a JSON object is a result of iperf3."""
    return "start" in data and "end" in data and "intervals" in data


def fit_goodput(data: Mapping[str, Any], path: Path, cluster: Cluster | None) -> FittedPart:
    """Fit the efficiency between nodes: goodput over nominal bandwidth, with the spread over the reported intervals.

    No latency is fitted: the round-trip time under load is that of full queues.

    Args:
        data: output of iperf3.
        path: file, for messages.
        cluster: cluster of the measured NIC; without one the goodput itself becomes the nominal bandwidth.

    Raises:
        SimnetError: the run failed, used UDP or a set rate, or has values out of range.
    """
    if data.get("error"):
        raise SimnetError(f"{path}: iperf3 failed with {shown(data['error'])}: run it again")
    run = _read(data, path)
    _check_unlimited(run, path)
    bits = run.end.sum_received.bits_per_second
    # Without a cluster the goodput stands for the nominal rate, of which it is then all.
    nominal = float(cluster.inter_node.bytes_per_s) * cluster.nics_per_node if cluster else bits / 8
    efficiency = bits / 8 / nominal
    if efficiency > MAX_EFFICIENCY:
        raise SimnetError(
            f"{path}: {bits / 1e9:.4g} Gbit/s: exceeds the NICs of the cluster; name the measured one with --cluster"
        )
    # Shown and not written: under load it is that of full queues.
    rtt = _round_trip_s(run.end)
    return FittedPart(
        table={
            "inter_node": {
                "measured_on": rate_text(nominal / (cluster.nics_per_node if cluster else 1)),
                "efficiency": round(min(efficiency, 1.0), 4),
                "source": f"iperf3: {bits / 1e9:.4g} Gbit/s of payload",
            }
        },
        shown={
            "goodput": f"{bits / 1e9:.4g} Gbit/s",
            **({"round trip under load": f"{rtt * 1e6:.4g} us"} if rtt else {}),
        },
        intervals={"inter_node.efficiency": _spread(run.goodput, bits)},
        notes=(
            f"{path.name}: no latency is fitted: under load a round trip waits in full queues; measure collectives",
        ),
    )


def _check_unlimited(run: _Iperf3Result, path: Path) -> None:
    """Refuse a run that says what it was told to send and not what the link gives."""
    for option, bits in run.limits.items():
        if bits > 0:
            raise SimnetError(
                f"{path}: {option} {bits / 1e9:.4g} Gbit/s: a set rate says nothing of the link; run iperf3 -J again "
                f"without {option}"
            )


def _read(data: Mapping[str, Any], path: Path) -> _Iperf3Result:
    if _is_udp(data):
        raise SimnetError(
            f"{path}: a run over UDP sends at a set rate: says nothing of the link; run iperf3 -J over TCP"
        )
    try:
        return build(_Iperf3Result, data, str(path))
    except SimnetError as error:
        raise SimnetError(f"{error}: give the whole output of iperf3 -J over TCP") from error


def _is_udp(data: Mapping[str, Any]) -> bool:
    """Return whether a run was no TCP; of such a run older versions have no `sum_received`."""
    start = data.get("start")
    settings = start.get("test_start") if isinstance(start, dict) else None
    protocol = settings.get("protocol") if isinstance(settings, dict) else None
    return isinstance(protocol, str) and protocol.upper() != "TCP"


def _round_trip_s(end: _Totals) -> float | None:
    """Return the mean round-trip time of all streams [s]; None where the system reports none."""
    times = [stream.sender.mean_rtt for stream in end.streams if stream.sender is not None]
    return sum(times) / len(times) * 1e-6 if times and all(times) else None


def _spread(per_interval: list[float], whole: float) -> tuple[float, float]:
    """Return the middle 90 % of the reported intervals as factors on the goodput of the whole run."""
    if not per_interval:
        return 1.0, 1.0
    ordered = sorted(per_interval)
    cut = int(0.05 * (len(ordered) - 1))
    return min(ordered[cut] / whole, 1.0), max(ordered[-1 - cut] / whole, 1.0)

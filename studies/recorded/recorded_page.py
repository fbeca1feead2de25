"""The tables and the figure of docs/evidence/lab-recorded.md, from the committed files."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from simnet.calibration.comparison import Comparison, by_series, mean_error, mean_signed_error, worst_error
from simnet.cluster import topology as topologies
from simnet.cluster.hardware import Calibration
from simnet.cluster.kernel_times import HostCost
from simnet.cluster.schedule import Schedule
from simnet.cluster.topology import Topology
from simnet.collectives import broadcast, link_loads, ring
from simnet.core.units import format_seconds
from simnet.report import comparison_figure
from simnet.report.table import Table
from simnet.report.validation import percent
from simnet.validation.training_steps import median_interval
from studies import page
from studies.page import EVIDENCE, FIGURES
from studies.recorded import forecast
from studies.recorded.rows import GLOO_BANDWIDTH, RUN_WARM_UP, WAYS, Way

PAGE = EVIDENCE / "lab-recorded.md"
FIGURE = FIGURES / "lab_recorded_predicted.png"
FORMS = {
    "predicted_s": "as simulated, recorded with all ranks at work",
    "serial_s": "the same, nothing hidden behind anything",
    "alone_s": "as simulated, recorded by one process alone on the machine",
}
"""By key of a prediction; the first is that of the points."""


@dataclass(frozen=True, kw_only=True)
class RecordedPoint(Comparison):
    """The median of real steps, and what was predicted before; the series is the way of training.

    Attributes:
        mbit_per_s: of each NIC.
        own_s: recorded compute of a step.
        num_periods: that were timed.
        measured_interval_s: 95 % interval of the median.
    """

    mbit_per_s: int
    own_s: float
    num_periods: int
    measured_interval_s: tuple[float, float] | None

    @property
    def setting(self) -> int:
        """What ways are compared in: a bandwidth."""
        return self.mbit_per_s

    @property
    def message_share(self) -> float:
        """Fraction of the measured step that is no compute of its own."""
        return 1 - self.own_s / self.measured


def write(folder: Path) -> None:
    """Write the regions of the page and its figure."""
    page.write(PAGE, regions(folder))
    FIGURE.write_bytes(comparison_figure.steps(points(folder)))


def regions(folder: Path) -> dict[str, str]:
    """Return the generated parts of the page, by region."""
    return {
        "outcome": outcome(points(folder)),
        "points": points_table(points(folder)).markdown(),
        "forms": forms_table(folder).markdown(),
        "recordings": recordings_table(folder).markdown(),
        "fit": fit_text(folder),
        "gloo": gloo_table(folder).markdown(),
    }


def points(folder: Path, form: str = "predicted_s", ways: Sequence[Way] = WAYS) -> list[RecordedPoint]:
    """Return every way at every bandwidth, in a form of the prediction."""
    runs = {(one["way"], one["mbit_per_s"]): one["step_ends_s"] for one in read(folder, "runs")}
    return [
        _point(way, one, one[form], period_times_s(runs[way.name, one["mbit_per_s"]], way))
        for one in read(folder, "predictions")["rows"]
        for way in ways
        if way.name == one["way"]
    ]


def period_times_s(ends_s: Sequence[float], way: Way) -> list[float]:
    """Return the time of a step in each period after the first ones, which warm up [s]."""
    ends = ends_s[:: way.period]
    return [(end - begin) / way.period for begin, end in pairwise(ends)][RUN_WARM_UP:]


def _point(way: Way, prediction: dict[str, Any], predicted_s: float, times_s: Sequence[float]) -> RecordedPoint:
    return RecordedPoint(
        series=way.title,
        label=f"{way.title} at {prediction['mbit_per_s']} Mbit/s",
        measured=statistics.median(times_s),
        predicted=predicted_s,
        mbit_per_s=prediction["mbit_per_s"],
        own_s=prediction["own_s"],
        num_periods=len(times_s),
        measured_interval_s=median_interval(times_s),
    )


def outcome(found: Sequence[RecordedPoint]) -> str:
    """Return what was asked and what was reached."""
    rows = [
        (f"mean error of the step time, {len(found)} points", "8 %", percent(mean_error(found))),
        ("worst error", "15 %", percent(worst_error(found))),
        *((f"mean error of {name}", "", percent(mean_error(mine))) for name, mine in by_series(found).items()),
    ]
    return Table(["", "asked", "reached"], rows).markdown()


def points_table(found: Iterable[RecordedPoint]) -> Table:
    """Return a row for every point."""
    heads = [
        "way",
        "NIC",
        "compute of its own",
        "predicted",
        "measured",
        "95 % of the median",
        "error",
        "messages' share",
    ]
    return Table(heads, [_cells(one) for one in sorted(found, key=lambda one: (one.series, one.mbit_per_s))])


def _cells(one: RecordedPoint) -> tuple[str, ...]:
    low, high = one.measured_interval_s or (one.measured, one.measured)
    times = (format_seconds(time_s) for time_s in (one.own_s, one.predicted, one.measured))
    interval = f"{format_seconds(low)} to {format_seconds(high)}"
    error, share = f"{100 * one.error:+.1f} %", f"{100 * one.message_share:.0f} %"
    return (one.series, f"{one.mbit_per_s} Mbit/s", *times, interval, error, share)


def forms_table(folder: Path) -> Table:
    """Return the errors of every form of the prediction."""
    rows = [
        (text, percent(mean_error(found)), f"{100 * mean_signed_error(found):+.1f} %", percent(worst_error(found)))
        for form, text in FORMS.items()
        for found in [points(folder, form)]
    ]
    return Table(["form", "mean error", "mean of signed errors", "worst"], rows)


def recordings_table(folder: Path) -> Table:
    """Return the recorded compute of a step: alone, and with all ranks at work, each launch for itself."""
    rows = []
    for way in WAYS:
        launches = [
            statistics.fmean(forecast.own_s(one["recording"]) for one in launch) for launch in _of_way(folder, way)
        ]
        (alone,) = read(folder, f"alone_{way.name}")["recordings"]
        rows.append((way.title, *(format_seconds(time_s) for time_s in (forecast.own_s(alone), *launches))))
    return Table(
        ["way", "one process alone", *(f"all ranks at once, launch {n + 1}" for n in range(len(launches)))], rows
    )


def fit_text(folder: Path) -> str:
    """Return what was fitted, in a sentence."""
    found = forecast.calibrated(folder)
    host, efficiency = found.host, found.inter_node.efficiency
    return (
        f"Fitted: a NIC reaches {efficiency:.3f} of its bandwidth; a collective takes {host.launch_s * 1e3:.2f} ms of "
        f"the CPU, a round {host.round_s * 1e3:.2f} ms, a message {host.message_s * 1e3:.2f} ms, a byte "
        f"{host.s_per_byte * 1e9:.2f} ns, with all ranks at work."
    )


def gloo_table(folder: Path) -> Table:
    """Return what gloo sends for each collective beside what the schedules of the strategy send."""
    measured = read(folder, "gloo")
    message_bytes, topology = measured["message_bytes"], _wire_alone(forecast.calibrated(folder))
    rate = topology.inter_node.bytes_per_s * topology.inter_node.efficiency(message_bytes)
    rows = []
    for name, found in measured["found"].items():
        times, schedule = _schedule(name, topology)
        simulated = (
            times * link_loads.nic_bytes_per_node(topology, schedule, message_bytes),
            times * link_loads.duration_s(topology, schedule, message_bytes) * rate,
        )
        sent = [num_bytes / message_bytes for num_bytes in found["sent_bytes"]]
        bytes_text = f"{simulated[0] / message_bytes:.2f}"
        texts = (f"{max(sent):.2f}", bytes_text, f"{found['seconds'] * rate / message_bytes:.2f}")
        rows.append((name, *texts, f"{simulated[1] / message_bytes:.2f}"))
    return Table(["collective", "sent by the busiest node", "simulated", "time", "simulated"], rows)


def _wire_alone(calibration: Calibration) -> Topology:
    there = replace(calibration, host=HostCost())
    return topologies.build(forecast.cluster(GLOO_BANDWIDTH), there)


def _schedule(name: str, topology: Topology) -> tuple[int, Schedule]:
    """Return how often the strategy runs which schedule for a collective of the table."""
    world, between = topology.group("world"), topology.group("inter_node")
    if "broadcast" in name:
        return (world.size if "every" in name else 1), broadcast.tree(world)
    if name == "all_gather":
        return 1, ring.all_gather(world)
    return (2 if "two all_reduce" in name else 1), ring.all_reduce(between if "between" in name else world)


def _of_way(folder: Path, way: Way) -> list[list[dict[str, Any]]]:
    found: list[list[dict[str, Any]]] = read(folder, f"recordings_{way.name}")
    return found


def read(folder: Path, name: str) -> Any:
    """Return a file of a folder of results."""
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))

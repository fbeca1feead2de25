"""What runs in the lab have in common: their calibration, the points of their pages, and sentences."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evidence.lab.prediction import BOUND
from simnet.calibration import calibration_file, fit_files, sources
from simnet.calibration.comparison import Comparison, by_series, mean_error, mean_signed_error, worst_error
from simnet.calibration.fit_files import FitOptions
from simnet.calibration.sources import Sources
from simnet.cluster.hardware import Calibration, Link
from simnet.core.units import Bandwidth, Duration
from simnet.report.text import percent
from simnet.validation.training_steps import median_interval
from simnet.workload.workload import Gradient

FREE = Link(bytes_per_s=Bandwidth(1e15), alpha_s=Duration(0))
STARTS = 2
"""Launches of what was measured in place."""
Row = dict[str, Any]


def mbit(rate: float) -> int:
    """Return a bandwidth as files name it [Mbit/s]."""
    return round(rate * 8 / 1e6)


def calibrated(folder: Path) -> Calibration:
    links, messages = (sources.read(sorted(folder.glob(f"{part}_*.json"))) for part in ("links", "messages"))
    parts = fit_files.fit_parts(links, Sources(), messages, FitOptions(bound=BOUND, draws=20))
    return calibration_file.as_calibration(calibration_file.merge(parts, calibration_file.header(links, messages)))


def layered(layers: Iterable[tuple[str, int, int]]) -> tuple[Gradient, ...]:
    """Return the tensors of linear layers in the order of backward, which spends its time on matrices."""
    return tuple(
        tensor
        for name, rows, columns in layers
        for tensor in (
            Gradient(name=f"{name}.bias", shape=(rows,), backward_share=0.0),
            Gradient(name=f"{name}.weight", shape=(rows, columns), backward_share=rows * columns),
        )
    )


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True)
class LabPoint(Comparison):
    """Real steps, the median if nothing else is said, and what was predicted before; the series is who trained how.

    Attributes:
        fault: what was put into the lab.
        own_s: compute of a step, as predicted from.
        num_timed: steps, or periods of several steps.
        measured_interval_s: 95 % interval of the median; of another percentile None.
    """

    mbit_per_s: int
    fault: str = ""
    own_s: float
    num_timed: int
    measured_interval_s: tuple[float, float] | None

    @classmethod
    def of_median(cls, times_s: Sequence[float], **fields: Any) -> "LabPoint":
        interval = median_interval(times_s)
        return cls(measured=statistics.median(times_s), measured_interval_s=interval, num_timed=len(times_s), **fields)

    @property
    def setting(self) -> tuple[int, str]:
        """What series are compared in."""
        return self.mbit_per_s, self.fault


def outcome_text(what: str, points: Sequence[LabPoint], mean: str, worst: str) -> str:
    each = "; ".join(f"{name} {percent(mean_error(of_series))}" for name, of_series in by_series(points).items())
    return (
        f"{len(points)} {what}: mean error {percent(mean_error(points))} (asked: {mean}), worst "
        f"{percent(worst_error(points))}{f' (asked: {worst})' if worst else ''}. By kind: {each}."
    )


def errors_text(name: str, points: Sequence[Comparison]) -> str:
    mean, worst = percent(mean_error(points)), percent(worst_error(points))
    return f"{name} {mean} ({signed(mean_signed_error(points))}, worst {worst})"


def signed(error: float) -> str:
    return f"{100 * error:+.1f} %"


def fit_text(folder: Path) -> str:
    """Return what was fitted, in a sentence."""
    calibration = calibrated(folder)
    host, efficiency = calibration.host, calibration.inter_node.efficiency
    return (
        f"Fitted: a NIC reaches {efficiency:.3f} of its bandwidth; a collective takes {host.launch_s * 1e3:.2f} ms of "
        f"the CPU, a round {host.round_s * 1e3:.2f} ms, a message {host.message_s * 1e3:.2f} ms, a byte "
        f"{host.s_per_byte * 1e9:.2f} ns, with all ranks at work."
    )

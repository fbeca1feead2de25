"""The engine of the lab's campaigns: links and messages are measured, all else follows from their calibration.

A campaign measures, predicts, and only then runs; its page compares both, from the committed files.
"""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evidence import RESULTS
from evidence.lab import run_campaign
from evidence.lab.campaign import Launch, Layout, Links, in_place
from evidence.lab.lab import Lab
from evidence.lab.prediction import BOUND
from evidence.studies.page import FIGURES
from simnet.calibration import calibration_file, fit_files, sources
from simnet.calibration.comparison import Comparison, by_series, mean_error, mean_signed_error, worst_error
from simnet.calibration.fit_files import FitOptions
from simnet.calibration.sources import Sources
from simnet.cluster.hardware import Calibration, Link
from simnet.core.units import Bandwidth, Duration, Size
from simnet.report.text import percent
from simnet.validation.training_steps import median_interval
from simnet.workload.workload import Gradient

TIMEOUT_S = 900.0
FREE = Link(bytes_per_s=Bandwidth(1e15), alpha_s=Duration(0))
STARTS = 2
"""Launches of what is measured in place."""
LINK_BYTES = Size(2**22)
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class LabCampaign:
    """What is measured before anything is predicted, and where results go.

    Attributes:
        name: of its folder, page and figure.
        layout: nodes, and ranks on each.
        links: bandwidths of the links' calibration, on two nodes: none of those that are predicted.
        bandwidths: of each node's NIC: predicted and run.
        message_seconds: for each collective and size, in place.
        cores: part of a core that a rank has; None sets no limit.
    """

    name: str
    layout: Layout
    links: tuple[Bandwidth, ...]
    link_seconds: float
    bandwidths: tuple[Bandwidth, ...]
    message_seconds: float
    cores: float | None = None

    @property
    def golden(self) -> Path:
        """Folder of the committed results."""
        return RESULTS / f"lab_{self.name}"

    @property
    def region(self) -> str:
        return f"lab {self.name}"

    @property
    def figure(self) -> Path:
        return FIGURES / f"lab_{self.name}_predicted.png"

    @property
    def launches(self) -> list[Launch]:
        """Of what is calibrated on."""
        two = Layout(2, self.layout.ranks_per_node)
        sizes: dict[str, Any] = {"min_message": LINK_BYTES, "max_message": LINK_BYTES}
        links = Links(layouts=(two.text(),), bandwidths=self.links, max_seconds=self.link_seconds, **sizes)
        messages = in_place(self.message_seconds)
        return [
            Launch.of("links", there, links.arguments, rate=rate, cores_per_rank=self.cores)
            for there, rate in links.settings
        ] + [
            Launch.of("messages", self.layout, messages, more=start + 1, cores_per_rank=self.cores)
            for start in range(STARTS)
        ]

    def measure(self, folder: Path) -> None:
        """Measure what is calibrated on, but for what is there already."""
        run_campaign.run(self.launches, folder, print)


def mbit(rate: float) -> int:
    """Return a bandwidth as files name it [Mbit/s]."""
    return round(rate * 8 / 1e6)


def run_ranks(lab: Lab, mode: str, file: Path) -> float:
    """Let every rank do what a file says, and return how long it took [s]."""
    outcome = run_campaign.run_module(lab, ("evidence.studies.in_lab.ranks",), (mode, file), TIMEOUT_S)
    outcome.raise_if_failed()
    return outcome.elapsed_s


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


def write(folder: Path, name: str, content: object) -> None:
    (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


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
    def of_median(cls, times_s: Sequence[float], **given: Any) -> "LabPoint":
        interval = median_interval(times_s)
        return cls(measured=statistics.median(times_s), measured_interval_s=interval, num_timed=len(times_s), **given)

    @property
    def setting(self) -> tuple[int, str]:
        """What series are compared in."""
        return self.mbit_per_s, self.fault


def outcome_text(what: str, found: Sequence[LabPoint], mean: str, worst: str) -> str:
    each = "; ".join(f"{name} {percent(mean_error(mine))}" for name, mine in by_series(found).items())
    return (
        f"{len(found)} {what}: mean error {percent(mean_error(found))} (asked: {mean}), worst "
        f"{percent(worst_error(found))}{f' (asked: {worst})' if worst else ''}. By kind: {each}."
    )


def errors_text(name: str, found: Sequence[Comparison]) -> str:
    mean, worst = percent(mean_error(found)), percent(worst_error(found))
    return f"{name} {mean} ({signed(mean_signed_error(found))}, worst {worst})"


def signed(error: float) -> str:
    return f"{100 * error:+.1f} %"


def fit_text(folder: Path) -> str:
    """Return what was fitted, in a sentence."""
    found = calibrated(folder)
    host, efficiency = found.host, found.inter_node.efficiency
    return (
        f"Fitted: a NIC reaches {efficiency:.3f} of its bandwidth; a collective takes {host.launch_s * 1e3:.2f} ms of "
        f"the CPU, a round {host.round_s * 1e3:.2f} ms, a message {host.message_s * 1e3:.2f} ms, a byte "
        f"{host.s_per_byte * 1e9:.2f} ns, with all ranks at work."
    )

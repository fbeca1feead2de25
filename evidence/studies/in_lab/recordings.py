"""Ways of training as scripts: recorded with all ranks at work, predicted from the recordings, and only then run."""

import copy
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from evidence import RESULTS
from evidence.lab.campaign import Layout
from evidence.studies.in_lab import campaign as engine
from evidence.studies.in_lab.campaign import FREE, LabPoint, Row, mbit, read
from evidence.studies.page import FIGURES, paragraph
from simnet.cluster.hardware import Calibration, Cluster
from simnet.core.units import Bandwidth, format_seconds
from simnet.engine.plan import StrategyPlan
from simnet.engine.prepared_scenario import PreparedScenario
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from simnet.report import figures
from simnet.report.table import Table
from simnet.strategies.program import Communicate, Compute

LAYOUT = Layout(4, 2)
WORLD_SIZE = LAYOUT.num_nodes * LAYOUT.ranks_per_node
BANDWIDTHS = tuple(map(Bandwidth.parse, ("100 Mbit/s", "250 Mbit/s", "1 Gbit/s")))
LINK_BANDWIDTHS = tuple(map(Bandwidth.parse, ("60 Mbit/s", "600 Mbit/s")))
RUN_WARM_UP = 3
"""Periods of a run that do not count."""
WIDTH, BLOCKS = 640, 4
SERIAL = "the same, nothing hidden behind anything"


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way of training.

    Attributes:
        period: steps after which it does the same again.
        strategy: as text, of one that predicts it; "" where the recording does.
        optimizer_shards: parts of the optimizer's work of which a rank does one.
    """

    name: str
    title: str
    period: int = 1
    strategy: str = ""
    optimizer_shards: int = 1


class MakeScenario(Protocol):
    def __call__(self, way: Way, rate: Bandwidth, folder: Path, calibration: Calibration, file: str) -> Scenario:
        """Return the scenario of a way at a bandwidth, from the step file "step" or "alone" of a folder."""


@dataclass(frozen=True, kw_only=True)
class RecordedCampaign:
    """Ways of training, which were run at every bandwidth.

    Attributes:
        name: of its folder, page and figure.
        scenario: how a way is simulated.
        forms: what other predictions are called, by key; the first is that of the points.
    """

    name: str
    ways: tuple[Way, ...]
    scenario: MakeScenario
    forms: dict[str, str]

    @property
    def golden(self) -> Path:
        """Folder of the committed results."""
        return RESULTS / f"lab_{self.name}"

    @property
    def region(self) -> str:
        return f"lab {self.name}"

    def predict(self, folder: Path) -> list[Row]:
        """Return what each way takes at each bandwidth, and what it would in other forms of the prediction [s]."""
        calibration, rows = engine.calibrated(folder), list[Row]()
        for rate in BANDWIDTHS:
            for way in self.ways:
                there = self.scenario(way, rate, folder, calibration, "step")
                row = {
                    "way": way.name,
                    "mbit_per_s": mbit(rate),
                    "predicted_s": simulate(there).result.iteration_s,
                    "own_s": own_s(recording(folder, way)),
                    "serial_s": serial_s(there),
                }
                if "alone_s" in self.forms:
                    alone = self.scenario(way, rate, folder, calibration, "alone")
                    row["alone_s"] = simulate(alone).result.iteration_s
                rows.append(row)
        return rows

    def points(self, folder: Path, form: str = "predicted_s") -> list[LabPoint]:
        runs = {(run["way"], run["mbit_per_s"]): run["step_ends_s"] for run in read(folder, "runs")}
        ways = {way.name: way for way in self.ways}
        return [
            LabPoint.of_median(
                period_times_s(runs[way.name, row["mbit_per_s"]], way),
                series=way.title,
                label=f"{way.title} at {row['mbit_per_s']} Mbit/s",
                predicted=row[form],
                mbit_per_s=row["mbit_per_s"],
                own_s=row["own_s"],
            )
            for row in read(folder, "predictions")["rows"]
            for way in [ways[row["way"]]]
        ]

    def draw(self, folder: Path) -> None:
        """Draw predicted over measured times."""
        (FIGURES / f"lab_{self.name}_predicted.png").write_bytes(figures.steps(self.points(folder)))

    def regions(self, folder: Path) -> dict[str, str]:
        outcome = engine.outcome_text("points", self.points(folder), "8 %", "15 %")
        forms = (engine.errors_text(text, self.points(folder, form)) for form, text in self.forms.items())
        return {self.region: paragraph(outcome, f"By form: {'; '.join(forms)}.", engine.fit_text(folder))}

    def data(self, folder: Path) -> dict[str, Table]:
        heads = ["way", "NIC", "compute of its own", "predicted", "measured", "95 % of the median", "error"]
        rows = []
        for point in sorted(self.points(folder), key=lambda point: (point.series, point.mbit_per_s)):
            ends = point.measured_interval_s or (point.measured, point.measured)
            low, high, *times = map(format_seconds, (*ends, point.own_s, point.predicted, point.measured))
            share = f"{100 * (1 - point.own_s / point.measured):.0f} %"
            cells = (*times, f"{low} to {high}", engine.signed(point.error), share)
            rows.append((point.series, f"{point.mbit_per_s} Mbit/s", *cells))
        return {f"lab-{self.name}": Table([*heads, "messages' share"], rows)}


def cluster(rate: Bandwidth) -> Cluster:
    return Cluster(name="lab", **LAYOUT._asdict(), intra_node=FREE, inter_node=replace(FREE, bytes_per_s=rate))


def recording(folder: Path, way: Way, file: str = "step") -> Row:
    """Return the mean recording of a way: "step" with all ranks at work, "alone" with one."""
    (mean,) = read(folder, f"{file}_{way.name}")["recordings"]
    return mean


def own_s(recorded: Row) -> float:
    """Return the compute of a step of a recording [s]."""
    operations = [operation for stream in recorded["streams"] for operation in stream["operations"]]
    return float(sum(operation.get("seconds", 0.0) for operation in operations) / recorded["num_steps"])


def mean_recording(of_ranks: Sequence[Row]) -> Row:
    """Return a step file whose compute takes the mean over recordings of the same operations."""
    mean: Row = copy.deepcopy(of_ranks[0]["recording"])
    for number, stream in enumerate(mean["streams"]):
        for place, operation in enumerate(stream["operations"]):
            if operation["kind"] == "compute":
                every = [rank["recording"]["streams"][number]["operations"][place] for rank in of_ranks]
                operation["seconds"] = statistics.fmean(alike.get("seconds", 0.0) for alike in every)
    source = {"how": "record", **of_ranks[0]["source"]}
    return {"format": "simnet-step", "version": 1, "source": source, "recordings": [mean]}


def serial_s(there: Scenario) -> float:
    """Return the time of a step in which nothing hides behind anything [s]."""
    prepared = PreparedScenario(there)
    plan = prepared.plan(there.strategy)
    operations = [replace(operation, after=()) for stream in prepared.timed(plan) for operation in stream]
    in_a_row = tuple(each for kind in (Compute, Communicate) for each in operations if isinstance(each, kind))
    return prepared.run(StrategyPlan(there.strategy, replace(plan.program, streams=(in_a_row,)))).iteration_s


def period_times_s(ends_s: Sequence[float], way: Way) -> list[float]:
    """Return the time of a step in each period after the first ones, which warm up [s]."""
    return [(end - begin) / way.period for begin, end in pairwise(ends_s[:: way.period])][RUN_WARM_UP:]

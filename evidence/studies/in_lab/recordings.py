"""Ways of training as scripts: recorded with all ranks at work, predicted from the recordings, and only then run."""

import copy
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from evidence.lab.campaign import Layout
from evidence.lab.lab import Lab
from evidence.lab.plan import LabSpec
from evidence.studies.in_lab import campaign as engine
from evidence.studies.in_lab.campaign import FREE, STARTS, LabCampaign, LabPoint, Row, mbit, read, write
from evidence.studies.page import paragraph
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
WARM_UP, STEPS = 3, 8
"""Of a recording, in periods of the script."""
AIM_S, LEAST_PERIODS, MOST_PERIODS = 20.0, 10, 40
"""A run takes about so long by its prediction; the first periods warm up and do not count."""
RUN_WARM_UP = 3
WIDTH, BLOCKS = 640, 4
SERIAL = "the same, nothing hidden behind anything"


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way of training.

    Attributes:
        batch: samples of a rank, chosen so that messages take 30 to 80 % of most steps.
        period: steps after which it does the same again.
        strategy: as text, of one that predicts it; "" where the recording does.
        optimizer_shards: parts of the optimizer's work of which a rank does one.
    """

    name: str
    title: str
    batch: int = 160
    period: int = 1
    strategy: str = ""
    optimizer_shards: int = 1

    @property
    def arguments(self) -> tuple[str, ...]:
        return (self.name, "--width", str(WIDTH), "--blocks", str(BLOCKS), "--batch", str(self.batch))


class MakeScenario(Protocol):
    def __call__(self, way: Way, rate: Bandwidth, folder: Path, calibration: Calibration, file: str) -> Scenario:
        """Return the scenario of a way at a bandwidth, from the step file "step" or "alone" of a folder."""


@dataclass(frozen=True, kw_only=True)
class RecordedCampaign(LabCampaign):
    """A campaign of ways of training.

    Attributes:
        script: that trains in each way.
        scenario: how a way is simulated.
        forms: what other predictions are called, by key; the first is that of the points.
    """

    script: Path
    ways: tuple[Way, ...]
    scenario: MakeScenario
    forms: dict[str, str]
    layout: Layout = LAYOUT
    links: tuple[Bandwidth, ...] = LINK_BANDWIDTHS
    link_seconds: float = 1.5
    bandwidths: tuple[Bandwidth, ...] = BANDWIDTHS
    message_seconds: float = 0.3

    def predict(self, folder: Path) -> list[Row]:
        """Return what each way takes at each bandwidth, and what it would in other forms of the prediction [s]."""
        calibration, rows = engine.calibrated(folder), list[Row]()
        for rate in self.bandwidths:
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

    def run(self, folder: Path) -> None:
        """Calibrate, record, predict, and only then run; what is calibrated on already stays."""
        self.measure(folder)
        with tempfile.TemporaryDirectory() as name:
            scratch = Path(name)
            launches = [self._record(scratch / str(start), WORLD_SIZE) for start in range(STARTS)]
            alone = self._record(scratch / "alone", 1)
            for way in self.ways:
                mine = [one[way.name] for one in launches]
                write(folder, f"recordings_{way.name}", mine)
                write(folder, f"step_{way.name}", mean_recording([one for launch in mine for one in launch]))
                write(folder, f"alone_{way.name}", mean_recording(alone[way.name]))
            predictions = self.predict(folder)
            write(folder, "predictions", {"written_s": time.time(), "rows": predictions})
            runs: list[Row] = []
            for rate in self.bandwidths:
                runs += self._train(scratch, rate, [one for one in predictions if one["mbit_per_s"] == mbit(rate)])
                write(folder, "runs", runs)

    def _record(self, scratch: Path, num_ranks: int) -> dict[str, list[Row]]:
        """Record every way by some ranks at once, each alone in its world; return what each rank found, by way."""
        jobs = []
        for way in self.ways:
            (scratch / way.name).mkdir(parents=True)
            settings = {
                **LAYOUT._asdict(), "script": str(self.script), "is_module": False,
                "arguments": [*way.arguments, "--steps", "100000"], "steps": STEPS * way.period,
                "warm_up": WARM_UP * way.period, "runs_on": "cpu", "compute": "timed", "device": "cpu",
                "fake": False,
            }  # fmt: skip
            jobs.append({"folder": str(scratch / way.name), "settings": settings})
        _launch("record", scratch, jobs, LAYOUT if num_ranks == WORLD_SIZE else Layout(num_ranks, 1), None)
        return {way.name: [read(scratch / way.name, f"rank_{n}") for n in range(num_ranks)] for way in self.ways}

    def _train(self, scratch: Path, rate: Bandwidth, predictions: Sequence[Row]) -> list[Row]:
        ways, jobs = {way.name: way for way in self.ways}, []
        for one in predictions:
            way = ways[one["way"]]
            periods = round(AIM_S / (one["predicted_s"] * way.period))
            # The first end of a step begins the first period.
            steps = (RUN_WARM_UP + min(max(periods, LEAST_PERIODS), MOST_PERIODS)) * way.period + 1
            found = scratch / f"{way.name}_{one['mbit_per_s']}.json"
            arguments = [*way.arguments, "--steps", str(steps)]
            jobs.append({"script": str(self.script), "arguments": arguments, "found": str(found)})
        begun_s = time.time()
        _launch("train", scratch, jobs, LAYOUT, rate)
        return [
            {"way": one["way"], "mbit_per_s": one["mbit_per_s"], "begun_s": begun_s}
            | {"step_ends_s": [round(end, 6) for end in read(scratch, Path(job["found"]).stem)]}
            for one, job in zip(predictions, jobs, strict=True)
        ]

    def points(self, folder: Path, form: str = "predicted_s") -> list[LabPoint]:
        runs = {(one["way"], one["mbit_per_s"]): one["step_ends_s"] for one in read(folder, "runs")}
        ways = {way.name: way for way in self.ways}
        return [
            LabPoint.of_median(
                period_times_s(runs[way.name, one["mbit_per_s"]], way),
                series=way.title,
                label=f"{way.title} at {one['mbit_per_s']} Mbit/s",
                predicted=one[form],
                mbit_per_s=one["mbit_per_s"],
                own_s=one["own_s"],
            )
            for one in read(folder, "predictions")["rows"]
            for way in [ways[one["way"]]]
        ]

    def draw(self, folder: Path) -> None:
        """Draw predicted over measured times."""
        self.figure.write_bytes(figures.steps(self.points(folder)))

    def regions(self, folder: Path) -> dict[str, str]:
        outcome = engine.outcome_text("points", self.points(folder), "8 %", "15 %")
        forms = (engine.errors_text(text, self.points(folder, form)) for form, text in self.forms.items())
        return {self.region: paragraph(outcome, f"By form: {'; '.join(forms)}.", engine.fit_text(folder))}

    def data(self, folder: Path) -> dict[str, Table]:
        heads = ["way", "NIC", "compute of its own", "predicted", "measured", "95 % of the median", "error"]
        rows = []
        for one in sorted(self.points(folder), key=lambda one: (one.series, one.mbit_per_s)):
            ends = one.measured_interval_s or (one.measured, one.measured)
            low, high, *times = map(format_seconds, (*ends, one.own_s, one.predicted, one.measured))
            share = f"{100 * (1 - one.own_s / one.measured):.0f} %"
            cells = (*times, f"{low} to {high}", engine.signed(one.error), share)
            rows.append((one.series, f"{one.mbit_per_s} Mbit/s", *cells))
        return {f"lab-{self.name}": Table([*heads, "messages' share"], rows)}


def _launch(mode: str, scratch: Path, jobs: Sequence[Row], layout: Layout, rate: Bandwidth | None) -> None:
    write(scratch, mode, jobs)
    with Lab(LabSpec(**layout._asdict(), bandwidth=rate)) as lab:
        elapsed_s = engine.run_ranks(lab, mode, scratch / f"{mode}.json")
    print(f"{mode} on {layout.text()}{f' at {rate.text()}' if rate else ''}: {elapsed_s:.0f} s")


def cluster(rate: Bandwidth) -> Cluster:
    return Cluster(name="lab", **LAYOUT._asdict(), intra_node=FREE, inter_node=replace(FREE, bytes_per_s=rate))


def recording(folder: Path, way: Way, file: str = "step") -> Row:
    """Return the mean recording of a way: "step" with all ranks at work, "alone" with one."""
    (found,) = read(folder, f"{file}_{way.name}")["recordings"]
    return found


def own_s(found: Row) -> float:
    """Return the compute of a step of a recording [s]."""
    operations = [one for stream in found["streams"] for one in stream["operations"]]
    return float(sum(one.get("seconds", 0.0) for one in operations) / found["num_steps"])


def mean_recording(found: Sequence[Row]) -> Row:
    """Return a step file whose compute takes the mean over recordings of the same operations."""
    mean: Row = copy.deepcopy(found[0]["recording"])
    for number, stream in enumerate(mean["streams"]):
        for place, operation in enumerate(stream["operations"]):
            if operation["kind"] == "compute":
                every = [one["recording"]["streams"][number]["operations"][place] for one in found]
                operation["seconds"] = statistics.fmean(one.get("seconds", 0.0) for one in every)
    source = {"how": "record", **found[0]["source"]}
    return {"format": "simnet-step", "version": 1, "source": source, "recordings": [mean]}


def serial_s(there: Scenario) -> float:
    """Return the time of a step in which nothing hides behind anything [s]."""
    prepared = PreparedScenario(there)
    plan = prepared.plan(there.strategy)
    operations = [replace(one, after=()) for stream in prepared.timed(plan) for one in stream]
    in_a_row = tuple(one for kind in (Compute, Communicate) for one in operations if isinstance(one, kind))
    return prepared.run(StrategyPlan(there.strategy, replace(plan.program, streams=(in_a_row,)))).iteration_s


def period_times_s(ends_s: Sequence[float], way: Way) -> list[float]:
    """Return the time of a step in each period after the first ones, which warm up [s]."""
    return [(end - begin) / way.period for begin, end in pairwise(ends_s[:: way.period])][RUN_WARM_UP:]

"""Calibrate on what was measured in place, and predict the step of each way at each bandwidth."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from simnet.calibration import calibration_file, fit_files, sources
from simnet.calibration.fit_files import FitOptions
from simnet.calibration.fitted_part import FittedPart
from simnet.calibration.sources import Sources
from simnet.cluster.hardware import Calibration, Cluster, Link
from simnet.core.units import Bandwidth, Duration
from simnet.engine.plan import StrategyPlan
from simnet.engine.prepared_scenario import PreparedScenario
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from simnet.engine.timeline import Streams
from simnet.strategies.program import Communicate, Compute
from simnet.strategies.recorded import RecordedStep
from simnet.workload.workload import Workload
from studies.recorded.rows import NUM_NODES, OPTIONS, RANKS_PER_NODE, WAYS, Way

BOUND = 0.3
"""Largest accepted mean relative residual of a fit, as in campaigns."""
FREE = Link(bytes_per_s=Bandwidth(1e15), alpha_s=Duration(0))
UNUSED = Workload(name="recorded", num_elements=1, forward_s=Duration(1), backward_s=Duration(1))
"""A recorded step with `compute = "recorded"` takes nothing from it."""


def fitted_parts(folder: Path) -> tuple[list[FittedPart], dict[str, object]]:
    """Fit links and the CPU time of messages; return the parts and the head of the calibration file."""
    links = sources.read(sorted(folder.glob("links_*.json")))
    in_place = sources.read(sorted(folder.glob("messages_*.json")))
    parts = fit_files.fit_parts(links, Sources(), in_place, FitOptions(bound=BOUND, draws=20))
    return parts, calibration_file.header(links, in_place)


def calibrated(folder: Path) -> Calibration:
    """Return the calibration of a folder of measurements."""
    return calibration_file.as_calibration(calibration_file.merge(*fitted_parts(folder)))


def mean_recording(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a step file whose compute takes the mean over recordings of the same operations."""
    mean: dict[str, Any] = json.loads(json.dumps(found[0]["recording"]))
    for number, stream in enumerate(mean["streams"]):
        for place, operation in enumerate(stream["operations"]):
            if operation["kind"] == "compute":
                every = [one["recording"]["streams"][number]["operations"][place] for one in found]
                operation["seconds"] = statistics.fmean(one.get("seconds", 0.0) for one in every)
    source = {"how": "record", **found[0]["source"]}
    return {"format": "simnet-step", "version": 1, "source": source, "recordings": [mean]}


def cluster(rate: Bandwidth) -> Cluster:
    """Return the lab with NICs of a bandwidth."""
    inter_node = replace(FREE, bytes_per_s=rate)
    return Cluster(
        name="lab", num_nodes=NUM_NODES, ranks_per_node=RANKS_PER_NODE, intra_node=FREE, inter_node=inter_node
    )


def scenario(way: Way, rate: Bandwidth, folder: Path, calibration: Calibration, file: str = "step") -> Scenario:
    """Return the scenario of a way at a bandwidth.

    Args:
        way: of training.
        rate: of each NIC.
        folder: with the step file.
        calibration: of this machine.
        file: "step" recorded with all ranks at work, "alone" with one.
    """
    strategy = RecordedStep(file=str(folder / f"{file}_{way.name}.json"), compute="recorded", **OPTIONS)
    return Scenario(name=way.name, cluster=cluster(rate), workload=UNUSED, calibration=calibration, strategy=strategy)


def predict(folder: Path, rates: Sequence[Bandwidth]) -> list[dict[str, Any]]:
    """Return what each way takes at each bandwidth, and what it would in other forms of the prediction [s]."""
    calibration = calibrated(folder)
    return [_row(way, rate, folder, calibration) for rate in rates for way in WAYS]


def _row(way: Way, rate: Bandwidth, folder: Path, calibration: Calibration) -> dict[str, Any]:
    there = scenario(way, rate, folder, calibration)
    (recording,) = json.loads((folder / f"step_{way.name}.json").read_text(encoding="utf-8"))["recordings"]
    return {
        "way": way.name,
        "mbit_per_s": round(rate * 8 / 1e6),
        "predicted_s": simulate(there).result.iteration_s,
        "own_s": own_s(recording),
        "serial_s": serial_s(there),
        "alone_s": simulate(scenario(way, rate, folder, calibration, "alone")).result.iteration_s,
    }


def own_s(recording: dict[str, Any]) -> float:
    """Return the compute of a step of a recording [s]."""
    operations = [one for stream in recording["streams"] for one in stream["operations"]]
    return float(sum(one.get("seconds", 0.0) for one in operations) / recording["num_steps"])


def serial_s(there: Scenario) -> float:
    """Return the time of a step in which nothing hides behind anything [s]."""
    prepared = PreparedScenario(there)
    plan = prepared.plan(there.strategy)
    in_a_row = replace(plan.program, streams=_in_a_row(prepared.timed(plan)))
    return prepared.run(StrategyPlan(there.strategy, in_a_row)).iteration_s


def _in_a_row(streams: Streams) -> Streams:
    operations = [replace(one, after=()) for stream in streams for one in stream]
    return (tuple(one for kind in (Compute, Communicate) for one in operations if isinstance(one, kind)),)

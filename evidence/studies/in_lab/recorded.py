"""Recorded steps that no strategy describes, predicted from their recordings."""

import statistics
from pathlib import Path
from typing import Any

from evidence.studies.in_lab import campaign as engine
from evidence.studies.in_lab import recordings
from evidence.studies.in_lab.campaign import read
from evidence.studies.in_lab.recordings import SERIAL, RecordedCampaign, Way, own_s, recording
from evidence.studies.page import SIMULATOR
from simnet.cluster.hardware import Calibration
from simnet.core.units import Bandwidth, Duration, format_seconds
from simnet.engine.scenario import Scenario
from simnet.report.table import Table
from simnet.strategies.recorded import RecordedStep
from simnet.workload.workload import Workload

OPTIONS: dict[str, Any] = {"algorithm": "ring", "broadcast": "tree", "reduce_scatter_as": "all_reduce"}
"""Of the strategy, for what gloo does in torch 2.13; found by counting bytes, and in its source."""
UNUSED = Workload(name="recorded", num_elements=1, forward_s=Duration(1), backward_s=Duration(1))
"""A recorded step with `compute = "recorded"` takes nothing from it."""


def _scenario(way: Way, rate: Bandwidth, folder: Path, calibration: Calibration, file: str) -> Scenario:
    step = RecordedStep(file=str(folder / f"{file}_{way.name}.json"), compute="recorded", **OPTIONS)
    return Scenario(
        name=way.name,
        cluster=recordings.cluster(rate),
        workload=UNUSED,
        calibration=calibration,
        strategy=step,
    )


CAMPAIGN = RecordedCampaign(
    name="recorded",
    ways=(
        Way(name="int8", title="DDP, own hook of 8 bits"),
        Way(name="hybrid", title="FSDP2, hybrid shards"),
        Way(name="local", title="local SGD, 4 inner steps", period=4),
        Way(name="zero", title="DDP with ZeRO-1"),
    ),
    scenario=_scenario,
    forms={
        "predicted_s": "as simulated, recorded with all ranks at work",
        "serial_s": SERIAL,
        "alone_s": "as simulated, recorded by one process alone on the machine",
    },
)
PAGE, RESULTS = SIMULATOR, CAMPAIGN.golden
regions, draw = CAMPAIGN.regions, CAMPAIGN.draw


def data(folder: Path) -> dict[str, Table]:
    """Return beside the points the recorded compute of a step, alone and in each launch."""
    rows = []
    for way in CAMPAIGN.ways:
        launches = read(folder, f"recordings_{way.name}")
        means = [statistics.fmean(own_s(of_rank["recording"]) for of_rank in launch) for launch in launches]
        rows.append((way.title, *map(format_seconds, (own_s(recording(folder, way, "alone")), *means))))
    numbers = (f"all ranks at once, launch {n + 1}" for n in range(engine.STARTS))
    compute = Table(["way", "one process alone", *numbers], rows)
    return CAMPAIGN.data(folder) | {"lab-recorded-compute": compute}

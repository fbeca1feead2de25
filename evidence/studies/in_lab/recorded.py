"""Recorded steps that no strategy describes, predicted from their recordings, and what gloo sends for a collective."""

import statistics
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from evidence import ROOT
from evidence.lab.lab import Lab
from evidence.lab.plan import LabSpec
from evidence.studies.in_lab import campaign as engine
from evidence.studies.in_lab import recordings
from evidence.studies.in_lab.campaign import read
from evidence.studies.in_lab.recordings import LAYOUT, SERIAL, RecordedCampaign, Way, own_s, recording
from evidence.studies.page import SIMULATOR
from simnet.cluster import topology as topologies
from simnet.cluster.hardware import Calibration
from simnet.cluster.kernel_times import HostCost
from simnet.cluster.schedule import Schedule
from simnet.cluster.topology import Topology
from simnet.collectives import broadcast, link_loads, ring
from simnet.core.units import Bandwidth, Duration, format_seconds
from simnet.engine.scenario import Scenario
from simnet.report.table import Table
from simnet.strategies.recorded import RecordedStep
from simnet.workload.workload import Workload

GLOO_BANDWIDTH = Bandwidth.parse("150 Mbit/s")
"""At which single collectives are counted and timed."""
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
    script=ROOT / "examples" / "train_own_ways.py",
    ways=(
        Way(name="int8", title="DDP, own hook of 8 bits"),
        Way(name="hybrid", title="FSDP2, hybrid shards"),
        Way(name="local", title="local SGD, 4 inner steps", batch=48, period=4),
        Way(name="zero", title="DDP with ZeRO-1", batch=640),
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


def run(folder: Path) -> None:
    """Count and time what gloo sends for each collective; then calibrate, record, predict, and train."""
    with Lab(LabSpec(**LAYOUT._asdict(), bandwidth=GLOO_BANDWIDTH)) as lab:
        elapsed_s = engine.run_ranks(lab, "gloo", folder / "gloo.json")
    print(f"collectives: {elapsed_s:.0f} s")
    CAMPAIGN.run(folder)


def data(folder: Path) -> dict[str, Table]:
    """Return beside the points the recorded compute of a step, alone and in each launch, and what gloo sends."""
    rows = []
    for way in CAMPAIGN.ways:
        launches = read(folder, f"recordings_{way.name}")
        means = [statistics.fmean(own_s(one["recording"]) for one in launch) for launch in launches]
        rows.append((way.title, *map(format_seconds, (own_s(recording(folder, way, "alone")), *means))))
    numbers = (f"all ranks at once, launch {n + 1}" for n in range(engine.STARTS))
    compute = Table(["way", "one process alone", *numbers], rows)
    return CAMPAIGN.data(folder) | {"lab-recorded-compute": compute, "lab-gloo": _gloo_table(folder)}


def _gloo_table(folder: Path) -> Table:
    """Return what gloo sends for each collective beside what the schedules of the strategy send."""
    measured = read(folder, "gloo")
    message_bytes = measured["message_bytes"]
    wire_alone = replace(engine.calibrated(folder), host=HostCost())
    topology = topologies.build(recordings.cluster(GLOO_BANDWIDTH), wire_alone)
    rate = topology.inter_node.bytes_per_s * topology.inter_node.efficiency(message_bytes)
    rows = []
    for name, found in measured["found"].items():
        times, schedule = _schedule(name, topology)
        sizes = (
            max(found["sent_bytes"]),
            times * link_loads.nic_bytes_per_node(topology, schedule, message_bytes),
            found["seconds"] * rate,
            times * link_loads.duration_s(topology, schedule, message_bytes) * rate,
        )
        rows.append((name, *(f"{size / message_bytes:.2f}" for size in sizes)))
    return Table(["collective", "sent by the busiest node", "simulated", "time", "simulated"], rows)


def _schedule(name: str, topology: Topology) -> tuple[int, Schedule]:
    """Return how often the strategy runs which schedule for a collective of the table."""
    world, between = topology.group("world"), topology.group("inter_node")
    if "broadcast" in name:
        return (world.size if "every" in name else 1), broadcast.tree(world)
    if name == "all_gather":
        return 1, ring.all_gather(world)
    return (2 if "two all_reduce" in name else 1), ring.all_reduce(between if "between" in name else world)

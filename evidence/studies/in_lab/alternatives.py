"""What teams choose between: six ways, one model, one batch, each by the strategy of simnet that bears its name.

Strategies have what gloo does in torch 2.13: rings, trees of whole messages, reduce-scatters that send what an
all-reduce sends, and sharded messages that block, since on a CPU nothing runs ahead.
"""

from collections import Counter
from pathlib import Path

from evidence.lab import decisions
from evidence.studies.in_lab import campaign as engine
from evidence.studies.in_lab import recordings
from evidence.studies.in_lab.campaign import Row
from evidence.studies.in_lab.recordings import (
    BLOCKS,
    SERIAL,
    WIDTH,
    WORLD_SIZE,
    RecordedCampaign,
    Way,
    own_s,
    recording,
)
from evidence.studies.page import SIMULATOR, paragraph
from simnet.cluster.hardware import Calibration
from simnet.core.units import Bandwidth, Duration, format_seconds
from simnet.engine import intervals
from simnet.engine.scenario import Scenario
from simnet.report.table import Table
from simnet.strategies.base import strategy_from_text
from simnet.workload.workload import Gradient, Workload

FEATURES, CLASSES = 64, 10
SHARDED = "algorithm=ring,reduce_scatter_as=all_reduce,overlap=false"


def _scenario(way: Way, rate: Bandwidth, folder: Path, calibration: Calibration, file: str) -> Scenario:
    """Return the scenario of a way: of its recording nothing counts but the seconds of compute."""
    return Scenario(
        name=way.name,
        cluster=recordings.cluster(rate),
        workload=workload(recording(folder, way, file), way.optimizer_shards),
        calibration=calibration,
        strategy=strategy_from_text(way.strategy, "strategy"),
    )


def workload(recorded: Row, optimizer_shards: int) -> Workload:
    """Return the model with the recorded compute of a rank; what encodes, decodes and copies counts as backward."""
    seconds = Counter[str]()
    for operation in (each for stream in recorded["streams"] for each in stream["operations"]):
        if operation["kind"] == "compute":
            part = operation["part"]
            seconds[part if part in ("forward", "optimizer") else "backward"] += operation.get("seconds", 0.0)
    steps = recorded["num_steps"]
    return Workload(
        name="blocks",
        tensors=gradients(),
        forward_s=Duration(seconds["forward"] / steps),
        backward_s=Duration(seconds["backward"] / steps),
        optimizer_s=Duration(seconds["optimizer"] / steps * optimizer_shards),
    )


def gradients() -> tuple[Gradient, ...]:
    """Return the tensors of the model: blocks of two layers between two layers of the root."""
    blocks = [(f"blocks.{block}.{place}", WIDTH, WIDTH) for block in reversed(range(BLOCKS)) for place in "31"]
    return engine.layered([("head", CLASSES, WIDTH), *blocks, ("first", WIDTH, FEATURES)])


CAMPAIGN = RecordedCampaign(
    name="alternatives",
    ways=(
        Way(name="ddp", title="DDP", strategy="all_reduce:algorithm=ring"),
        Way(name="fsdp", title="FSDP2, full shard", strategy=f"fsdp:{SHARDED}", optimizer_shards=WORLD_SIZE),
        Way(name="hsdp", title="FSDP2, hybrid shard", strategy=f"hsdp:{SHARDED}", optimizer_shards=2),
        Way(
            name="zero1",
            title="DDP with ZeRO-1",
            strategy="zero1:update=broadcast,algorithm=ring,broadcast=tree",
            optimizer_shards=WORLD_SIZE,
        ),
        Way(name="local_sgd", title="local SGD, 4 steps", strategy="local_sgd:inner_steps=4,algorithm=ring", period=4),
        Way(name="int8", title="int8 all-reduce", strategy="int8"),
    ),
    scenario=_scenario,
    forms={"predicted_s": "as simulated", "serial_s": SERIAL},
)
PAGE, RESULTS = SIMULATOR, CAMPAIGN.golden
draw = CAMPAIGN.draw


def regions(folder: Path) -> dict[str, str]:
    """Return beside the errors how many pairs of ways are in the right order."""
    pairs, limit = decisions.pairs(CAMPAIGN.points(folder)), intervals.model_errors().measured.speedup
    apart = [pair for pair in pairs if pair.measured_intervals_are_disjoint]
    ratios = [pair.slower.predicted / pair.faster.predicted for pair in apart]
    surely = [pair for pair, ratio in zip(apart, ratios, strict=True) if max(ratio, 1 / ratio) > limit]
    wrong = [f"{pair.faster.label} before {pair.slower.series}" for pair in apart if not pair.is_right]
    right, surely_right = (sum(pair.is_right for pair in some) for some in (apart, surely))
    text = (
        f"Of {len(pairs)} pairs at the same bandwidth {len(apart)} differ as measured (95 % intervals do not overlap), "
        f"and {right} of these were predicted in the right order; of {len(surely)} whose prediction differs by more "
        f"than the model's own error (a factor of {limit:g}) {surely_right}."
    )
    text += f" Measured, but not predicted: {'; '.join(wrong)}." if wrong else ""
    return {name: paragraph(" ".join(region.split()), text) for name, region in CAMPAIGN.regions(folder).items()}


def data(folder: Path) -> dict[str, Table]:
    rows = []
    for way in CAMPAIGN.ways:
        times_s = (own_s(recording(folder, way, file)) for file in ("alone", "step"))
        rows.append((way.title, f"`{way.strategy}`", *map(format_seconds, times_s)))
    compute = Table(["way", "strategy", "compute of one process alone", "of all ranks at once"], rows)
    return CAMPAIGN.data(folder) | {"lab-alternatives-compute": compute}

"""What is predicted and run: six ways, one model, one batch, each by the strategy of simnet that bears its name."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simnet.cluster.hardware import Calibration
from simnet.core.units import Bandwidth, Duration
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from simnet.strategies.base import strategy_from_text
from simnet.workload.workload import Gradient, Workload
from studies.recorded import forecast as recorded
from studies.recorded.rows import ROOT, WORLD_SIZE, LabStudy, Way

SCRIPT = ROOT / "studies" / "alternatives" / "ways.py"
GOLDEN = ROOT / "tests" / "golden" / "lab_alternatives"
WIDTH, BLOCKS, BATCH = 640, 4, 160
FEATURES, CLASSES = 64, 10


@dataclass(frozen=True, kw_only=True)
class AlternativeWay(Way):
    """A way of training, with the strategy that predicts it.

    Attributes:
        strategy: as text, with what gloo does in torch 2.13: rings, trees of whole messages, reduce-scatters that send
            what an all-reduce sends, and sharded messages that block, since on a CPU nothing runs ahead.
        optimizer_shards: parts of the optimizer's work of which a rank does one.
    """

    strategy: str
    batch: int = BATCH
    optimizer_shards: int = 1

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of the script."""
        return (self.name, "--width", str(WIDTH), "--blocks", str(BLOCKS), "--batch", str(self.batch))


SHARDED = "algorithm=ring,reduce_scatter_as=all_reduce,overlap=false"
WAYS = (
    AlternativeWay(name="ddp", title="DDP", strategy="all_reduce:algorithm=ring"),
    AlternativeWay(name="fsdp", title="FSDP2, full shard", strategy=f"fsdp:{SHARDED}", optimizer_shards=WORLD_SIZE),
    AlternativeWay(name="hsdp", title="FSDP2, hybrid shard", strategy=f"hsdp:{SHARDED}", optimizer_shards=2),
    AlternativeWay(
        name="zero1",
        title="DDP with ZeRO-1",
        strategy="zero1:update=broadcast,algorithm=ring,broadcast=tree",
        optimizer_shards=WORLD_SIZE,
    ),
    AlternativeWay(
        name="local_sgd", title="local SGD, 4 steps", strategy="local_sgd:inner_steps=4,algorithm=ring", period=4
    ),
    AlternativeWay(name="int8", title="int8 all-reduce", strategy="int8"),
)


def study() -> LabStudy:
    """Return what the lab runs."""
    return LabStudy(script=SCRIPT, ways=WAYS, predict=predict)


def predict(folder: Path, rates: Sequence[Bandwidth]) -> list[dict[str, Any]]:
    """Return what each way takes at each bandwidth [s]."""
    calibration = recorded.calibrated(folder)
    return [_row(way, rate, folder, calibration) for rate in rates for way in WAYS]


def _row(way: AlternativeWay, rate: Bandwidth, folder: Path, calibration: Calibration) -> dict[str, Any]:
    there = scenario(way, rate, folder, calibration)
    (recording,) = json.loads((folder / f"step_{way.name}.json").read_text(encoding="utf-8"))["recordings"]
    return {
        "way": way.name,
        "mbit_per_s": round(rate * 8 / 1e6),
        "predicted_s": simulate(there).result.iteration_s,
        "own_s": recorded.own_s(recording),
        "serial_s": recorded.serial_s(there),
    }


def scenario(way: AlternativeWay, rate: Bandwidth, folder: Path, calibration: Calibration) -> Scenario:
    """Return the scenario of a way at a bandwidth: of its recording nothing counts but the seconds of compute."""
    (recording,) = json.loads((folder / f"step_{way.name}.json").read_text(encoding="utf-8"))["recordings"]
    return Scenario(
        name=way.name,
        cluster=recorded.cluster(rate),
        workload=workload(recording, way.optimizer_shards),
        calibration=calibration,
        strategy=strategy_from_text(way.strategy, "strategy"),
    )


def workload(recording: dict[str, Any], optimizer_shards: int) -> Workload:
    """Return the model with the recorded compute of a rank; what encodes, decodes and copies counts as backward."""
    seconds = Counter[str]()
    for operation in (one for stream in recording["streams"] for one in stream["operations"]):
        if operation["kind"] == "compute":
            part = operation["part"]
            seconds[part if part in ("forward", "optimizer") else "backward"] += operation.get("seconds", 0.0)
    steps = recording["num_steps"]
    return Workload(
        name="blocks",
        tensors=gradients(),
        forward_s=Duration(seconds["forward"] / steps),
        backward_s=Duration(seconds["backward"] / steps),
        optimizer_s=Duration(seconds["optimizer"] / steps * optimizer_shards),
    )


def gradients() -> tuple[Gradient, ...]:
    """Return the tensors of the model in the order of backward, which spends its time on matrices."""
    inner = [("3", WIDTH, WIDTH), ("1", WIDTH, WIDTH)]
    blocks = [(f"blocks.{block}.{name}", *sides) for block in reversed(range(BLOCKS)) for name, *sides in inner]
    layers = [("head", CLASSES, WIDTH), *blocks, ("first", WIDTH, FEATURES)]
    return tuple(
        tensor
        for name, rows, columns in layers
        for tensor in (
            Gradient(name=f"{name}.bias", shape=(rows,), backward_share=0.0),
            Gradient(name=f"{name}.weight", shape=(rows, columns), backward_share=rows * columns),
        )
    )

"""Nodes that are not alike: strategies, ways to be neither idle nor equal, and percentiles before they ran."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from msgspec.structs import replace

from simnet.calibration import measurement_file, variation, variation_files
from simnet.calibration.variation import FittedVariation
from simnet.cluster.faults import BackgroundTraffic, SlowLink, SlowRank
from simnet.cluster.hardware import Calibration, Cluster, Fault
from simnet.core import schema
from simnet.core.units import Bandwidth, Duration
from simnet.engine.result import StrategyResult
from simnet.engine.scenario import RunSettings, Scenario
from simnet.engine.simulation import simulate
from simnet.strategies.base import strategy_from_text
from simnet.workload.workload import Gradient, Workload
from studies.lab import campaign as engine
from studies.lab.campaign import FREE, Row, mbit

NUM_NODES = 4
MODEL, BATCH, BUCKET_CAP_MB = "mlp_4m", 128, 8.0
WIDTH, LAYERS, CLASSES = 1024, 4, 10
"""Of the model, as in `binsgdm.recording.model_zoo`."""
CORES = 0.4
"""Part of a core that a rank has. All four take 1.6 of two cores: none can be slowed by what another one does."""
SLOW_RANK, SLOWDOWN = 2, 1.5
SLOW_NODE, SLOW_RATE = 1, 0.5
DEGRADED_NODE, DEGRADED_RATE, DEGRADED_AFTER = 2, 0.4, 0.65
"""The NIC that gets slower in mid-run, what is left of its rate, and after which part of the steps, as predicted."""
BUSY_NODE, BUSY_SHARE = 1, 0.4
"""The node beside whose training others send and receive, and which part of its NIC they take, in each direction."""
AIM_S, LEAST_STEPS, MOST_STEPS = 16.0, 40, 120
"""A training takes about so long by its prediction."""
ITERATIONS = 400
"""That are simulated where it does not matter when a fault begins: percentiles of many steps."""
PHASES = ("forward", "backward", "optimizer")
FaultName = Literal["as it comes", "slow rank", "slow NIC", "degrading NIC", "background traffic"]
FAULTS: tuple[FaultName, ...] = get_args(FaultName)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A strategy that trains.

    Attributes:
        title: for people.
        argument: of `simnet measure training --strategy`.
        strategy: of the simulator, as text.
    """

    title: str
    argument: str
    strategy: str


STRATEGIES = (
    Trained(title="DDP", argument="all_reduce", strategy="all_reduce:algorithm=ring,bucket_cap=8 MiB"),
    Trained(
        title="BinSGDM",
        argument="binsgdm:flat",
        strategy="binsgdm:topology=flat,overlap=false,finite_check=ring,bucket_cap=8 MiB",
    ),
    Trained(title="1-bit Adam", argument="one_bit_adam", strategy="one_bit_adam:finite_check=true"),
)


def faults(name: FaultName, degraded_from_s: float) -> tuple[Fault, ...]:
    """Return what is put into the lab, as the simulator has it.

    Args:
        name: which.
        degraded_from_s: when the NIC of "degrading NIC" gets slower, from the start of the run [s].
    """
    found: dict[FaultName, tuple[Fault, ...]] = {
        "as it comes": (),
        "slow rank": (SlowRank(node=SLOW_RANK, compute_slowdown=SLOWDOWN),),
        "slow NIC": (SlowLink(place=SLOW_NODE, rate=SLOW_RATE),),
        "degrading NIC": (SlowLink(place=DEGRADED_NODE, rate=DEGRADED_RATE, from_s=Duration(degraded_from_s)),),
        "background traffic": (BackgroundTraffic(at_nodes=(BUSY_NODE,), share=BUSY_SHARE),),
    }
    return found[name]


def place(fault: FaultName, mbit_per_s: int) -> str:
    """Return how files name a fault at a bandwidth."""
    return f"{fault.replace(' ', '_')}_{mbit_per_s}mbit"


def steps_file(kind: Literal["own", "trained"], argument: str, fault: FaultName, mbit_per_s: int) -> str:
    """Return the name of the file of a training, or of the steps without messages before it."""
    return f"{kind}_{argument.partition(':')[0]}_{place(fault, mbit_per_s)}.json"


def predict(folder: Path, rate: Bandwidth, fault: FaultName) -> list[Row]:
    """Return what steps are predicted to take with each strategy under a fault, and how many to run."""
    calibration = engine.calibrated(folder)
    own = [folder / steps_file("own", one.argument, fault, mbit(rate)) for one in STRATEGIES]
    return [_row(one, rate, fault, calibration, path) for one, path in zip(STRATEGIES, own, strict=True)]


def _row(trained: Trained, rate: Bandwidth, fault: FaultName, calibration: Calibration, own: Path) -> Row:
    found = variation.fit(variation_files.read([own]))
    # Nodes as they were while nothing was done to them: with the variation found there.
    usual = Scenario(
        name=trained.title,
        cluster=_cluster(rate, found.faults),
        workload=_workload(own, found),
        calibration=calibration,
        strategy=strategy_from_text(trained.strategy, "strategy"),
    )

    def simulated(more: Sequence[Fault], iterations: int) -> StrategyResult:
        cluster = replace(usual.cluster, faults=(*usual.cluster.faults, *more))
        return simulate(replace(usual, cluster=cluster, run=RunSettings(iterations=iterations))).result

    usual_s = simulated((), ITERATIONS).p50_s
    steps = min(max(round(AIM_S / usual_s), LEAST_STEPS), MOST_STEPS)
    begins_s, degrades = DEGRADED_AFTER * steps * usual_s, fault == "degrading NIC"
    # Where it matters when a fault begins, just the steps that will run.
    result = simulated(faults(fault, begins_s), steps if degrades else ITERATIONS)
    return {
        "strategy": trained.argument,
        "mbit_per_s": mbit(rate),
        "fault": fault,
        "steps": steps,
        "degrades_after_s": round(begins_s, 3) if degrades else None,
        "p50_s": result.p50_s,
        "p95_s": result.p95_s,
        "usual_p50_s": usual_s,
        "own_s": found.compute_s,
        "cv": found.cv,
        "executor": result.fidelity,
    }


def _cluster(rate: Bandwidth, found: Sequence[Mapping[str, object]]) -> Cluster:
    """Return the lab's nodes with faults as they stand in a scenario."""
    link = {"bandwidth": "1 PB/s", "latency": "0 s"}
    shape = {"num_nodes": NUM_NODES, "ranks_per_node": 1, "intra_node": link, "inter_node": link}
    plain = schema.build(Cluster, {**shape, "faults": [dict(one) for one in found]}, "lab")
    return replace(plain, inter_node=replace(FREE, bytes_per_s=rate))


def _workload(own: Path, found: FittedVariation) -> Workload:
    """Return the model whose step without messages takes so long, its phases in the proportion of their medians."""
    phases = {name: statistics.median(times_s(own, name)) for name in PHASES}
    each = (Duration(phases[name] * found.compute_s / sum(phases.values())) for name in PHASES)
    forward_s, backward_s, optimizer_s = each
    return Workload(
        name=MODEL,
        tensors=gradients(),
        batch_per_rank=BATCH,
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=optimizer_s,
    )


def gradients() -> tuple[Gradient, ...]:
    """Return the tensors of the model."""
    layers = [(CLASSES, WIDTH), *[(WIDTH, WIDTH)] * LAYERS]
    return engine.layered((str(number), *sides) for number, sides in enumerate(layers))


def times_s(path: Path, name: str) -> tuple[float, ...]:
    """Return the times of a measured series [s]."""
    (found,) = (one.values for one in measurement_file.read(path).series if one.name == name)
    return found

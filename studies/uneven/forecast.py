"""Predict the percentiles of steps on nodes that are not alike, from what was measured before they ran."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from simnet.calibration import measurement_file, variation_files, variation_fit
from simnet.calibration.variation_fit import FittedVariation
from simnet.cluster.hardware import Calibration, Cluster, Fault
from simnet.core import schema
from simnet.core.units import Bandwidth, Duration
from simnet.engine.result import StrategyResult
from simnet.engine.scenario import RunSettings, Scenario
from simnet.engine.simulation import simulate
from simnet.strategies.base import strategy_from_text
from simnet.workload.workload import Gradient, Workload
from studies.recorded import forecast as recorded
from studies.uneven.rows import (
    AIM_S,
    BATCH,
    DEGRADED_AFTER,
    LEAST_STEPS,
    MOST_STEPS,
    NUM_NODES,
    STRATEGIES,
    FaultName,
    Trained,
    faults,
)

ITERATIONS = 400
"""That are simulated where it does not matter when a fault begins: percentiles of many steps."""
PHASES = ("forward", "backward", "optimizer")
WIDTH, LAYERS, CLASSES = 1024, 4, 10
"""Of the model `mlp_4m` of `binsgdm.recording.model_zoo`."""


def predict(folder: Path, rate: Bandwidth, fault: FaultName, own: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Return what steps are predicted to take with each strategy, and how many to run.

    Args:
        folder: with the measurements of links and messages.
        rate: of each NIC.
        fault: what is put into the lab.
        own: file of the steps without messages by the strategy's argument.
    """
    calibration = recorded.calibrated(folder)
    return [_row(one, rate, fault, calibration, own[one.argument]) for one in STRATEGIES]


def _row(trained: Trained, rate: Bandwidth, fault: FaultName, calibration: Calibration, own: Path) -> dict[str, Any]:
    found = variation_fit.fit(variation_files.read([own]))
    usual = scenario(trained, rate, calibration, own, found)
    usual_s = simulated(usual, ()).p50_s
    steps = min(max(round(AIM_S / usual_s), LEAST_STEPS), MOST_STEPS)
    begins_s = DEGRADED_AFTER * steps * usual_s
    # Where it matters when a fault begins, just the steps that will run.
    iterations = steps if fault == "degrading NIC" else ITERATIONS
    result = simulated(usual, faults(fault, begins_s), iterations)
    return {
        "strategy": trained.argument,
        "mbit_per_s": round(rate * 8 / 1e6),
        "fault": fault,
        "steps": steps,
        "degrades_after_s": round(begins_s, 3) if fault == "degrading NIC" else None,
        "p50_s": result.p50_s,
        "p95_s": result.p95_s,
        "usual_p50_s": usual_s,
        "own_s": found.compute_s,
        "cv": found.cv,
        "executor": result.fidelity,
    }


def simulated(usual: Scenario, more: Sequence[Fault], iterations: int = ITERATIONS) -> StrategyResult:
    """Return a run of so many iterations with further faults."""
    cluster = replace(usual.cluster, faults=(*usual.cluster.faults, *more))
    return simulate(replace(usual, cluster=cluster, run=RunSettings(iterations=iterations))).result


def scenario(
    trained: Trained, rate: Bandwidth, calibration: Calibration, own: Path, found: FittedVariation
) -> Scenario:
    """Return a strategy on the nodes as they were while nothing was done to them: with the variation found there.

    Args:
        trained: the strategy.
        rate: of each NIC.
        calibration: of links and of the CPU time of messages.
        own: file of the steps without messages.
        found: how their compute varied.
    """
    return Scenario(
        name=trained.title,
        cluster=cluster(rate, found.faults),
        workload=workload(own, found.compute_s),
        calibration=calibration,
        strategy=strategy_from_text(trained.strategy, "strategy"),
    )


def cluster(rate: Bandwidth, found: Sequence[Mapping[str, object]]) -> Cluster:
    """Return the lab's nodes with faults as they stand in a scenario."""
    link = {"bandwidth": "1 PB/s", "latency": "0 s"}
    shape = {"num_nodes": NUM_NODES, "ranks_per_node": 1, "intra_node": link, "inter_node": link}
    plain = schema.build(Cluster, {**shape, "faults": [dict(one) for one in found]}, "lab")
    return replace(plain, inter_node=replace(recorded.FREE, bytes_per_s=rate))


def workload(own: Path, compute_s: float) -> Workload:
    """Return the model whose step without messages takes so long, its phases in the proportion of their medians."""
    whole = measurement_file.read(own)
    phases = {one.name: statistics.median(one.values) for one in whole.series if one.name in PHASES}
    forward_s, backward_s, optimizer_s = (Duration(phases[name] * compute_s / sum(phases.values())) for name in PHASES)
    return Workload(
        name="mlp_4m",
        tensors=gradients(),
        batch_per_rank=BATCH,
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=optimizer_s,
    )


def gradients() -> tuple[Gradient, ...]:
    """Return the tensors of the model in the order of backward, which spends its time on matrices."""
    layers = [(CLASSES, WIDTH), *[(WIDTH, WIDTH)] * LAYERS]
    return tuple(
        tensor
        for number, (rows, columns) in enumerate(layers)
        for tensor in (
            Gradient(name=f"{number}.bias", shape=(rows,), backward_share=0.0),
            Gradient(name=f"{number}.weight", shape=(rows, columns), backward_share=rows * columns),
        )
    )

"""Small measured trainings for the tests of races, and a cluster to run them on."""

import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from simnet.analysis.tuned_steps import StepCost, StepCosts, TunedSteps
from simnet.analysis.whatif import coverage
from simnet.cluster.hardware import Calibration
from simnet.core.units import Bandwidth, Duration
from simnet.engine.scenario import RunSettings, Scenario
from simnet.engine.simulation import kernel_names
from simnet.strategies import AnyStrategy, DenseAllReduce, OneBitAdam
from simnet.strategies.base import for_longer_training
from simnet.workload.workload import Gradient, Workload
from tests.helpers.topologies import cluster

STEPS = (10, 20, 30, 40)
SYSTEMS: dict[str, dict[str, Any]] = {
    "dense": {"title": "DDP fp32", "strategy": {"kind": "all_reduce"}},
    "quick": {"title": "QSGD", "strategy": {"kind": "qsgd"}},
    "adam": {"title": "1-bit Adam", "strategy": {"kind": "one_bit_adam", "dense_steps": 15}},
}
NUM_PARAMETERS = 10_000_000
"""Those of `WORKLOAD`."""
VALUES: dict[str, list[list[float | None]]] = {
    "dense": [[4.0, 3.0, 2.0, 1.0], [4.0, 3.0, 2.2, 2.0], [4.0, 2.0, 1.5, 1.0]],
    "quick": [[4.5, 3.5, 2.5, 2.0], [4.5, 3.5, 2.5, 1.9], [4.5, 3.0, 2.0, 1.5]],
    "adam": [[4.0, 3.0, 2.0, 1.0], [4.0, None, None, None], [4.0, 3.0, 3.0, 3.0]],
}


def trainings(**changes: Any) -> dict[str, Any]:
    """Return a file's contents: three systems, three seeds, 4 ranks, a target of 2."""
    curves = [
        {"system": name, "ranks": 4, "seed": seed, "steps": list(STEPS), "values": values}
        for name, by_seed in VALUES.items()
        for seed, values in enumerate(by_seed)
    ]
    whole = {
        "format": "simnet-convergence",
        "version": 2,
        "task": "a made-up task",
        "metric": "validation loss",
        "unit": "nats",
        "better": "lower",
        "batch": 64,
        "num_parameters": NUM_PARAMETERS,
        "target": 2.0,
        "source": "made up for a test",
        "systems": SYSTEMS,
        "curves": curves,
    }
    return {**whole, **changes}


def write_trainings(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps(trainings(**changes)), encoding="utf-8")
    return path


WORKLOAD = Workload(
    tensors=(Gradient(shape=(1000, 1000), count=10),),
    forward_s=Duration(0.01),
    backward_s=Duration(0.02),
    optimizer_s=Duration(0.001),
)


def scenario(**run: Any) -> Scenario:
    calibration = Calibration(memory_bytes_per_s=Bandwidth(1.5e12))
    return Scenario(
        cluster=cluster(4, 1),
        workload=WORKLOAD,
        calibration=calibration,
        strategy=DenseAllReduce(),
        run=RunSettings(**run),
    )


TIMES_S = {"all_reduce": 3.0, "qsgd": 2.0, "one_bit_adam": 1.0}
"""Of a step, of costs that are as simple as can be; the first step of DDP, in one bucket, takes half a second more."""


def simple_costs(strategy: AnyStrategy, times: TunedSteps, **seconds: float) -> StepCosts:
    """Return the times above at 10 Gbit/s, and at other bandwidths in proportion; kernels take none of it.

    Args:
        strategy: of the training.
        times: on the cluster.
        **seconds: other times, by kind.
    """
    slower, known = 1.25e9 / times.cluster_rate, TIMES_S | seconds
    dense = isinstance(strategy, OneBitAdam)
    cost = StepCost(
        strategy=strategy,
        first_s=slower * 0.5,
        step_s=slower * known[strategy.kind],
        dense_s=slower * known["all_reduce"] if dense else 0.0,
    )
    names = kernel_names(replace(times.scenario, strategy=for_longer_training(strategy, 0.0)))
    kernels = coverage(names, times.scenario.calibration)
    return StepCosts(cost, [cost], cost if kernels.are_estimated else None, kernels.unmeasured)

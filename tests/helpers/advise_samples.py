"""A scenario for the tests of `simnet advise`, and short ways to what was advised."""

import typing

from msgspec.structs import replace

from simnet.analysis.advice import Advice, RankedSystem
from simnet.analysis.advise import advise
from simnet.analysis.convergence import shipped
from simnet.analysis.tune import chosen, dense_systems
from simnet.cluster.hardware import Calibration, Cluster
from simnet.core.units import Bandwidth, Duration
from simnet.engine.scenario import RunSettings, Scenario
from simnet.engine.simulation import simulate
from simnet.strategies import AnyStrategy, DenseAllReduce
from simnet.workload.workload import Gradient, Workload
from tests.helpers.topologies import link

GBIT = 1e9 / 8
FAST_CODEC = Calibration(memory_bytes_per_s=Bandwidth(1e12))
WORKLOAD = Workload(
    tensors=tuple(Gradient(shape=(1024, 4096), name=f"layers.{index}.weight") for index in range(4)),
    forward_s=Duration(0.01),
    backward_s=Duration(0.02),
    optimizer_s=Duration(0.0002),
)


def scenario(
    *,
    gbit_per_s: float = 1,
    num_nodes: int = 4,
    ranks_per_node: int = 2,
    alpha_s: float = 5e-6,
    calibration: Calibration = FAST_CODEC,
    workload: Workload = WORKLOAD,
    draws: int | None = None,
) -> Scenario:
    cluster = Cluster(
        num_nodes=num_nodes,
        ranks_per_node=ranks_per_node,
        intra_node=link(300e9, min(alpha_s, 1e-6)),
        inter_node=link(gbit_per_s * GBIT, alpha_s),
    )
    return Scenario(
        cluster=cluster,
        workload=workload,
        strategy=DenseAllReduce(),
        calibration=calibration,
        run=RunSettings(draws=draws),
    )


def advised(*names: str, **parts: typing.Any) -> Advice:
    """Return the advice by the shipped trainings."""
    return advise(scenario(**parts), names=chosen(names), trainings=shipped())


def row(advice: Advice, name: str) -> RankedSystem:
    return next(row for row in advice.systems if row.name == name)


def least_s(settings: typing.Iterable[AnyStrategy], there: Scenario) -> float:
    """Return the time of the fastest setting, without the code that is tested."""
    return min(simulate(replace(there, strategy=strategy)).result.iteration_s for strategy in settings)


def dense_s(there: Scenario) -> float:
    return min(least_s(settings, there) for settings in dense_systems("fp32").values())

"""A training whose step times are fitted, and rows of such times made by the model itself."""

from collections.abc import Iterable, Sequence
from dataclasses import replace as changed
from pathlib import Path

from msgspec.structs import replace

from simnet.calibration import step_fit
from simnet.calibration.step_fit import StepFit
from simnet.calibration.step_model import StepModel, Trained
from simnet.calibration.step_rows import TimedStep
from simnet.cluster.hardware import Calibration
from simnet.core.units import Duration
from simnet.engine import scenario
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from simnet.workload.workload import Workload

HEAD = "nodes,ranks_per_node,batch,strategy,step_ms"
WHERE = Path("steps.csv")
TRAINED = scenario.build({"cluster": "generic_10gbit", "workload": "resnet50", "strategy": "qsgd"})
TRAINED = replace(
    TRAINED,
    cluster=replace(TRAINED.cluster, gpu="V100-32GB"),
    workload=Workload(gradients="resnet50", forward_s=Duration(0.03), backward_s=Duration(0.06), batch_per_rank=32),
)


def simulate_s(given: Scenario) -> float:
    return simulate(given).result.iteration_s


def fit(rows: Sequence[TimedStep], start: Calibration | None = None, trained: Scenario = TRAINED) -> StepFit:
    return step_fit.fit(rows, Trained(lambda _: trained, simulate_s), start or Calibration())


def row(nodes: int, ranks: int = 4, strategy: str = "all_reduce", step_s: float = 1.0, batch: int = 32) -> TimedStep:
    where = f"{nodes} x {ranks}"
    return TimedStep(where=where, num_nodes=nodes, ranks_per_node=ranks, batch=batch, strategy=strategy, step_s=step_s)


def timed(
    rows: Iterable[TimedStep], calibration: Calibration, factors: dict[tuple[str, int], float]
) -> list[TimedStep]:
    """Return rows with the times of a calibration."""
    model = StepModel(trained=Trained(lambda _: TRAINED, simulate_s), start=calibration, compute_factors=factors)
    return [changed(one, step_s=model.step_s(one, calibration)) for one in rows]

"""PyTorch's own DDP benchmark: iteration times on two DGX-1 nodes."""

from collections.abc import Iterator

from simnet.cluster.hardware import Calibration, Cluster, Link
from simnet.core.units import Bandwidth, Duration
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from simnet.strategies import DenseAllReduce
from simnet.validation import published_rows, shipped_parts
from simnet.validation.outcome import Alternative, Limit, Outcome, Parameter, compute_parameter
from simnet.validation.published import one_bit_adam
from simnet.validation.published_rows import PublishedRow
from simnet.validation.shipped_parts import with_value
from simnet.validation.study import FreeNumber, Study

SOURCE = "pytorch"
MODELS = ("resnet50", "resnet101", "resnext101_32x8d")
BATCH = 32
SLOWDOWNS = (1.0, 2.0)
"""Bounds of the fitted slowdown of backward."""
STANDSTILL = 1000.0


def evaluate() -> Outcome:
    """Calibrate DDP's overhead on one row, predict the other multi-GPU rows."""
    rows = published_rows.load().select(SOURCE)
    # Of one node: NVLink hides there, so that what DDP itself adds is left.
    (known,) = (row for row in rows if (row.model, row.gpus) == (MODELS[0], 2))
    link, parameter = one_bit_adam.nvlink()
    study = Study(
        initial=Calibration(intra_node=link),
        fits=(FreeNumber(part="v100_tcp_estimate", key="hook_slowdown", bounds=SLOWDOWNS, rows=(known,)),),
        predict=_iteration_s,
        measured=lambda row: row.value,
        series=lambda row: row.model,
        label=lambda row: f"{row.model}, {row.gpus} GPUs",
    ).predicting(row for row in rows if row.gpus > 1)

    def alternatives() -> Iterator[Alternative]:
        on = "1-GPU rows only"
        yield Alternative("no overhead of DDP", on, study.fixed(study.initial).predictions)
        still = study.fixed(with_value(study.initial, "backward_slowdown", STANDSTILL))
        yield Alternative("backward stands still while an all-reduce runs", on, still.predictions)

    return Outcome(
        title="PyTorch DDP benchmark",
        unit="ms",
        bound=Limit(mean=0.03, worst=0.05),
        parameters=(*map(_compute_parameter, MODELS), parameter, *study.parameters),
        predictions=study.predictions,
        make_alternatives=alternatives,
    )


def _single(model: str) -> PublishedRow:
    return published_rows.load().only(SOURCE, model=model, gpus=1)


def _iteration_s(calibration: Calibration, row: PublishedRow) -> float:
    cluster = Cluster(
        num_nodes=row.nodes,
        ranks_per_node=row.gpus // row.nodes,
        nics_per_node=4,
        intra_node=Link(bytes_per_s=Bandwidth(150e9), alpha_s=Duration(3.4e-6)),
        inter_node=Link(bytes_per_s=Bandwidth(100e9 / 8), alpha_s=Duration(14e-6)),
    )
    workload = shipped_parts.workload_from_compute_time(row.model, _single(row.model).value, BATCH)
    scenario = Scenario(cluster=cluster, workload=workload, calibration=calibration, strategy=DenseAllReduce())
    return simulate(scenario).result.iteration_s


def _compute_parameter(model: str) -> Parameter:
    row = _single(model)
    return compute_parameter(
        f"forward + backward, {model}", row.value, "1 GPU; a third of it forward", (row,), digits=0
    )

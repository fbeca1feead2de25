"""PyTorch's own DDP benchmark: iteration times on two DGX-1 nodes."""

from collections.abc import Iterator
from dataclasses import replace

from simnet.cluster.hardware import Calibration, Cluster, Link, LinkCalibration
from simnet.core.units import Bandwidth, Duration
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from simnet.strategies import DenseAllReduce
from simnet.validation import published_rows, shipped_parts
from simnet.validation.outcome import Alternative, Limit, Outcome, Parameter, compute_parameter
from simnet.validation.published.one_bit_adam import INFINIBAND
from simnet.validation.published.one_bit_models import single_node
from simnet.validation.published_rows import PublishedRow
from simnet.validation.shipped_parts import with_value
from simnet.validation.study import Fit, Study

ORDER = 12
SOURCE = "pytorch"
MODELS = ("resnet50", "resnet101", "resnext101_32x8d")
BATCH = 32
SLOWDOWNS = (1.0, 2.0)
"""Bounds of the fitted slowdown of backward."""
STANDSTILL = 1000.0
NVLINK = "intra_node.efficiency"


def evaluate() -> Outcome:
    """Calibrate DDP's overhead on one row, predict the other multi-GPU rows."""
    study = _study()
    (nvlink,) = single_node(INFINIBAND).parameters
    nvlink = replace(nvlink, part="this set only", text=f"{nvlink.value:.4f} ({nvlink.value * 1200:.0f} Gbit/s)")
    return Outcome(
        title="PyTorch DDP benchmark",
        unit="ms",
        bound=Limit(mean=0.03, worst=0.05),
        parameters=(*map(_compute_parameter, MODELS), nvlink, *study.parameters),
        predictions=study.predictions,
        make_alternatives=lambda: _alternatives(study),
    )


def _study() -> Study:
    rows = published_rows.load()
    known = rows.one(SOURCE, model="resnet50", gpus=2)
    nvlink = LinkCalibration(efficiency=single_node(INFINIBAND).value(NVLINK))
    return Study(
        initial=Calibration(intra_node=nvlink),
        fits=(Fit(part="v100_tcp_estimate", key="hook_slowdown", bounds=SLOWDOWNS, rows=(known,)),),
        predict=_iteration_s,
        measured=lambda row: row.value,
        series=lambda row: row.model,
        label=lambda row: f"{row.model}, {row.gpus} GPUs",
        held_out=tuple(row for row in rows.select(SOURCE) if row.gpus > 1 and row != known),
    )


def _single(model: str) -> PublishedRow:
    return published_rows.load().one(SOURCE, model=model, gpus=1)


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


def _alternatives(study: Study) -> Iterator[Alternative]:
    yield Alternative("no overhead of DDP", "1-GPU rows only", replace(study, fits=()).predictions)
    still = replace(study, initial=with_value(study.initial, "backward_slowdown", STANDSTILL), fits=())
    yield Alternative("backward stands still while an all-reduce runs", "1-GPU rows only", still.predictions)

"""The HKBU clusters: their rows, a scenario for each row, and studies of them that build on one another."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from msgspec import structs

from simnet.hardware import Calibration
from simnet.scenario import Scenario
from simnet.simulate import simulate
from simnet.strategies import DenseAllReduce, Planner
from simnet.units import Bandwidth, Duration
from simnet.validate import published_rows, shipped
from simnet.validate.outcome import Parameter, compute_parameter
from simnet.validate.published_rows import PublishedRow
from simnet.validate.shipped import PublishedNetwork, cached
from simnet.validate.study import Fit, Study

SOURCE = "HKBU"
MODELS = {"ResNet-50": "resnet50", "BERT-Base": "bert_base", "BERT-Large": "bert_large"}
BUCKETING = {"BSP-A2A": "fused", "WFBP-A2A": "per_tensor", "MG-WFBP": "mg_wfbp"}
BSP, WFBP = "BSP-A2A", "WFBP-A2A"
OVERLAPPED = (WFBP, "MG-WFBP")
CALIBRATED, PREDICTED = 8, (16, 32)
"""GPUs of the fitted rows, and of the predicted rows."""
LAUNCHES_S = (0.0, 5e-3)
"""Bounds of the fitted launch of a collective."""


ETHERNET = PublishedNetwork(
    label="10GbE", column="10GbE with TCP/IP", part="hkbu_10gbe", link="inter_node", nominal_gbit_per_s=10
)
INFINIBAND = PublishedNetwork(
    label="100 Gbit IB",
    column="100GbIB with RDMA",
    part="hkbu_100gb_ib",
    link="intra_node",
    nominal_gbit_per_s=126,
)
NETWORKS = (ETHERNET, INFINIBAND)

PLANNED: dict[str, dict[int, tuple[float, float]]] = {
    "10GbE": {
        8: (0.0005230272768511732, 8.570746975492128e-10),
        16: (0.0009080981007148093, 7.395651186836712e-10),
        32: (3 * 0.0013476410788581382, 8.643300782166769e-10),
    },
    "100 Gbit IB": {
        8: (9.75367204301171e-05, 3.0568230536676206e-10),
        16: (3 * 0.00023583677659915685, 4.0594787739537565e-10),
        32: (0.00040632079996292579, 1.5 * 3.2713239529771973e-10),
    },
}
"""Start-up [s] and time per byte [s/B] of an all-reduce by GPUs, from the table of MG-WFBP's planner.

The table has no entry for the 4 GPUs of one node; there the planner is given the simulated cost.
Source: HKBU-HPML/ddl-benchmarks, mgwfbp/hv_distributed_optimizer.py; numbers in the code of the authors, not measured
here.
"""


def rows(network: PublishedNetwork, **wanted: object) -> tuple[PublishedRow, ...]:
    """Return published rows of a network."""
    return published_rows.load().select(SOURCE, network=network.column, **wanted)


@cached
def bsp(network: PublishedNetwork) -> Study:
    """Return the model without overlap: one fit, of the bandwidth of the limiting link to the 8-GPU rows."""
    bandwidth = Fit(
        part=network.part,
        key=f"{network.link}.efficiency",
        how="least squares",
        rows=rows(network, method=BSP, gpus=CALIBRATED),
        text=lambda part: f"{part:.4f} ({part * network.nominal_gbit_per_s:.2f} Gbit/s of payload)",
    )
    return Study(
        initial=shipped.unfitted(network.part, collective_launch_s=Duration(0)),
        fits=(bandwidth,),
        predict=partial(_predict_s, network),
        measured=iteration_s,
        series=lambda row: f"{network.label}, {row.method}",
        label=lambda row: f"{network.label}, {row.model}, {row.method}, {row.gpus} GPUs",
        held_out=rows(network, method=BSP, gpus=PREDICTED),
    )


@cached
def overlapped(network: PublishedNetwork) -> Study:
    """Return the model with overlap: a further fit, of the launch of a collective to the 8-GPU WFBP rows."""
    launch = Fit(
        part=network.part,
        key="collective_launch",
        how="mean signed error zero",
        bounds=LAUNCHES_S,
        rows=rows(network, method=WFBP, gpus=CALIBRATED),
        text=lambda seconds: f"{1e6 * seconds:.1f} us",
    )
    wanted = rows(network, method=OVERLAPPED, gpus=(CALIBRATED, *PREDICTED))
    return replace(
        bsp(network), fits=(*bsp(network).fits, launch), held_out=tuple(row for row in wanted if row not in launch.rows)
    )


def iteration_s(row: PublishedRow) -> float:
    """Return the time of an iteration from the throughput of a row [s]."""
    return row.gpus * int(row.batch_per_gpu) / row.value


def compute_parameters(wanted: Iterable[PublishedRow]) -> tuple[Parameter, ...]:
    """Return the compute times of the 1-GPU rows that belong to these rows."""
    by_model: dict[str, dict[str, PublishedRow]] = {}
    for row in wanted:
        single = _compute_row(row)
        by_model.setdefault(row.model, {})[single.key] = single
    return tuple(_compute_parameter(model, tuple(found.values())) for model, found in by_model.items())


def _compute_parameter(model: str, singles: tuple[PublishedRow, ...]) -> Parameter:
    key = f"forward + backward, {model}, batch {singles[0].batch_per_gpu}"
    return compute_parameter(key, iteration_s(singles[0]), "1 GPU; a third of it forward", singles)


@cached
def _compute_row(row: PublishedRow) -> PublishedRow:
    """Return the 1-GPU row with the model, method and network of a row."""
    return published_rows.load().one(SOURCE, model=row.model, network=row.network, method=row.method, gpus=1)


def _predict_s(network: PublishedNetwork, calibration: Calibration, row: PublishedRow) -> float:
    return simulate(structs.replace(_scenario(network, row), calibration=calibration)).result.iteration_s


@cached
def _scenario(network: PublishedNetwork, row: PublishedRow) -> Scenario:
    """Return the scenario of a row: the compute time of its 1-GPU row, and its all-reduce method."""
    compute_s = iteration_s(_compute_row(row))
    bucketing = BUCKETING[row.method]
    return Scenario(
        cluster=shipped.cluster(network.part, row.nodes),
        workload=shipped.workload_from_compute_time(MODELS[row.model], compute_s, int(row.batch_per_gpu)),
        strategy=DenseAllReduce(
            algorithm="ring",
            bucketing=bucketing,  # type: ignore[arg-type]
            overlap=bucketing != "fused",
            planner=_planner(network, row.gpus) if bucketing == "mg_wfbp" and row.nodes > 1 else None,
        ),
    )


def _planner(network: PublishedNetwork, gpus: int) -> Planner:
    start_up_s, s_per_byte = PLANNED[network.label][gpus]
    return Planner(start_up_s=Duration(start_up_s), bytes_per_s=Bandwidth(1 / s_per_byte))

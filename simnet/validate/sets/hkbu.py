"""The HKBU clusters: what their rows say, and a scenario for each of them."""

from collections.abc import Iterable
from dataclasses import dataclass

from simnet.hardware import Calibration
from simnet.scenario import Scenario
from simnet.simulate import simulate
from simnet.strategies import AllReduce, Planner
from simnet.units import Bandwidth, Duration
from simnet.validate import parts
from simnet.validate.measurements import Measurements, Row
from simnet.validate.outcome import Parameter, Prediction
from simnet.workload.workload import Workload

SOURCE = "HKBU"
MODELS = {"ResNet-50": "resnet50", "BERT-Base": "bert_base", "BERT-Large": "bert_large"}
BUCKETING = {"BSP-A2A": "fused", "WFBP-A2A": "per_tensor", "MG-WFBP": "mg_wfbp"}
PREDICTED_GPUS = (16, 32)


@dataclass(frozen=True, kw_only=True)
class Network:
    """One of the two networks: its name in the rows, in the shipped parts, and the link that limits its ring."""

    label: str
    column: str
    part: str
    link: str
    nominal_gbit_per_s: float


NETWORKS = (
    Network(
        label="10GbE",
        column="10GbE with TCP/IP",
        part="hkbu_10gbe",
        link="inter_node",
        nominal_gbit_per_s=10,
    ),
    Network(
        label="100 Gbit IB",
        column="100GbIB with RDMA",
        part="hkbu_100gb_ib",
        link="intra_node",
        nominal_gbit_per_s=126,
    ),
)

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
"""Start-up [s] and time per byte [s/B] of an all-reduce by GPUs, as MG-WFBP's planner was told.

There is no entry that is known for the 4 GPUs of one node; there the planner sees the simulated cost.
Source: HKBU-HPML/ddl-benchmarks, mgwfbp/hv_distributed_optimizer.py; a table in the code, not a measurement here.
"""


def iteration_s(row: Row) -> float:
    """Return the seconds of an iteration that a row's throughput means."""
    return row.gpus * int(row.batch_per_gpu) / row.value


def compute_row(rows: Measurements, row: Row) -> Row:
    """Return the 1-GPU row of a row's model, method and network."""
    return rows.one(SOURCE, model=row.model, network=row.network, method=row.method, gpus=1)


def predict_s(rows: Measurements, network: Network, calibration: Calibration, row: Row) -> float:
    """Return the simulated seconds of an iteration of a row."""
    return simulate(scenario(rows, network, calibration, row)).result.iteration_s


def scenario(rows: Measurements, network: Network, calibration: Calibration, row: Row) -> Scenario:
    """Return a row as a scenario: the compute of its 1-GPU row, a third of it forward, and its all-reduce method."""
    compute_s = iteration_s(compute_row(rows, row))
    bucketing = BUCKETING[row.method]
    return Scenario(
        cluster=parts.cluster(network.part, row.nodes),
        workload=Workload(
            gradients=MODELS[row.model],
            forward_s=Duration(compute_s / 3),
            backward_s=Duration(2 * compute_s / 3),
            batch_per_rank=int(row.batch_per_gpu),
        ),
        calibration=calibration,
        strategy=AllReduce(
            algorithm="ring",
            bucketing=bucketing,  # type: ignore[arg-type]
            overlap=bucketing != "fused",
            planner=_planner(network, row.gpus) if bucketing == "mg_wfbp" and row.nodes > 1 else None,
        ),
    )


def predictions(
    rows: Measurements, network: Network, calibration: Calibration, wanted: Iterable[Row]
) -> tuple[Prediction, ...]:
    """Return predicted against measured of these rows."""
    return tuple(
        Prediction(
            series=f"{network.label}, {row.method}",
            label=f"{network.label}, {row.model}, {row.method}, {row.gpus} GPUs",
            row=row,
            predicted=predict_s(rows, network, calibration, row),
            measured=iteration_s(row),
        )
        for row in wanted
    )


def compute_parameters(rows: Measurements, wanted: Iterable[Row]) -> tuple[Parameter, ...]:
    """Return the compute times that these rows take from 1-GPU rows."""
    by_model: dict[str, dict[str, Row]] = {}
    for row in wanted:
        single = compute_row(rows, row)
        by_model.setdefault(row.model, {})[single.key] = single
    return tuple(
        Parameter(
            part="workload",
            key=f"forward + backward, {model}, batch {next(iter(found.values())).batch_per_gpu}",
            value=iteration_s(next(iter(found.values()))),
            text=f"{1e3 * iteration_s(next(iter(found.values()))):.1f} ms",
            how="1 GPU; a third of it forward",
            rows=tuple(found.values()),
        )
        for model, found in by_model.items()
    )


def _planner(network: Network, gpus: int) -> Planner:
    start_up_s, s_per_byte = PLANNED[network.label][gpus]
    return Planner(start_up_s=Duration(start_up_s), bytes_per_s=Bandwidth(1 / s_per_byte))

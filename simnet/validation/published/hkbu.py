"""The HKBU clusters: their rows, a scenario for each row, and studies of them that build on one another."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from msgspec import structs

from simnet.calibration import solvers
from simnet.cluster.hardware import Calibration
from simnet.core.units import Bandwidth, Duration
from simnet.engine.scenario import Scenario
from simnet.engine.step_timer import StepTimer
from simnet.strategies import DenseAllReduce, Planner
from simnet.validation import published_rows, shipped_parts
from simnet.validation.outcome import Parameter, compute_parameter
from simnet.validation.published_rows import PublishedRow
from simnet.validation.shipped_parts import PublishedNetwork, cached, with_value
from simnet.validation.study import Fit, Study
from simnet.workload import training_step

SOURCE = "HKBU"
NUM_PARAMETERS = {"ResNet-50": 25_557_032, "BERT-Base": 110_106_428, "BERT-Large": 336_226_108}
MODELS = {"ResNet-50": "resnet50", "BERT-Base": "bert_base", "BERT-Large": "bert_large"}
BUCKETING = {"BSP-A2A": "fused", "WFBP-A2A": "per_tensor", "MG-WFBP": "mg_wfbp"}
BSP, WFBP = "BSP-A2A", "WFBP-A2A"
OVERLAPPED = (WFBP, "MG-WFBP")
CALIBRATED, PREDICTED = 8, (16, 32)
"""GPUs of the fitted rows, and of the predicted rows."""
VOCABULARY = 30_522
LAUNCHES_S = (0.0, 5e-3)
"""Bounds of the fitted launch of a collective."""
EFFICIENCY, OVERLAP_EFFICIENCY = "intra_node.efficiency", "intra_node.overlap_efficiency"
OPTIMIZER_BYTES = {"ResNet-50": 16.0, "BERT-Large": 76.0, "BERT-Base": 76.0}
"""Bytes that the optimizer and zeroed gradients move for each parameter, every operation a kernel of its own.

SGD without momentum: write 0 (4); read x and g, write x (12). AdamW of transformers: write 0 (4); m times beta (8),
plus g (12); v times beta (8), plus g g (12); its root (8), plus epsilon (8); x plus m over that (16). The trace that
the source holds of one GPU (horovod/bert.prof) counts these kernels.
"""
DATA_SHEET_BYTES_PER_S = 616e9
MEMORY_BYTES_PER_S = 0.84 * DATA_SHEET_BYTES_PER_S
"""Memory of an RTX 2080 Ti: the mean part of the data sheet that three cards reach (calibrations/v100_tcp_estimate)."""


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
FAST_ETHERNET = PublishedNetwork(
    label="100GbE", column="100GbE with TCP/IP", part="hkbu_100gbe", nominal_gbit_per_s=100
)
NETWORKS = (ETHERNET, INFINIBAND)
"""Those on which NCCL's bandwidth does not change with the number of nodes."""

PLANNED: dict[str, dict[int, tuple[float, float]]] = {
    "10GbE": {
        4: (4.204298980348825e-05, 2.0589360830118177e-10),
        8: (0.0005230272768511732, 8.570746975492128e-10),
        16: (0.0009080981007148093, 7.395651186836712e-10),
        32: (3 * 0.0013476410788581382, 8.643300782166769e-10),
    },
    "100 Gbit IB": {
        4: (4.204298980348825e-05, 2.0589360830118177e-10),
        8: (9.75367204301171e-05, 3.0568230536676206e-10),
        16: (3 * 0.00023583677659915685, 4.0594787739537565e-10),
        32: (0.00040632079996292579, 1.5 * 3.2713239529771973e-10),
    },
}
"""Start-up [s] and time per byte [s/B] of an all-reduce by GPUs, from the table of MG-WFBP's planner.

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
        initial=shipped_parts.unfitted(network.part, collective_launch_s=Duration(0)),
        fits=(bandwidth,),
        predict=partial(_predict_s, network, MEMORY_BYTES_PER_S),
        measured=iteration_s,
        series=lambda row: f"{network.label}, {row.method}",
        label=lambda row: f"{network.label}, {row.model}, {row.method}, {row.gpus} GPUs",
        held_out=rows(network, method=BSP, gpus=PREDICTED),
    )


@cached
def overlapped(network: PublishedNetwork) -> Study:
    """Return the model with overlap: one further fit a network, to 8-GPU rows.

    On InfiniBand what PCIe gives while backward runs, on Ethernet, whose nodes have the same PCIe, the launch of a
    collective.
    """
    fit = _beside_backward(network) if network is INFINIBAND else launch(network)
    wanted = rows(network, method=OVERLAPPED, gpus=(CALIBRATED, *PREDICTED))
    return replace(
        bsp(network),
        initial=bsp(network).initial if network is INFINIBAND else with_pcie(bsp(network).initial),
        fits=(*bsp(network).fits, fit),
        held_out=tuple(row for row in wanted if row not in fit.rows),
    )


def only_launch(network: PublishedNetwork) -> Study:
    """Return the model whose links are as fast beside backward as alone, with a launch of collectives."""
    return replace(bsp(network), fits=(*bsp(network).fits, launch(network)), held_out=overlapped(network).held_out)


def slowed_backward(network: PublishedNetwork, *, links_too: bool = False) -> Study:
    """Return the model in which collectives slow backward, in place of backward slowing its links, or beside that."""
    known = rows(network, method=OVERLAPPED, gpus=CALIBRATED)
    start = bsp(network).fitted

    def tried(found: Sequence[float]) -> Study:
        changed = structs.replace(start, backward_slowdown=max(found[0], 1.0))
        if links_too:
            changed = with_value(changed, OVERLAP_EFFICIENCY, min(abs(found[1]), 1.0))
        return replace(overlapped(network), initial=changed, fits=())

    def residuals(found: Sequence[float]) -> list[float]:
        return [one.error for one in tried(found).compare(known)]

    return tried(solvers.least_squares(residuals, [1.2, 0.4] if links_too else [1.5]))


def largest_wait_and_start_up_ms() -> tuple[float, float]:
    """Return BERT-Base's longest wait inside its layers for a gradient, and the planner's start-up, on 32 GPUs [ms]."""
    (row,) = rows(ETHERNET, model="BERT-Base", method="MG-WFBP", gpus=32)
    scenario = _scenario(ETHERNET, row, MEMORY_BYTES_PER_S)
    step = training_step.resolve(scenario.workload, scenario.cluster, Calibration())
    waits = [
        tensor.backward_fraction * step.backward_s for tensor in step.tensors if (tensor.shape or ())[0] != VOCABULARY
    ]
    return 1e3 * max(waits), 1e3 * _planner(ETHERNET, 32).start_up_s


def with_memory(study: Study, network: PublishedNetwork, bytes_per_s: float) -> Study:
    """Return a study whose optimizer moves its bytes at another rate [B/s]; infinite: no optimizer."""
    return replace(study, predict=partial(_predict_s, network, bytes_per_s))


def with_pcie(calibration: Calibration) -> Calibration:
    """Return a calibration with PCIe as fitted on InfiniBand, where PCIe limits."""
    for key in (EFFICIENCY, OVERLAP_EFFICIENCY):
        calibration = with_value(calibration, key, overlapped(INFINIBAND).value(key))
    return calibration


def _beside_backward(network: PublishedNetwork) -> Fit:
    """Return the fit of what a link gives while backward runs."""
    return Fit(
        part=network.part,
        key=OVERLAP_EFFICIENCY,
        how="least squares",
        rows=rows(network, method=OVERLAPPED, gpus=CALIBRATED),
    )


def launch(network: PublishedNetwork) -> Fit:
    """Return the fit of what a collective costs before its first byte."""
    return Fit(
        part=network.part,
        key="collective_launch",
        how="mean signed error zero",
        bounds=LAUNCHES_S,
        rows=rows(network, method=WFBP, gpus=CALIBRATED),
        text=lambda seconds: f"{1e6 * seconds:.1f} us",
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
    key = f"forward + backward + optimizer, {model}, batch {singles[0].batch_per_gpu}"
    how = f"1 GPU; {1e3 * optimizer_s(model):.1f} ms of it optimizer, a third of the rest forward"
    return compute_parameter(key, iteration_s(singles[0]), how, singles)


def optimizer_s(model: str, memory_bytes_per_s: float = MEMORY_BYTES_PER_S) -> float:
    """Return the time of the optimizer by the bytes that it moves, a part of the 1-GPU rows [s]."""
    return OPTIMIZER_BYTES[model] * NUM_PARAMETERS[model] / memory_bytes_per_s


@cached
def _compute_row(row: PublishedRow) -> PublishedRow:
    """Return the 1-GPU row with the model, method and network of a row."""
    return published_rows.load().one(SOURCE, model=row.model, network=row.network, method=row.method, gpus=1)


def _predict_s(
    network: PublishedNetwork, memory_bytes_per_s: float, calibration: Calibration, row: PublishedRow
) -> float:
    scenario = structs.replace(_scenario(network, row, memory_bytes_per_s), calibration=calibration)
    return StepTimer(scenario).of(scenario.strategy)


@cached
def _scenario(network: PublishedNetwork, row: PublishedRow, memory_bytes_per_s: float) -> Scenario:
    """Return the scenario of a row: the compute time of its 1-GPU row, and its all-reduce method."""
    compute_s, update_s = iteration_s(_compute_row(row)), optimizer_s(row.model, memory_bytes_per_s)
    bucketing = BUCKETING[row.method]
    return Scenario(
        cluster=shipped_parts.cluster(network.part, row.nodes),
        workload=shipped_parts.workload_from_compute_time(
            MODELS[row.model], compute_s, int(row.batch_per_gpu), update_s
        ),
        strategy=DenseAllReduce(
            algorithm="ring",
            bucketing=bucketing,  # type: ignore[arg-type]
            overlap=bucketing != "fused",
            planner=_planner(network, row.gpus) if bucketing == "mg_wfbp" else None,
        ),
    )


def _planner(network: PublishedNetwork, gpus: int) -> Planner:
    start_up_s, s_per_byte = PLANNED[network.label][gpus]
    return Planner(start_up_s=Duration(start_up_s), bytes_per_s=Bandwidth(1 / s_per_byte))

"""The HKBU clusters: their rows, a scenario for each row, studies of them that build on one another, and four sets."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from msgspec import structs

from simnet.calibration.fit import Values
from simnet.cluster.hardware import Calibration
from simnet.core.units import Bandwidth, Duration
from simnet.engine.prepared_scenario import StepTimer
from simnet.engine.scenario import Scenario
from simnet.strategies import DenseAllReduce, Planner
from simnet.validation import published_rows, shipped_parts
from simnet.validation.outcome import Alternative, Limit, Outcome, Parameter, Prediction, compute_parameter
from simnet.validation.published_rows import PublishedRow
from simnet.validation.shipped_parts import PublishedNetwork, cached, with_value
from simnet.validation.study import FreeNumber, Study, all_predictions
from simnet.workload import training_step

SOURCE = "HKBU"
NUM_PARAMETERS = {"ResNet-50": 25_557_032, "BERT-Base": 110_106_428, "BERT-Large": 336_226_108}
MODELS = {"ResNet-50": "resnet50", "BERT-Base": "bert_base", "BERT-Large": "bert_large"}
BUCKETING = {"BSP-A2A": "fused", "WFBP-A2A": "per_tensor", "MG-WFBP": "mg_wfbp"}
BSP, WFBP, MERGED = BUCKETING
CALIBRATED, PREDICTED = 8, (16, 32)
"""GPUs of the fitted rows, and of the predicted rows."""
GPUS_PER_NODE = 4
VOCABULARY = 30_522
LAUNCHES_S = (0.0, 5e-3)
"""Bounds of the fitted launch of a collective."""
EFFICIENCY, OVERLAP_EFFICIENCY = "intra_node.efficiency", "intra_node.overlap_efficiency"
LAUNCH = "collective_launch"
OPTIMIZER_BYTES = {"ResNet-50": 16.0, "BERT-Large": 76.0, "BERT-Base": 76.0}
"""Bytes that the optimizer and zeroed gradients move for each parameter, every operation a kernel of its own.

SGD without momentum: write 0 (4); read x and g, write x (12). AdamW of transformers: write 0 (4); m times beta (8),
plus g (12); v times beta (8), plus g g (12); its root (8), plus epsilon (8); x plus m over that (16). The trace that
the source holds of one GPU (horovod/bert.prof) counts these kernels.
"""
DATA_SHEET_BYTES_PER_S = 616e9
MEMORY_BYTES_PER_S = 0.84 * DATA_SHEET_BYTES_PER_S
"""Memory of an RTX 2080 Ti: the mean part of the data sheet that three cards reach (calibrations/v100_tcp_estimate)."""
LOW_LATENCY_S = 3.8e-6
"""Mean hop of NCCL's table where the 63 % of tensors that have at most 16 KiB go by its protocol LL.

LL: 3 of 4 hops PCI, 1.0 us; 1 of 4 network, 2.7 us. Simple: 5.7 and 14 us (src/graph/tuning.cc @5067397).
"""
FAST_CALIBRATED = {2: 8, 4: 16}
"""GPUs of the fitted rows of 100 Gbit Ethernet by number of nodes."""

ETHERNET = PublishedNetwork(label="10GbE", column="10GbE with TCP/IP", part="hkbu_10gbe", nominal_gbit_per_s=10)
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


# Rows and their scenarios.


def rows(network: PublishedNetwork, **wanted: object) -> tuple[PublishedRow, ...]:
    """Return published rows of a network."""
    return published_rows.load().select(SOURCE, network=network.column, **wanted)


def iteration_s(row: PublishedRow) -> float:
    """Return the time of an iteration from the throughput of a row [s]."""
    return row.gpus * int(row.batch_per_gpu) / row.value


def compute_parameters(wanted: Iterable[PublishedRow]) -> Iterator[Parameter]:
    """Yield the compute times of the 1-GPU rows that belong to these rows."""
    by_model: dict[str, dict[str, PublishedRow]] = {}
    for row in wanted:
        single = _compute_row(row)
        by_model.setdefault(row.model, {})[single.key] = single
    for model, singles_of_model in by_model.items():
        singles = tuple(singles_of_model.values())
        key = f"forward + backward + optimizer, {model}, batch {singles[0].batch_per_gpu}"
        optimizer_ms = 1e3 * _optimizer_s(model, MEMORY_BYTES_PER_S)
        how = f"1 GPU; {optimizer_ms:.1f} ms of it optimizer, a third of the rest forward"
        yield compute_parameter(key, iteration_s(singles[0]), how, singles)


def _optimizer_s(model: str, memory_bytes_per_s: float) -> float:
    """Return the time of the optimizer by the bytes that it moves, a part of the 1-GPU rows [s]."""
    return OPTIMIZER_BYTES[model] * NUM_PARAMETERS[model] / memory_bytes_per_s


@cached
def _compute_row(row: PublishedRow) -> PublishedRow:
    """Return the 1-GPU row with the model, method and network of a row."""
    return published_rows.load().only(SOURCE, model=row.model, network=row.network, method=row.method, gpus=1)


def _predict_s(
    network: PublishedNetwork, memory_bytes_per_s: float, calibration: Calibration, row: PublishedRow
) -> float:
    scenario = structs.replace(_scenario(network, row, memory_bytes_per_s), calibration=calibration)
    return StepTimer(scenario).of(scenario.strategy)


@cached
def _scenario(network: PublishedNetwork, row: PublishedRow, memory_bytes_per_s: float) -> Scenario:
    """Return the scenario of a row: the compute time of its 1-GPU row, and its all-reduce method."""
    compute_s, update_s = iteration_s(_compute_row(row)), _optimizer_s(row.model, memory_bytes_per_s)
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


# Studies.


@cached
def bsp(network: PublishedNetwork) -> Study:
    """Return the model without overlap: one fit, of the bandwidth of the limiting link to the 8-GPU rows."""
    return Study(
        initial=shipped_parts.unfitted(network.part, collective_launch_s=Duration(0)),
        fits=(_bandwidth(network, f"{network.link}.efficiency", CALIBRATED),),
        predict=partial(_predict_s, network, MEMORY_BYTES_PER_S),
        measured=iteration_s,
        series=lambda row: f"{network.label}, {row.method}",
        label=lambda row: f"{network.label}, {row.model}, {row.method}, {row.gpus} GPUs",
        held_out=rows(network, method=BSP, gpus=PREDICTED),
    )


def _bandwidth(network: PublishedNetwork, key: str, gpus: int) -> FreeNumber:
    return FreeNumber(
        part=network.part,
        key=key,
        how="least squares",
        rows=rows(network, method=BSP, gpus=gpus),
        text=lambda part: f"{part:.4f} ({part * network.nominal_gbit_per_s:.2f} Gbit/s of payload)",
    )


def _launch(network: PublishedNetwork) -> FreeNumber:
    """Return the fit of what a collective costs before its first byte."""
    return FreeNumber(
        part=network.part,
        key=LAUNCH,
        how="mean signed error zero",
        bounds=LAUNCHES_S,
        rows=rows(network, method=WFBP, gpus=CALIBRATED),
        text=lambda seconds: f"{1e6 * seconds:.1f} us",
    )


@cached
def overlapped(network: PublishedNetwork) -> Study:
    """Return the model with overlap: one further fit a network, to 8-GPU rows.

    On InfiniBand what PCIe gives while backward runs, on Ethernet, whose nodes have the same PCIe, the launch of a
    collective.
    """
    plain, wanted = bsp(network), rows(network, method=(WFBP, MERGED), gpus=(CALIBRATED, *PREDICTED))
    # On InfiniBand PCIe limits, so that it shows there what backward leaves of it; Ethernet takes that over.
    if network is not INFINIBAND:
        whole = replace(plain, initial=_with_pcie(plain.initial), fits=(*plain.fits, _launch(network)))
        return whole.predicting(wanted)
    known = rows(network, method=(WFBP, MERGED), gpus=CALIBRATED)
    beside = FreeNumber(part=network.part, key=OVERLAP_EFFICIENCY, how="least squares", rows=known)
    return replace(plain, fits=(*plain.fits, beside)).predicting(wanted)


def _with_pcie(calibration: Calibration) -> Calibration:
    """Return a calibration with PCIe as fitted on InfiniBand, where PCIe limits."""
    for key in (EFFICIENCY, OVERLAP_EFFICIENCY):
        calibration = with_value(calibration, key, overlapped(INFINIBAND).value(key))
    return calibration


def _only_launch(network: PublishedNetwork) -> Study:
    """Return the model whose links are as fast beside backward as alone, with a launch of collectives."""
    return replace(bsp(network), fits=(*bsp(network).fits, _launch(network)), held_out=overlapped(network).held_out)


def slowed_backward(network: PublishedNetwork, *, links_too: bool = False) -> Study:
    """Return the model in which collectives slow backward, in place of backward slowing its links, or beside that."""

    def made(values: Values) -> Calibration:
        changed: Calibration = structs.replace(bsp(network).fitted, backward_slowdown=max(values["slowdown"], 1.0))
        return with_value(changed, OVERLAP_EFFICIENCY, min(abs(values["efficiency"]), 1.0)) if links_too else changed

    known = rows(network, method=(WFBP, MERGED), gpus=CALIBRATED)
    first_guess = {"slowdown": 1.2, "efficiency": 0.4} if links_too else {"slowdown": 1.5}
    return overlapped(network).solved(known, first_guess, made)


@cached
def _by_nodes() -> Study:
    """Return the study of 100 Gbit Ethernet with a bandwidth for two and one for four nodes.

    NCCL over TCP reaches a fifth of such NICs, and less on more nodes. The form comes from another publication, the
    PCIe and the launch from other networks of this one.
    """
    start = _with_pcie(bsp(FAST_ETHERNET).initial)
    start = with_value(start, LAUNCH, overlapped(ETHERNET).value(LAUNCH))
    fits = tuple(_bandwidth(FAST_ETHERNET, _nodes_key(nodes), gpus) for nodes, gpus in FAST_CALIBRATED.items())
    wanted = (row for row in rows(FAST_ETHERNET, method=(BSP, WFBP)) if row.gpus > 1)
    return replace(bsp(FAST_ETHERNET), initial=start, fits=fits, grows=True).predicting(wanted)


def _nodes_key(nodes: int) -> str:
    return f"by_nodes.{nodes}.efficiency"


# Sets.


def without_overlap() -> Outcome:
    """Calibrate on 8 GPUs, predict 16 and 32: one fused all-reduce after backward."""
    studies = tuple(map(bsp, NETWORKS))

    def alternatives() -> Iterator[Alternative]:
        of_models: list[Prediction] = []
        for model, study in ((model, study) for model in MODELS for study in studies):
            alone = study.refitted(row for row in study.train if row.model == model)
            of_models += alone.compare(row for row in study.held_out if row.model == model)
        yield Alternative("one bandwidth a model", "the same rows", of_models)

    return Outcome(
        title="HKBU without overlap (BSP)",
        unit="ms",
        target=Limit(mean=0.03, worst=0.06),
        bound=Limit(mean=0.03, worst=0.06),
        parameters=(
            *compute_parameters(row for study in studies for row in study.train),
            *(parameter for study in studies for parameter in study.parameters),
        ),
        predictions=all_predictions(studies),
        make_alternatives=alternatives,
    )


def with_overlap() -> Outcome:
    """Calibrate the bandwidth on 8-GPU BSP rows and one cost of overlap a network on 8-GPU rows, predict the rest."""
    studies = tuple(map(overlapped, NETWORKS))
    return Outcome(
        title="HKBU with overlap (WFBP, MG-WFBP)",
        unit="ms",
        target=Limit(mean=0.05, worst=0.15),
        bound=Limit(mean=0.05, worst=0.15),
        parameters=(
            *compute_parameters(row for study in studies for row in study.held_out),
            *(parameter for study in studies for parameter in study.parameters),
        ),
        predictions=all_predictions(studies),
        facts={
            "ethernet": (f"{ETHERNET.label}, {WFBP}", f"{ETHERNET.label}, {MERGED}"),
            "wfbp": f"{INFINIBAND.label}, {WFBP}",
            "gap": _largest_wait_and_start_up_ms(),
        },
        make_alternatives=_other_overlaps,
    )


def _largest_wait_and_start_up_ms() -> tuple[float, float]:
    """Return BERT-Base's longest wait inside its layers for a gradient, and the planner's start-up, on 32 GPUs [ms]."""
    (row,) = rows(ETHERNET, model="BERT-Base", method=MERGED, gpus=32)
    scenario = _scenario(ETHERNET, row, MEMORY_BYTES_PER_S)
    step = training_step.resolve(scenario.workload, scenario.cluster, Calibration())
    waits = [
        tensor.backward_fraction * step.backward_s for tensor in step.tensors if (tensor.shape or ())[0] != VOCABULARY
    ]
    return 1e3 * max(waits), 1e3 * _planner(ETHERNET, 32).start_up_s


def _other_overlaps() -> Iterator[Alternative]:
    same = "the same rows"
    ethernet, infiniband = map(overlapped, NETWORKS)

    def on_infiniband(text: str, other: Study, on: str = same) -> Alternative:
        return Alternative(text, on, all_predictions((ethernet, other)))

    def with_start(study: Study, **values: object) -> Study:
        """Return the study with other fixed values under its last fit."""
        return replace(study, initial=structs.replace(study.fitted, **values), fits=study.fits[1:])

    def with_latency(study: Study, seconds: float) -> Study:
        links = ("intra_node", "inter_node")
        hops = {link: structs.replace(getattr(study.fitted, link), alpha_s=Duration(seconds)) for link in links}
        return with_start(study, **hops)

    larger = [prediction for prediction in all_predictions((ethernet, infiniband)) if prediction.row.gpus != CALIBRATED]
    yield Alternative("the model above, 16 and 32 GPUs only", same, larger)
    yield on_infiniband("no overlap_efficiency, a launch on both networks", _only_launch(INFINIBAND), "8-GPU WFBP rows")
    slowed, both = slowed_backward(INFINIBAND), slowed_backward(INFINIBAND, links_too=True)
    yield on_infiniband(
        f"backward_slowdown on InfiniBand in place of it ({slowed.fitted.backward_slowdown:.2f})", slowed
    )
    yield on_infiniband(
        f"overlap_efficiency and, on InfiniBand, backward_slowdown ({both.fitted.backward_slowdown:.2f})",
        both,
        "the same rows, one number more",
    )
    launched = with_start(infiniband, collective_launch_s=Duration(ethernet.value(LAUNCH)))
    yield on_infiniband("the launch of 10GbE on InfiniBand, too", launched)
    without = all_predictions(with_latency(study, 0.0) for study in (ethernet, infiniband))
    yield Alternative("no latency of the ring's hops", same, without)
    yield on_infiniband(
        f"hops of {1e6 * LOW_LATENCY_S:.1f} us on InfiniBand: NCCL's protocol LL for small tensors",
        with_latency(infiniband, LOW_LATENCY_S),
    )
    for text, rate in (
        ("the optimizer at the data sheet's memory bandwidth", DATA_SHEET_BYTES_PER_S),
        ("no optimizer in the compute time", math.inf),
    ):
        others = (replace(overlapped(network), predict=partial(_predict_s, network, rate)) for network in NETWORKS)
        yield Alternative(text, same, all_predictions(others))


def fast_ethernet() -> Outcome:
    """Calibrate on the rows without overlap of 8 and 16 GPUs, predict the other rows of all methods and sizes."""
    study, same = _by_nodes(), "the same rows"
    two, four = map(study.value, map(_nodes_key, FAST_CALIBRATED))

    def alternatives() -> Iterator[Alternative]:
        largest = [prediction for prediction in study.predictions if prediction.row.gpus == 32]
        yield Alternative("the model above, 32 GPUs only", same, largest)
        one_rate = replace(study, fits=(replace(study.fits[0], key="inter_node.efficiency"),))
        yield Alternative("one bandwidth, from 8 GPUs alone", "8 GPUs", one_rate.predictions)
        trend = study.fixed(with_value(study.fitted, _nodes_key(8), four * four / two))
        yield Alternative("the change from two to four nodes goes on", same, trend.predictions)

    return Outcome(
        title="HKBU on 100 Gbit Ethernet",
        unit="ms",
        bound=Limit(mean=0.06, worst=0.15),
        parameters=(
            *compute_parameters(study.held_out),
            *overlapped(INFINIBAND).parameters,
            *overlapped(ETHERNET).parameters[1:],
            *study.parameters,
        ),
        predictions=study.predictions,
        facts={"rates": [part * FAST_ETHERNET.nominal_gbit_per_s for part in (two, four)]},
        make_alternatives=alternatives,
    )


def one_node() -> Outcome:
    """Predict the single-node rows: no network, PCIe as fitted to the 8-GPU rows of InfiniBand."""
    held_out = {network: rows(network, gpus=GPUS_PER_NODE) for network in NETWORKS}
    pcie = overlapped(INFINIBAND)

    def studies(fitted: Calibration) -> Iterator[Study]:
        return (overlapped(network).fixed(fitted, held_out=held_out[network]) for network in NETWORKS)

    def alternatives() -> Iterator[Alternative]:
        for text, study in (
            ("no overlap_efficiency, a launch", _only_launch(INFINIBAND)),
            ("backward_slowdown in its place", slowed_backward(INFINIBAND)),
        ):
            yield Alternative(text, "8-GPU rows of InfiniBand", all_predictions(studies(study.fitted)))

    return Outcome(
        title="HKBU inside one node",
        unit="ms",
        bound=Limit(mean=0.03, worst=0.06),
        parameters=(
            *compute_parameters(row for of_network in held_out.values() for row in of_network),
            *pcie.parameters,
        ),
        predictions=all_predictions(studies(pcie.fitted)),
        facts={"overlapped": (WFBP, MERGED)},
        make_alternatives=alternatives,
    )

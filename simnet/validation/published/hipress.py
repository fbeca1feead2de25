"""HiPress (SOSP 2021): its rows, a scenario for each, and the sets of its two clusters.

Compressed parameter servers on all nodes; calibrated on dense rows of one, two and four nodes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from msgspec import structs

from simnet.cluster.hardware import Calibration, Cluster, Link, LinkCalibration
from simnet.core.units import Bandwidth, Duration, Size
from simnet.engine.prepared_scenario import StepTimer
from simnet.engine.scenario import Scenario
from simnet.strategies import AnyStrategy, DenseAllReduce, EFSignSGD, QSGDInf, TopK
from simnet.strategies.compressing import Topology
from simnet.validation import published_rows
from simnet.validation.outcome import Alternative, Limit, Outcome, Parameter, compute_parameter
from simnet.validation.published import hkbu, one_bit_adam
from simnet.validation.published_rows import PublishedRow
from simnet.validation.shipped_parts import cached
from simnet.validation.study import FreeNumber, Study
from simnet.workload.workload import Gradient, Workload

SOURCE = "YouhuiBai/SOSP21-scripts"
RING, CASYNC = "Ring", "CaSync-PS"
ONEBIT = f"{CASYNC} onebit"
BATCH, TOKENS = 32, 128
"""Samples a GPU, and tokens of a sequence: the printed time of a step times the printed rate of a GPU."""
FUSION = Size(64 * 2**20)
"""Horovod's default fusion buffer."""
TOPOLOGY: Topology = "hierarchical_scatter_reduce"
OTHER_BATCHES = (24, 64)
LATENCIES_S = (5.7e-6, 14e-6)
"""Hops inside and between nodes: NCCL tuning table, ring, Simple, PCI and network (src/graph/tuning.cc @5067397)."""
SLOWDOWNS = (1.0, 2.0)
"""Bounds of the fitted slowdown of backward."""
COPY_PART = 0.84
"""Part of the data sheet's memory bandwidth that copies reach (calibrations/v100_tcp_estimate)."""
NUM_PARAMETERS: Mapping[str, int] = {"VGG19": 143_667_240, "BERT-Base": 110_106_428, "BERT-Large": 336_226_108}
"""Parameters: VGG-19 by its layers, the others as in scenarios/workloads/gradients."""
UPDATE_BYTES: Mapping[str, float] = {"VGG19": 20.0, "BERT-Base": 76.0, "BERT-Large": 76.0}
"""Bytes that the optimizer moves for each parameter: SGD with momentum in one kernel, Adam in several (`hkbu`)."""
VGG19 = ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512))
"""Convolutions 3 x 3 and their channels, by stage; a stage halves the side of the 224 x 224 image."""
VGG19_DENSE = ((4096, 25088), (4096, 4096), (1000, 4096))


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """One of the two clusters.

    Attributes:
        label: name in tables.
        network: value of the column `network` of its rows.
        ranks_per_node: GPUs of a node.
        gbit_per_s: nominal rates inside a node, of a GPU, and between nodes.
        copy_bytes_per_s: what copies reach of the bandwidth of a GPU's memory, by its data sheet.
        models: what was trained.
    """

    label: str
    network: str
    ranks_per_node: int
    gbit_per_s: tuple[float, float]
    copy_bytes_per_s: float
    models: tuple[str, ...]


LOCAL = Nodes(
    label="GTX 1080 Ti",
    network="56Gbit IB",
    ranks_per_node=2,
    gbit_per_s=(126, 56),
    copy_bytes_per_s=COPY_PART * 484e9,
    models=("VGG19", "BERT-Base"),
)
AWS = Nodes(
    label="V100",
    network="100Gbit",
    ranks_per_node=8,
    gbit_per_s=(1200, 100),
    copy_bytes_per_s=COPY_PART * 900e9,
    models=("VGG19", "BERT-Large"),
)


def rows(on: Nodes, /, **wanted: object) -> tuple[PublishedRow, ...]:
    """Return published throughputs of a cluster."""
    return published_rows.load().select(SOURCE, network=on.network, metric="throughput", **wanted)


def iteration_s(row: PublishedRow, batch: int = BATCH) -> float:
    """Return the time of an iteration from a throughput [s]; of BERT it counts tokens."""
    return row.gpus * batch * (TOKENS if row.unit == "tokens/s" else 1) / row.value


def compute_s(nodes: Nodes, model: str, batch: int = BATCH) -> float:
    """Return the time of a step on one GPU: that of the row "Linear" [s]."""
    (row,) = rows(nodes, model=model, method="Linear")
    return iteration_s(row, batch)


def _compute_parameters(nodes: Nodes) -> Iterator[Parameter]:
    for model in nodes.models:
        first, whole = _breakdown(model)
        rows_of_model = (*rows(nodes, model=model, method="Linear"), first, whole)
        how = f"Linear; {first.value / whole.value:.0%} of it before the first gradient, as on the 1080 Ti"
        yield compute_parameter(
            f"a step of one GPU, {model}, batch {BATCH}", compute_s(nodes, model), how, rows_of_model
        )


def printed_batches() -> dict[str, float]:
    """Return the samples a GPU that follow from what is printed: the time of a step times the rate of a GPU."""
    return {model: _breakdown(model)[1].value / 1e3 / compute_s(LOCAL, model) * BATCH for model in LOCAL.models}


def _study(nodes: Nodes, inside: LinkCalibration, fits: tuple[FreeNumber, ...], batch: int = BATCH) -> Study:
    """Return the study of a cluster: these fits, and all other rows across nodes to predict."""
    return Study(
        initial=Calibration(
            intra_node=inside,
            memory_bytes_per_s=Bandwidth(nodes.copy_bytes_per_s),
            kernel_launch_s=Duration(5e-6),
            flat_ring_latency="mean",
        ),
        fits=fits,
        predict=partial(_predict_s, nodes, batch),
        measured=partial(iteration_s, batch=batch),
        series=lambda row: row.method if row.method in (RING, ONEBIT) else f"{CASYNC}, others",
        label=lambda row: f"{row.model}, {row.method}, {row.gpus} GPUs",
        grows=True,
    ).predicting(row for row in rows(nodes) if row.method != "Linear" and row.nodes > 1)


def _ring_fit(nodes: Nodes, key: str, num_nodes: int, gbit_per_s: float) -> FreeNumber:
    """Return a fit of a rate to the dense rows of so many nodes."""
    return FreeNumber(
        key=key,
        how="least squares",
        rows=rows(nodes, method=RING, nodes=num_nodes),
        text=lambda part: f"{part:.4f} ({part * gbit_per_s:.1f} Gbit/s)",
    )


def _fits(nodes: Nodes) -> tuple[FreeNumber, ...]:
    """Return the fits of a cluster, all to dense rows: what one node adds to backward, then the NICs by nodes."""
    slowdown = FreeNumber(
        key="hook_slowdown",
        how="mean signed error zero",
        bounds=SLOWDOWNS,
        rows=rows(nodes, method=RING, nodes=1),
    )
    rate = nodes.gbit_per_s[1]
    return (slowdown, *(_ring_fit(nodes, f"by_nodes.{count}.efficiency", count, rate) for count in (2, 4)))


def _changed(whole: Study, nodes: Nodes, **change: object) -> Study:
    """Return a study whose compressing strategies have other options."""
    return replace(whole, predict=partial(_predict_s, nodes, BATCH, change=tuple(change.items())))


def _other_topologies(whole: Study, nodes: Nodes) -> Iterator[Alternative]:
    """Yield the other forms that the same systems could be run in."""
    changes: tuple[tuple[str, dict[str, object]], ...] = (
        ("one exchange after backward", {"bucketing": "fused", "overlap": False}),
        ("every GPU a server: no mean inside the node", {"topology": "scatter_reduce"}),
        ("every node gathers the payloads of all", {"topology": "hierarchical"}),
        ("every GPU gathers the payloads of all", {"topology": "gather"}),
    )
    for text, change in changes:
        yield Alternative(text, "the same rows", _changed(whole, nodes, **change).predictions)


def _speedups(whole: Study) -> dict[str, tuple[float, float]]:
    """Return the speedup of onebit over the dense rows, predicted and published, by model, on the most GPUs."""
    most = max(prediction.row.gpus for prediction in whole.predictions)
    largest = {
        (prediction.row.model, prediction.row.method): prediction
        for prediction in whole.predictions
        if prediction.row.gpus == most
    }
    pairs = {model: (largest[model, RING], largest[model, ONEBIT]) for model, method in largest if method == ONEBIT}
    return {
        model: (ring.predicted / onebit.predicted, ring.measured / onebit.measured)
        for model, (ring, onebit) in pairs.items()
    }


@cached
def _local() -> Study:
    return _study(LOCAL, LinkCalibration(efficiency=hkbu.bsp(hkbu.INFINIBAND).value(hkbu.EFFICIENCY)), _fits(LOCAL))


def local() -> Outcome:
    """Predict the authors' cluster, 16 nodes of two GTX 1080 Ti: dense rows of more nodes and all compressed ones."""
    study = _local()
    (pcie,) = hkbu.bsp(hkbu.INFINIBAND).parameters
    gathered = _changed(study, LOCAL, topology="gather").predictions

    def alternatives() -> Iterator[Alternative]:
        of_pcie = _ring_fit(LOCAL, hkbu.EFFICIENCY, 1, LOCAL.gbit_per_s[0])
        otherwise = _study(LOCAL, LinkCalibration(), (of_pcie, *study.fits[1:]))
        text = "PCIe fitted to one node in place of backward's slowdown"
        yield Alternative(text, "the same rows", otherwise.predictions)
        yield from _other_topologies(study, LOCAL)
        alone = _changed(study, LOCAL, bucketing="per_tensor")
        yield Alternative("each tensor exchanged by itself", "the same rows", alone.predictions)

    return Outcome(
        title="HiPress on 16 nodes of two GPUs",
        unit="ms",
        bound=Limit(mean=0.09, worst=0.18),
        parameters=(*_compute_parameters(LOCAL), replace(pcie, part="this set only"), *study.parameters),
        predictions=study.predictions,
        facts={
            "ring": RING,
            "onebit": ONEBIT,
            "batches": printed_batches(),
            "speedups": _speedups(study),
            "gathered": max(1 + prediction.error for prediction in gathered),
        },
        make_alternatives=alternatives,
    )


@cached
def _aws(batch: int) -> Study:
    return _study(AWS, one_bit_adam.nvlink()[0], _fits(AWS), batch)


def aws() -> Outcome:
    """Predict 16 nodes of eight V100: the same systems, at a batch that no readable source prints."""
    study = _aws(BATCH)

    def alternatives() -> Iterator[Alternative]:
        for batch in OTHER_BATCHES:
            yield Alternative(f"batch {batch} in place of {BATCH}", "the same rows", _aws(batch).predictions)
        yield from _other_topologies(study, AWS)

    return Outcome(
        title="HiPress on 16 nodes of eight GPUs",
        unit="ms",
        bound=Limit(mean=0.07, worst=0.22),
        parameters=(*_compute_parameters(AWS), one_bit_adam.nvlink()[1], *study.parameters),
        predictions=study.predictions,
        facts={"ring": RING, "onebit": ONEBIT, "speedups": _speedups(study)},
        make_alternatives=alternatives,
    )


def _breakdown(model: str) -> tuple[PublishedRow, PublishedRow]:
    """Return when the first gradient is sent, and the whole step, of the printed breakdown [ms]."""
    known = "BERT-Base" if model.startswith("BERT") else model
    load = published_rows.load()
    return load.only(SOURCE, model=known, metric="start of synchronization"), load.only(
        SOURCE, model=known, metric="computation"
    )


def _strategy(method: str) -> AnyStrategy:
    """Return what a method is here: CaSync's parameter servers on all nodes scatter and reduce compressed pieces."""
    if method == RING:
        return DenseAllReduce(algorithm="ring", bucket_cap=FUSION)
    system, _, option = method.removeprefix(f"{CASYNC} ").partition(" ")
    number = float(option.split()[0]) if option else 0.0
    if system == "TernGrad":  # its bits are an option there: levels of the largest element
        return QSGDInf(bits=round(number), topology=TOPOLOGY)
    if system == "DGC":
        return TopK(ratio=number / 100, topology=TOPOLOGY)
    return EFSignSGD(topology=TOPOLOGY)


def _predict_s(
    nodes: Nodes, batch: int, calibration: Calibration, row: PublishedRow, change: tuple[tuple[str, object], ...] = ()
) -> float:
    strategy = _strategy(row.method)
    if strategy.compresses:
        strategy = structs.replace(strategy, **dict(change))
    scenario = _scenario(nodes, row.model, row.nodes, batch)
    return StepTimer(structs.replace(scenario, calibration=calibration)).of(strategy)


@cached
def _scenario(nodes: Nodes, model: str, num_nodes: int, batch: int) -> Scenario:
    inside, between = nodes.gbit_per_s
    cluster = Cluster(
        num_nodes=num_nodes,
        ranks_per_node=nodes.ranks_per_node,
        intra_node=Link(bytes_per_s=Bandwidth(inside * 1e9 / 8), alpha_s=Duration(LATENCIES_S[0])),
        inter_node=Link(bytes_per_s=Bandwidth(between * 1e9 / 8), alpha_s=Duration(LATENCIES_S[1])),
    )
    return Scenario(cluster=cluster, workload=_workload(nodes, model, batch), strategy=DenseAllReduce())


def _workload(nodes: Nodes, model: str, batch: int) -> Workload:
    """Return a step with forward as long as it takes until the first gradient is sent."""
    first, whole = _breakdown(model)
    step_s = compute_s(nodes, model, batch)
    gradients: dict[str, object] = (
        {"tensors": tuple(_vgg19())} if model == "VGG19" else {"gradients": model.lower().replace("-", "_")}
    )
    plain = Workload(**gradients, batch_per_rank=batch)  # type: ignore[arg-type]
    update_s = UPDATE_BYTES[model] * NUM_PARAMETERS[model] / nodes.copy_bytes_per_s
    forward_s = step_s * first.value / whole.value
    return structs.replace(
        plain,
        forward_s=Duration(forward_s),
        backward_s=Duration(step_s - forward_s - update_s),
        optimizer_s=Duration(update_s),
    )


def _vgg19() -> Iterator[Gradient]:
    """Yield VGG-19's gradients, last layer first; a layer's share of backward is its multiply-adds."""
    layers: list[tuple[tuple[int, ...], int]] = []
    channels, side = 3, 224
    for count, width in VGG19:
        for _ in range(count):
            layers.append(((width, channels, 3, 3), 9 * channels * width * side**2))
            channels = width
        side //= 2
    layers.extend(((outputs, inputs), outputs * inputs) for outputs, inputs in VGG19_DENSE)
    for shape, multiply_adds in reversed(layers):
        yield Gradient(shape=shape[:1], backward_share=multiply_adds)
        yield Gradient(shape=shape, backward_share=0.0)

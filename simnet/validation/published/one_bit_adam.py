"""1-bit Adam: its rows, the workload of both of its clusters, and models of the rows, calibrated on two and four nodes.

Table 1 and Fig 5a are each calibrated on their own rows of two and four nodes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from msgspec import structs

from simnet.cluster.hardware import Calibration, LinkCalibration
from simnet.cluster.kernel_times import KernelTime
from simnet.cluster.network_costs import LibraryCosts
from simnet.core.units import Duration
from simnet.engine.result import StrategyResult
from simnet.engine.scenario import RunSettings, Scenario
from simnet.engine.simulation import simulate
from simnet.strategies import AnyStrategy, DenseAllReduce, OneBitAdam
from simnet.validation import outcome, published_rows, shipped_parts
from simnet.validation.outcome import Parameter
from simnet.validation.published_rows import PublishedRow
from simnet.validation.shipped_parts import PublishedNetwork, cached
from simnet.validation.study import FreeNumber, Study
from simnet.workload.workload import Workload

SOURCE = "1-bit Adam"
TABLE = "Table 1, grad_accum="
FIGURE = "Fig 5(a) batch=16/GPU"
ALL_REDUCE, COMPUTE = "backward_allreduce", ("forward", "backward_else", "step")
"""Metrics of Table 1; "backward_else" is backward without its all-reduce."""
BATCH = 16
NUM_ELEMENTS = 336_226_108
"""Parameters of BERT-Large for pre-training, as in scenarios/workloads/gradients/bert_large.json."""
GPUS_IN_TABLE_AND_FIGURE = 64
"""GPUs at which both Table 1 and Fig 5a give a dense step, with 16 samples a GPU and no accumulation."""
COMPRESSED = OneBitAdam(finite_check=False)
ALGORITHMS = ("ring", "hierarchical", "tree")
COUNTED_IN_COMPRESS = ("momentum", "merge", "server_residual", "decompress")
"""Kernels of the codec without a time of their own, since the fitted `compress` contains them."""
CALIBRATED_NODES = (2, 4)
MPI = "mpi"
"""The library of DeepSpeed's exchange, as a calibration names it; NCCL carries the dense all-reduce."""
HERE = "this set only"
NVLINK = "intra_node.efficiency"

ETHERNET = PublishedNetwork(
    label="Ethernet", column="Eth40 (4.1 Gbps eff)", part="one_bit_adam_ethernet", nominal_gbit_per_s=40
)
INFINIBAND = PublishedNetwork(
    label="InfiniBand", column="IB100", part="one_bit_adam_infiniband", nominal_gbit_per_s=100
)
NETWORKS = (ETHERNET, INFINIBAND)


# Rows and their scenarios.


def table_rows(network: PublishedNetwork, metric: str, **wanted: object) -> tuple[PublishedRow, ...]:
    """Return rows of Table 1 [ms]."""
    rows = published_rows.load().select(SOURCE, network=network.column, metric=metric, **wanted)
    return tuple(row for row in rows if row.location.startswith(TABLE))


def table_s(row: PublishedRow) -> float:
    """Return the time of a row of Table 1 [s]."""
    return row.value / 1e3


def table_sum_s(network: PublishedNetwork, accumulated: int, metrics: Sequence[str] = (ALL_REDUCE, *COMPUTE)) -> float:
    """Return the sum of parts of a dense step of 64 GPUs in Table 1, with 16 samples a micro-batch [s]."""
    wanted = {"gpus": GPUS_IN_TABLE_AND_FIGURE, "batch_per_gpu": str(BATCH)}
    rows = (row for metric in metrics for row in table_rows(network, metric, **wanted))
    return sum(row.value for row in rows if accumulation(row) == accumulated) / 1e3


def accumulation(row: PublishedRow) -> int:
    """Return the number of micro-batches per iteration of a row of Table 1."""
    return int(row.location.removeprefix(TABLE).split()[0])


def _is_plain(row: PublishedRow) -> bool:
    return row.batch_per_gpu == str(BATCH) and accumulation(row) == 1


def figure_rows(network: PublishedNetwork, method: str) -> tuple[PublishedRow, ...]:
    """Return the rows of Fig 5a [samples/s] of "Adam" or "1-bit Adam"."""
    return published_rows.load().select(SOURCE, location=FIGURE, network=network.column, method=method)


def figure_s(row: PublishedRow) -> float:
    """Return the time of an iteration from a throughput of Fig 5a [s]."""
    return row.gpus * BATCH / row.value


@dataclass(frozen=True, kw_only=True)
class ComputeTimes:
    """Means of Table 1 for one micro-batch of 16 samples on a V100 [s], and their rows."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    rows: tuple[PublishedRow, ...]


@cached
def compute_times(network: PublishedNetwork) -> ComputeTimes:
    """Return the mean compute of the rows of Table 1 with 16 samples a GPU and no accumulation."""
    by_metric = {metric: tuple(filter(_is_plain, table_rows(network, metric))) for metric in COMPUTE}
    forward_s, backward_s, optimizer_s = (
        sum(row.value for row in these) / len(these) / 1e3 for these in by_metric.values()
    )
    every = tuple(row for these in by_metric.values() for row in these)
    return ComputeTimes(forward_s=forward_s, backward_s=backward_s, optimizer_s=optimizer_s, rows=every)


def compute_parameter(network: PublishedNetwork) -> Parameter:
    """Return the compute time of a micro-batch, the mean of Table 1, as a parameter."""
    compute = compute_times(network)
    total_s = compute.forward_s + compute.backward_s + compute.optimizer_s
    return outcome.compute_parameter(f"forward + backward + step, {network.label}", total_s, "mean", compute.rows)


def dense(algorithm: str) -> DenseAllReduce:
    """Return Adam's exchange: one fused all-reduce after backward, as Table 1 times it."""
    return DenseAllReduce(algorithm=algorithm, bucketing="fused", overlap=False)


def simulate_iteration(
    network: PublishedNetwork, calibration: Calibration, num_nodes: int, strategy: AnyStrategy, accumulated: int = 1
) -> StrategyResult:
    """Simulate an iteration of BERT-Large in fp16."""
    scenario = _scenario(network, num_nodes, strategy, accumulated)
    return simulate(structs.replace(scenario, calibration=calibration)).result


@cached
def _scenario(network: PublishedNetwork, num_nodes: int, strategy: AnyStrategy, accumulated: int) -> Scenario:
    compute = compute_times(network)
    workload = Workload(
        num_elements=NUM_ELEMENTS,
        dtype="fp16",
        forward_s=Duration(compute.forward_s),
        backward_s=Duration(compute.backward_s),
        optimizer_s=Duration(compute.optimizer_s),
        batch_per_rank=BATCH,
    )
    return Scenario(
        cluster=shipped_parts.cluster(network.part, num_nodes),
        workload=workload,
        strategy=strategy,
        run=RunSettings(grad_accumulation=accumulated),
    )


# Inside a node.


def unfitted(network: PublishedNetwork) -> Calibration:
    """Return the network's calibration without any fitted value."""
    return shipped_parts.unfitted(network.part, kernels={}, poll_s=Duration(0), all_to_all_efficiency=1.0)


@cached
def single_node(network: PublishedNetwork) -> Study:
    """Return the fit of the links inside a node to the single-node all-reduce of Table 1."""
    nominal = float(shipped_parts.cluster(network.part).intra_node.bytes_per_s) * 8 / 1e9
    fit = FreeNumber(
        part=network.part,
        key=NVLINK,
        bounds=(0.01, 1.0),
        rows=table_rows(network, ALL_REDUCE, nodes=1),
        text=lambda part: f"{part:.4f} ({part * nominal:.1f} Gbit/s)",
    )
    return replace(_table_study(network, "ring"), initial=unfitted(network), fits=(fit,))


def nvlink() -> tuple[LinkCalibration, Parameter]:
    """Return NVLink of the V100 nodes as fitted here, for another set with such nodes."""
    (nvlink_part,) = single_node(INFINIBAND).parameters
    text = f"{nvlink_part.value:.4f} ({nvlink_part.value * 1200:.0f} Gbit/s)"
    return LinkCalibration(efficiency=nvlink_part.value), replace(nvlink_part, part=HERE, text=text)


def _table_study(network: PublishedNetwork, algorithm: str) -> Study:
    def all_reduce_s(calibration: Calibration, row: PublishedRow) -> float:
        return simulate_iteration(network, calibration, row.nodes, dense(algorithm)).comm_s

    return Study(
        initial=None,
        predict=all_reduce_s,
        measured=table_s,
        series=lambda _: network.label,
        label=lambda row: f"{network.label}, {row.gpus} GPUs, batch {row.batch_per_gpu} x {accumulation(row)}",
    )


# Dense.


@cached
def _start(network: PublishedNetwork) -> Calibration:
    """Return the calibration before any fit between nodes: of the kernels only Adam's update takes time."""
    inside: Calibration = single_node(network).fitted
    update = KernelTime(s_per_element=Duration(compute_times(network).optimizer_s / NUM_ELEMENTS))
    counted = dict.fromkeys(COUNTED_IN_COMPRESS, KernelTime(s_per_element=Duration(0)))
    return structs.replace(inside, kernels={"adam_update": update, **counted})


@cached
def dense_all_reduce(network: PublishedNetwork, algorithm: str) -> Study:
    """Return the all-reduce of Table 1 by an algorithm; its fits are those of this set only."""
    rows = [row for row in table_rows(network, ALL_REDUCE) if row.nodes > 1]
    fits = _fits_by_nodes(network, list(filter(_is_plain, rows)), HERE, algorithm)
    study = _table_study(network, algorithm)
    return replace(study, initial=_start(network), fits=fits, grows=True).predicting(rows)


@cached
def dense_adam(network: PublishedNetwork, algorithm: str) -> Study:
    """Return Adam in Fig 5a by an algorithm, one fused all-reduce after backward."""
    rows = figure_rows(network, "Adam")
    return Study(
        initial=_start(network),
        fits=_fits_by_nodes(network, rows, network.part, algorithm),
        predict=partial(_iteration_s, network, dense(algorithm)),
        measured=figure_s,
        series=lambda _: network.label,
        label=lambda row: f"{network.label}, Adam, {row.gpus} GPUs",
        grows=True,
    ).predicting(rows)


def _iteration_s(
    network: PublishedNetwork, strategy: AnyStrategy, calibration: Calibration, row: PublishedRow
) -> float:
    return simulate_iteration(network, calibration, row.nodes, strategy).iteration_s


DenseStudy = Callable[[PublishedNetwork, str], Study]


def efficiencies(study: Study) -> tuple[float, ...]:
    """Return the fitted fractions of the NIC on two and on four nodes."""
    return tuple(study.value(f"by_nodes.{nodes}.efficiency") for nodes in CALIBRATED_NODES)


@cached
def disagreements(network: PublishedNetwork, make: DenseStudy) -> dict[str, float]:
    """Return the ratio of the bandwidths on two and on four nodes under every algorithm, ascending; 1 is agreement."""
    by_algorithm = {algorithm: efficiencies(make(network, algorithm)) for algorithm in ALGORITHMS}
    ratios = {algorithm: max(both) / min(both) for algorithm, both in by_algorithm.items()}
    return dict(sorted(ratios.items(), key=lambda item: item[1]))


def chosen(network: PublishedNetwork, make: DenseStudy) -> Study:
    """Return the study under the algorithm with which the fitted rows agree best."""
    return make(network, next(iter(disagreements(network, make))))


def _fits_by_nodes(
    network: PublishedNetwork, rows: Sequence[PublishedRow], part: str, how: str, prefix: str = ""
) -> tuple[FreeNumber, ...]:
    rate = network.nominal_gbit_per_s
    return tuple(
        FreeNumber(
            part=part,
            key=f"{prefix}by_nodes.{nodes}.efficiency",
            bounds=(0.005, 1.0),
            rows=tuple(row for row in rows if row.nodes == nodes),
            text=lambda part_of_rate: f"{part_of_rate:.4f} ({part_of_rate * rate:.2f} Gbit/s of payload, {how})",
        )
        for nodes in CALIBRATED_NODES
    )


# The compression stage of Fig 5a.


@cached
def compression_stage(network: PublishedNetwork) -> Study:
    """Return the compression stage: codec, rate of the exchange on two and four nodes, polling on Ethernet."""
    rows = figure_rows(network, "1-bit Adam")
    mpi = LibraryCosts(carries=(COMPRESSED.kind,), poll_s=Duration(0))
    fits = (
        _codec_fit(network, rows),
        *_fits_by_nodes(network, rows, network.part, "all-to-all and gather", f"libraries.{MPI}."),
        *((send_cost_fit(network, rows),) if network is ETHERNET else ()),
    )
    return Study(
        initial=structs.replace(chosen(network, dense_adam).fitted, libraries={MPI: mpi}),
        fits=fits,
        predict=partial(_iteration_s, network, COMPRESSED),
        measured=figure_s,
        series=lambda _: network.label,
        label=lambda row: f"{network.label}, {row.gpus} GPUs",
        grows=True,
    ).predicting(rows)


def _codec_fit(network: PublishedNetwork, rows: Sequence[PublishedRow]) -> FreeNumber:
    """Return the fit of all kernels of the codec as one kernel, to the smallest point."""
    return FreeNumber(
        part=network.part,
        key="kernels.compress",
        bounds=(0.0, 1e-8),
        rows=(min(rows, key=lambda row: row.gpus),),
        text=lambda seconds: f"{1e9 * seconds:.4f} ns an element ({1e3 * seconds * NUM_ELEMENTS:.0f} ms)",
    )


def send_cost_fit(network: PublishedNetwork, rows: Sequence[PublishedRow], cost: str = "poll_cost") -> FreeNumber:
    """Return the fit of a cost per send to the largest point: by their number ("poll_cost") or "message_cost"."""
    return FreeNumber(
        part=network.part,
        key=f"libraries.{MPI}.{cost}",
        bounds=(0.0, 1e-2),
        rows=(max(rows, key=lambda row: row.gpus),),
        text=lambda seconds: f"{1e6 * seconds:.3f} us",
    )


def stage_parameters(network: PublishedNetwork) -> tuple[Parameter, ...]:
    """Return every value in the calibration of a network as a parameter."""
    update = compression_stage(network).value("kernels.adam_update")
    return (
        compute_parameter(network),
        *single_node(network).parameters,
        *chosen(network, dense_adam).parameters,
        Parameter(
            part=network.part,
            key="kernels.adam_update",
            value=update,
            text=f"{1e9 * update:.4f} ns an element",
            how="mean",
            rows=tuple(row for row in compute_times(network).rows if row.metric == "step"),
        ),
        *compression_stage(network).parameters,
    )


# Models without numbers of nodes: one bandwidth, that of Table 1.


@cached
def one_rate_table(network: PublishedNetwork) -> Study:
    """Return Table 1 with one bandwidth for all numbers of nodes, fitted to its smallest and its largest plain row."""
    study = chosen(network, dense_all_reduce)
    rows = (*study.train, *study.held_out)
    plain = list(filter(_is_plain, rows))
    known = min(plain, key=lambda row: row.nodes), max(plain, key=lambda row: row.nodes)
    fit = FreeNumber(key="inter_node.efficiency", how="least squares", rows=known)
    return replace(study, fits=(fit,)).predicting(rows)


@cached
def one_rate_stage(network: PublishedNetwork) -> Study:
    """Return the compression stage with one bandwidth, the largest point known.

    Of the exchange one number is fitted, to the largest point: polling on Ethernet, the rate of an all-to-all on
    InfiniBand.
    """
    rows = figure_rows(network, "1-bit Adam")
    key, bounds = ("poll_cost", (0.0, 1e-2)) if network is ETHERNET else ("all_to_all_efficiency", (0.05, 1.0))
    exchange = FreeNumber(key=key, bounds=bounds, rows=(max(rows, key=lambda row: row.gpus),))
    stage, start = compression_stage(network), one_rate_table(network).fitted
    return replace(stage, initial=start, fits=(_codec_fit(network, rows), exchange)).predicting(rows)


@cached
def one_rate_adam(network: PublishedNetwork) -> Study:
    """Return Adam in Fig 5a with one bandwidth, nothing fitted to the figure."""
    study = dense_adam(network, next(iter(disagreements(network, dense_all_reduce))))
    return study.fixed(one_rate_table(network).fitted, held_out=figure_rows(network, "Adam"))

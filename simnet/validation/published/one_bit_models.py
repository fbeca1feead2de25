"""Models of 1-bit Adam's rows: dense all-reduces and the compression stage, calibrated on two and four nodes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from msgspec import structs

from simnet.cluster.hardware import Calibration
from simnet.cluster.kernel_times import KernelTime
from simnet.cluster.network_costs import LibraryCosts
from simnet.core.units import Duration
from simnet.strategies import AnyStrategy
from simnet.validation import extrapolation
from simnet.validation.outcome import Parameter
from simnet.validation.published import one_bit_adam as paper
from simnet.validation.published_rows import PublishedRow
from simnet.validation.shipped_parts import PublishedNetwork, cached, cluster
from simnet.validation.study import Fit, Study

ALGORITHMS = ("ring", "hierarchical", "tree")
COUNTED_IN_COMPRESS = ("momentum", "merge", "server_residual", "decompress")
"""Kernels of the codec without a time of their own, since the fitted `compress` contains them."""
CALIBRATED_NODES = (2, 4)
MPI = "mpi"
"""The library of DeepSpeed's exchange, as a calibration names it; NCCL carries the dense all-reduce."""
HERE = "this set only"


# Inside a node.


@cached
def single_node(network: PublishedNetwork) -> Study:
    """Return the fit of the links inside a node to the single-node all-reduce of Table 1."""
    nominal = float(cluster(network.part).intra_node.bytes_per_s) * 8 / 1e9
    fit = Fit(
        part=network.part,
        key="intra_node.efficiency",
        bounds=(0.01, 1.0),
        rows=paper.table_rows(network, paper.ALL_REDUCE, nodes=1),
        text=lambda part: f"{part:.4f} ({part * nominal:.1f} Gbit/s)",
    )
    return replace(_table_study(network, "ring"), fits=(fit,))


@cached
def _start(network: PublishedNetwork) -> Calibration:
    """Return the calibration before any fit between nodes: of the kernels only Adam's update takes time."""
    found: Calibration = single_node(network).fitted
    update = KernelTime(s_per_element=Duration(paper.compute_times(network).optimizer_s / paper.NUM_ELEMENTS))
    counted = dict.fromkeys(COUNTED_IN_COMPRESS, KernelTime(s_per_element=Duration(0)))
    return structs.replace(found, kernels={"adam_update": update, **counted})


# Dense: Table 1 and Adam in Fig 5a, each from its own rows of two and four nodes.


@cached
def dense_all_reduce(network: PublishedNetwork, algorithm: str) -> Study:
    """Return the all-reduce of Table 1 by an algorithm; its fits are those of this set only."""
    rows = [row for row in paper.table_rows(network, paper.ALL_REDUCE) if row.nodes > 1]
    plain = [row for row in rows if row.batch_per_gpu == str(paper.BATCH) and paper.accumulation(row) == 1]
    fits = _fits_by_nodes(network, plain, HERE, algorithm)
    return _with_fits(replace(_table_study(network, algorithm), initial=_start(network)), fits, rows)


@cached
def dense_adam(network: PublishedNetwork, algorithm: str) -> Study:
    """Return Adam in Fig 5a by an algorithm, one fused all-reduce after backward."""
    rows = paper.figure_rows(network, "Adam")
    study = Study(
        initial=_start(network),
        predict=iteration_s(network, paper.dense(algorithm)),
        measured=paper.figure_s,
        series=lambda _: network.label,
        label=lambda row: f"{network.label}, Adam, {row.gpus} GPUs",
    )
    return _with_fits(study, _fits_by_nodes(network, rows, network.part, algorithm), rows)


DenseStudy = Callable[[PublishedNetwork, str], Study]


def efficiencies(study: Study) -> tuple[float, ...]:
    """Return the fitted fractions of the NIC on two and on four nodes."""
    return tuple(study.value(_key(nodes)) for nodes in CALIBRATED_NODES)


@cached
def disagreements(network: PublishedNetwork, make: DenseStudy) -> dict[str, float]:
    """Return the ratio of the bandwidths on two and on four nodes under every algorithm, ascending; 1 is agreement."""
    found = {algorithm: efficiencies(make(network, algorithm)) for algorithm in ALGORITHMS}
    ratios = {algorithm: max(both) / min(both) for algorithm, both in found.items()}
    return dict(sorted(ratios.items(), key=lambda item: item[1]))


def chosen(network: PublishedNetwork, make: DenseStudy) -> Study:
    """Return the study under the algorithm with which the fitted rows agree best."""
    return make(network, next(iter(disagreements(network, make))))


def _key(nodes: int, library: str = "") -> str:
    where = f"libraries.{library}." if library else ""
    return f"{where}by_nodes.{nodes}.efficiency"


def _fits_by_nodes(
    network: PublishedNetwork, rows: Sequence[PublishedRow], part: str, algorithm: str
) -> tuple[Fit, ...]:
    return tuple(_fit_on(network, nodes, rows, part, algorithm) for nodes in CALIBRATED_NODES)


def _fit_on(  # noqa: PLR0913, PLR0917
    network: PublishedNetwork,
    nodes: int,
    rows: Sequence[PublishedRow],
    part: str,
    how: str,
    library: str = "",
) -> Fit:
    rate = network.nominal_gbit_per_s
    return Fit(
        part=part,
        key=_key(nodes, library),
        bounds=(0.005, 1.0),
        rows=tuple(row for row in rows if row.nodes == nodes),
        text=lambda part_of_rate: f"{part_of_rate:.4f} ({part_of_rate * rate:.2f} Gbit/s of payload, {how})",
    )


def _with_fits(study: Study, fits: tuple[Fit, ...], rows: Sequence[PublishedRow]) -> Study:
    known = {row for fit in fits for row in fit.rows}
    held_out = tuple(row for row in rows if row not in known)
    return extrapolation.with_range(replace(study, fits=fits, held_out=held_out))


def _table_study(network: PublishedNetwork, algorithm: str) -> Study:
    return Study(
        initial=paper.unfitted(network),
        predict=partial(_all_reduce_s, network, algorithm),
        measured=paper.table_s,
        series=lambda _: network.label,
        label=lambda row: f"{network.label}, {row.gpus} GPUs, batch {row.batch_per_gpu} x {paper.accumulation(row)}",
    )


def _all_reduce_s(network: PublishedNetwork, algorithm: str, calibration: Calibration, row: PublishedRow) -> float:
    return paper.simulate_iteration(network, calibration, row.nodes, paper.dense(algorithm)).comm_s


# Fig 5a: the compression stage.


@cached
def compression_stage(network: PublishedNetwork) -> Study:
    """Return the compression stage: codec, rate of the exchange on two and four nodes, polling on Ethernet."""
    rows = paper.figure_rows(network, "1-bit Adam")
    single, largest = min(rows, key=lambda row: row.gpus), max(rows, key=lambda row: row.gpus)
    mpi = LibraryCosts(carries=(paper.COMPRESSED.kind,), poll_s=Duration(0))
    fits = (
        codec_fit(network, single),
        *(_fit_on(network, nodes, rows, network.part, "all-to-all and gather", MPI) for nodes in CALIBRATED_NODES),
        *((send_cost_fit(network, largest),) if network is paper.ETHERNET else ()),
    )
    dense = chosen(network, dense_adam).fitted
    study = Study(
        initial=structs.replace(dense, libraries={MPI: mpi}),
        predict=iteration_s(network, paper.COMPRESSED),
        measured=paper.figure_s,
        series=lambda _: network.label,
        label=lambda row: f"{network.label}, {row.gpus} GPUs",
    )
    return _with_fits(study, fits, rows)


def codec_fit(network: PublishedNetwork, row: PublishedRow) -> Fit:
    """Return the fit of all kernels of the codec as one kernel."""
    return Fit(
        part=network.part,
        key="kernels.compress",
        bounds=(0.0, 1e-8),
        rows=(row,),
        text=lambda seconds: f"{1e9 * seconds:.4f} ns an element ({1e3 * seconds * paper.NUM_ELEMENTS:.0f} ms)",
    )


def send_cost_fit(network: PublishedNetwork, row: PublishedRow, cost: str = "poll_cost") -> Fit:
    """Return the fit of a cost per send: growing with their number ("poll_cost") or constant ("message_cost")."""
    key = f"libraries.{MPI}.{cost}"
    return Fit(
        part=network.part, key=key, bounds=(0.0, 1e-2), rows=(row,), text=lambda seconds: f"{1e6 * seconds:.3f} us"
    )


@cached
def one_rate_stage(network: PublishedNetwork) -> Study:
    """Return the stage as a model without numbers of nodes has it: the bandwidth of Table 1, the largest point known.

    Of the exchange one number is fitted, to the largest point: polling on Ethernet, the rate of an all-to-all on
    InfiniBand.
    """
    rows = paper.figure_rows(network, "1-bit Adam")
    single, largest = min(rows, key=lambda row: row.gpus), max(rows, key=lambda row: row.gpus)
    cost = "poll_cost" if network is paper.ETHERNET else "all_to_all_efficiency"
    bounds = (0.0, 1e-2) if network is paper.ETHERNET else (0.05, 1.0)
    fits = (codec_fit(network, single), Fit(key=cost, bounds=bounds, rows=(largest,)))
    start = replace(compression_stage(network), initial=one_rate_table(network).fitted)
    return _with_fits(start, fits, rows)


@cached
def one_rate_table(network: PublishedNetwork) -> Study:
    """Return Table 1 with one bandwidth for all numbers of nodes, fitted to its smallest and its largest plain row."""
    study = chosen(network, dense_all_reduce)
    rows = (*study.train, *study.held_out)
    plain = [row for row in rows if row.batch_per_gpu == str(paper.BATCH) and paper.accumulation(row) == 1]
    known = min(plain, key=lambda row: row.nodes), max(plain, key=lambda row: row.nodes)
    fit = Fit(key="inter_node.efficiency", how="least squares", rows=known)
    return replace(study, fits=(fit,), held_out=tuple(row for row in rows if row not in known))


@cached
def one_rate_adam(network: PublishedNetwork) -> Study:
    """Return Adam in Fig 5a with the one bandwidth of Table 1, nothing fitted to the figure."""
    algorithm = next(iter(disagreements(network, dense_all_reduce)))
    rows = paper.figure_rows(network, "Adam")
    return replace(dense_adam(network, algorithm), initial=one_rate_table(network).fitted, fits=(), held_out=rows)


def iteration_s(network: PublishedNetwork, strategy: AnyStrategy) -> Callable[[Calibration, PublishedRow], float]:
    """Return a function that predicts the time of an iteration [s]."""
    return lambda calibration, row: paper.simulate_iteration(network, calibration, row.nodes, strategy).iteration_s


def stage_parameters(network: PublishedNetwork) -> tuple[Parameter, ...]:
    """Return every value in the calibration of a network as a parameter."""
    steps = tuple(row for row in paper.compute_times(network).rows if row.metric == "step")
    update = compression_stage(network).value("kernels.adam_update")
    return (
        paper.compute_parameter(network),
        *single_node(network).parameters,
        *chosen(network, dense_adam).parameters,
        Parameter(
            part=network.part,
            key="kernels.adam_update",
            value=update,
            text=f"{1e9 * update:.4f} ns an element",
            how="mean",
            rows=steps,
        ),
        *compression_stage(network).parameters,
    )


def parameters_of_both_networks() -> tuple[Parameter, ...]:
    """Return the parameters of both networks."""
    return tuple(parameter for network in paper.NETWORKS for parameter in stage_parameters(network))

"""Models of 1-bit Adam's rows that build on one another: dense all-reduce, compression stage, dense Adam."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from msgspec import structs

from simnet.hardware import Calibration, KernelTime
from simnet.strategies import AnyStrategy
from simnet.units import Duration
from simnet.validate.outcome import Parameter
from simnet.validate.published_rows import PublishedRow
from simnet.validate.sets import one_bit_adam as paper
from simnet.validate.shipped import PublishedNetwork, cached, with_value
from simnet.validate.study import Fit, Study

NOMINAL_INTRA_GBIT_PER_S = 126
"""Nominal rate of PCIe 3.0 x16, which links the GPUs of a node in the shipped Ethernet cluster."""
ALGORITHMS = ("ring", "hierarchical", "tree")
COUNTED_IN_COMPRESS = ("momentum", "merge", "server_residual", "decompress")
"""Kernels of the codec without a time of their own, since the fitted `compress` contains them."""


# Table 1: the dense all-reduce.


@cached
def dense_all_reduce(network: PublishedNetwork, algorithm: str) -> Study:
    """Return the all-reduce of Table 1 by an algorithm, with the bandwidth of the NIC fitted to two rows."""
    rows = [row for row in paper.table_rows(network, paper.ALL_REDUCE) if row.nodes > 1]
    plain = [row for row in rows if row.batch_per_gpu == str(paper.BATCH) and paper.accumulation(row) == 1]
    known = min(plain, key=lambda row: row.nodes), max(plain, key=lambda row: row.nodes)
    rate = network.nominal_gbit_per_s
    bandwidth = Fit(
        part=network.part,
        key="inter_node.efficiency",
        how="least squares",
        rows=known,
        text=lambda part: f"{part:.4f} ({part * rate:.2f} Gbit/s of payload, {algorithm})",
    )
    return Study(
        initial=paper.unfitted(network),
        fits=(bandwidth,),
        predict=partial(_all_reduce_s, network, algorithm),
        measured=paper.table_s,
        series=lambda _: network.label,
        label=lambda row: f"{network.label}, {row.gpus} GPUs, batch {row.batch_per_gpu} x {paper.accumulation(row)}",
        held_out=tuple(row for row in rows if row not in known),
    )


def _all_reduce_s(network: PublishedNetwork, algorithm: str, calibration: Calibration, row: PublishedRow) -> float:
    return paper.simulate_iteration(network, calibration, row.nodes, paper.dense(algorithm)).comm_s


def disagreement(study: Study) -> float:
    """Return the ratio of the bandwidths that the fitted rows give, each alone; 1 means that they agree."""
    alone = [study.refitted([row]).value("inter_node.efficiency") for row in study.train]
    return max(alone) / min(alone)


@cached
def disagreements(network: PublishedNetwork) -> dict[str, float]:
    """Return the disagreement under every algorithm, ascending."""
    found = {algorithm: disagreement(dense_all_reduce(network, algorithm)) for algorithm in ALGORITHMS}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def chosen_algorithm(network: PublishedNetwork) -> str:
    """Return the algorithm under which the fitted rows of Table 1 agree best."""
    return next(iter(disagreements(network)))


@cached
def single_node(network: PublishedNetwork) -> Study:
    """Return the fit of the links inside a node to the single-node all-reduce of Table 1."""
    fit = Fit(
        part=network.part,
        key="intra_node.efficiency",
        bounds=(0.01, 1.0),
        rows=paper.table_rows(network, paper.ALL_REDUCE, nodes=1),
        text=lambda part: f"{part:.4f} ({part * NOMINAL_INTRA_GBIT_PER_S:.1f} Gbit/s)",
    )
    return replace(dense_all_reduce(network, "ring"), fits=(fit,), held_out=())


def with_fitted_nvlink(network: PublishedNetwork, calibration: Calibration) -> Calibration:
    """Return a calibration with the links inside a node fitted to the single-node row."""
    key = "intra_node.efficiency"
    return with_value(calibration, key, single_node(network).value(key))


# Fig 5a: the compression stage, and dense Adam.


@cached
def dense_calibration(network: PublishedNetwork) -> Calibration:
    """Return the calibration of the dense rows; of the kernels only Adam's update takes time."""
    found: Calibration = dense_all_reduce(network, chosen_algorithm(network)).fitted
    if network is paper.ETHERNET:
        found = with_fitted_nvlink(network, found)
    update = KernelTime(s_per_element=Duration(paper.compute_times(network).optimizer_s / paper.NUM_ELEMENTS))
    counted = dict.fromkeys(COUNTED_IN_COMPRESS, KernelTime(s_per_element=Duration(0)))
    return structs.replace(found, kernels={"adam_update": update, **counted})


def codec_fit(network: PublishedNetwork, row: PublishedRow) -> Fit:
    """Return the fit of all kernels of the codec as one kernel."""
    return Fit(
        part=network.part,
        key="kernels.compress",
        bounds=(0.0, 1e-8),
        rows=(row,),
        text=lambda seconds: f"{1e9 * seconds:.4f} ns an element ({1e3 * seconds * paper.NUM_ELEMENTS:.0f} ms)",
    )


def send_cost_fit(network: PublishedNetwork, row: PublishedRow, key: str = "poll_cost") -> Fit:
    """Return the fit of a cost per send: growing with their number ("poll_cost") or constant ("message_cost")."""
    return Fit(part=network.part, key=key, rows=(row,), text=lambda seconds: f"{1e6 * seconds:.3f} us")


def all_to_all_fit(network: PublishedNetwork, row: PublishedRow) -> Fit:
    """Return the fit of the fraction of the bandwidth that an all-to-all reaches."""
    return Fit(part=network.part, key="all_to_all_efficiency", bounds=(0.05, 1.0), rows=(row,))


@cached
def compression_stage(network: PublishedNetwork) -> Study:
    """Return the compression stage of Fig 5a: codec and one network cost fitted to the smallest and largest point."""
    rows = paper.figure_rows(network, "1-bit Adam")
    single, largest = min(rows, key=lambda row: row.gpus), max(rows, key=lambda row: row.gpus)
    fits: tuple[Fit | tuple[Fit, Fit], ...] = ((codec_fit(network, single), send_cost_fit(network, largest)),)
    if network is paper.INFINIBAND:
        fits = codec_fit(network, single), all_to_all_fit(network, largest)
    return Study(
        initial=dense_calibration(network),
        fits=fits,
        predict=iteration_s(network, paper.COMPRESSED),
        measured=paper.figure_s,
        series=lambda _: network.label,
        label=lambda row: f"{network.label}, {row.gpus} GPUs",
        held_out=tuple(row for row in rows if row not in (single, largest)),
    )


def iteration_s(network: PublishedNetwork, strategy: AnyStrategy) -> Callable[[Calibration, PublishedRow], float]:
    """Return a function that predicts the time of an iteration [s]."""
    return lambda calibration, row: paper.simulate_iteration(network, calibration, row.nodes, strategy).iteration_s


def stage_parameters(network: PublishedNetwork) -> tuple[Parameter, ...]:
    """Return every value in the calibration of the compression stage as a parameter."""
    steps = tuple(row for row in paper.compute_times(network).rows if row.metric == "step")
    update = compression_stage(network).value("kernels.adam_update")
    return (
        paper.compute_parameter(network),
        *dense_all_reduce(network, chosen_algorithm(network)).parameters,
        *(single_node(network).parameters if network is paper.ETHERNET else ()),
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


@cached
def dense_adam(network: PublishedNetwork) -> Study:
    """Return dense Adam in Fig 5a, without a fit of its own."""
    return Study(
        initial=compression_stage(network).fitted,
        predict=iteration_s(network, paper.dense(chosen_algorithm(network))),
        measured=paper.figure_s,
        series=lambda _: network.label,
        label=lambda row: f"{network.label}, Adam, {row.gpus} GPUs",
        held_out=paper.figure_rows(network, "Adam"),
    )


@cached
def dense_adam_by_figure() -> Study:
    """Return dense Adam on Ethernet with the bandwidth fitted to its point of 64 GPUs in Fig 5a."""
    fit = Fit(key="inter_node.efficiency", bounds=(0.02, 0.5), rows=(paper.row_in_table_and_figure(paper.ETHERNET),))
    return replace(dense_adam(paper.ETHERNET), fits=(fit,))

"""Models of 1-bit Adam's rows, each on top of those before it: dense all-reduce, compression stage, Adam beside it."""

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

LAWS = ("ring", "hierarchical", "tree")
COUNTED_IN_COMPRESS = ("momentum", "merge", "server_residual", "decompress")
"""Kernels of the codec without a time of their own, since the fitted `compress` is all of it."""


# Table 1: the dense all-reduce.


@cached
def law(network: PublishedNetwork, algorithm: str) -> Study:
    """Return the all-reduce of Table 1 by an algorithm, with the bandwidth of the NIC that two rows fit best."""
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
        start=paper.unfitted(network),
        fits=(bandwidth,),
        predict=partial(_all_reduce_s, network, algorithm),
        measured=paper.table_s,
        series=lambda _: network.label,
        label=lambda row: f"{network.label}, {row.gpus} GPUs, batch {row.batch_per_gpu} x {paper.accumulation(row)}",
        predicts=tuple(row for row in rows if row not in known),
    )


def _all_reduce_s(network: PublishedNetwork, algorithm: str, calibration: Calibration, row: PublishedRow) -> float:
    return paper.simulated(network, calibration, row.nodes, paper.dense(algorithm)).comm_s


def spread(study: Study) -> float:
    """Return by what factor a law's calibration rows, each fitted alone, disagree on the bandwidth; 1: not at all."""
    alone = [study.refitted([row]).value("inter_node.efficiency") for row in study.known]
    return max(alone) / min(alone)


@cached
def laws(network: PublishedNetwork) -> dict[str, float]:
    """Return the spread of every algorithm, the one on which the calibration rows agree best first."""
    found = {algorithm: spread(law(network, algorithm)) for algorithm in LAWS}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def chosen(network: PublishedNetwork) -> str:
    """Return the algorithm that Table 1 chooses."""
    return next(iter(laws(network)))


@cached
def single_node(network: PublishedNetwork) -> Study:
    """Return the model of the links inside a node, from the single-node all-reduce of Table 1."""
    fit = Fit(
        part=network.part,
        key="intra_node.efficiency",
        within=(0.01, 1.0),
        rows=paper.table_rows(network, paper.ALL_REDUCE, nodes=1),
        text=lambda part: f"{part:.4f} ({part * 126:.1f} Gbit/s)",
    )
    return replace(law(network, "ring"), fits=(fit,), predicts=())


def with_single_node(network: PublishedNetwork, calibration: Calibration) -> Calibration:
    """Return a calibration with the links inside a node as the single-node row gives them."""
    key = "intra_node.efficiency"
    return with_value(calibration, key, single_node(network).value(key))


# Fig 5a: the compression stage, and Adam beside it.


@cached
def base(network: PublishedNetwork) -> Calibration:
    """Return the network's calibration as the dense rows give it; of the kernels only Adam's step takes time."""
    found: Calibration = law(network, chosen(network)).fitted
    if network is paper.ETHERNET:
        found = with_single_node(network, found)
    update = KernelTime(s_per_element=Duration(paper.compute(network).optimizer_s / paper.NUM_ELEMENTS))
    counted = dict.fromkeys(COUNTED_IN_COMPRESS, KernelTime(s_per_element=Duration(0)))
    return structs.replace(found, kernels={"adam_update": update, **counted})


def codec(network: PublishedNetwork, row: PublishedRow) -> Fit:
    """Return the fit of all kernels of the codec as one."""
    return Fit(
        part=network.part,
        key="kernels.compress",
        within=(0.0, 1e-8),
        rows=(row,),
        text=lambda seconds: f"{1e9 * seconds:.4f} ns an element ({1e3 * seconds * paper.NUM_ELEMENTS:.0f} ms)",
    )


def polling(network: PublishedNetwork, row: PublishedRow, key: str = "poll_cost") -> Fit:
    """Return the fit of a cost of sends by the square of their number, or with "message_cost" in proportion to it."""
    return Fit(part=network.part, key=key, rows=(row,), text=lambda seconds: f"{1e6 * seconds:.3f} us")


def all_to_all(network: PublishedNetwork, row: PublishedRow) -> Fit:
    """Return the fit of the part of the bandwidth that an all-to-all reaches."""
    return Fit(part=network.part, key="all_to_all_efficiency", within=(0.05, 1.0), rows=(row,))


@cached
def stage(network: PublishedNetwork) -> Study:
    """Return the compression stage of Fig 5a: codec and one network cost from the smallest and the largest point."""
    rows = paper.figure_rows(network, "1-bit Adam")
    single, largest = min(rows, key=lambda row: row.gpus), max(rows, key=lambda row: row.gpus)
    fits: tuple[Fit | tuple[Fit, Fit], ...] = ((codec(network, single), polling(network, largest)),)
    if network is paper.INFINIBAND:
        fits = codec(network, single), all_to_all(network, largest)
    return Study(
        start=base(network),
        fits=fits,
        predict=iteration_s(network, paper.COMPRESSED),
        measured=paper.figure_s,
        series=lambda _: network.label,
        label=lambda row: f"{network.label}, {row.gpus} GPUs",
        predicts=tuple(row for row in rows if row not in (single, largest)),
    )


def iteration_s(network: PublishedNetwork, strategy: AnyStrategy) -> Callable[[Calibration, PublishedRow], float]:
    """Return what predicts the seconds of an iteration."""
    return lambda calibration, row: paper.simulated(network, calibration, row.nodes, strategy).iteration_s


def stage_parameters(network: PublishedNetwork) -> tuple[Parameter, ...]:
    """Return all that the calibration of the compression stage was fitted to, value by value."""
    steps = tuple(row for row in paper.compute(network).rows if row.metric == "step")
    update = stage(network).value("kernels.adam_update")
    return (
        paper.compute_parameter(network),
        *law(network, chosen(network)).parameters,
        *(single_node(network).parameters if network is paper.ETHERNET else ()),
        Parameter(
            part=network.part,
            key="kernels.adam_update",
            value=update,
            text=f"{1e9 * update:.4f} ns an element",
            how="mean",
            rows=steps,
        ),
        *stage(network).parameters,
    )


def both_parameters() -> tuple[Parameter, ...]:
    """Return the parameters of both networks."""
    return tuple(parameter for network in paper.NETWORKS for parameter in stage_parameters(network))


@cached
def adam(network: PublishedNetwork) -> Study:
    """Return Adam in Fig 5a, nothing fitted."""
    return Study(
        start=stage(network).fitted,
        predict=iteration_s(network, paper.dense(chosen(network))),
        measured=paper.figure_s,
        series=lambda _: network.label,
        label=lambda row: f"{network.label}, Adam, {row.gpus} GPUs",
        predicts=paper.figure_rows(network, "Adam"),
    )


@cached
def adam_by_figure() -> Study:
    """Return Adam on Ethernet with the bandwidth that meets the figure's dense point of 64 GPUs."""
    fit = Fit(key="inter_node.efficiency", within=(0.02, 0.5), rows=(paper.row_of_both(paper.ETHERNET),))
    return replace(adam(paper.ETHERNET), fits=(fit,))

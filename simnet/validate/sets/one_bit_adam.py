"""The 1-bit Adam clusters: what their rows say, the workload that both train, and studies that build on one another."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from msgspec import structs

from simnet.hardware import Calibration, KernelTime
from simnet.result import StrategyResult
from simnet.scenario import Run, Scenario
from simnet.simulate import simulate
from simnet.strategies import AllReduce, AnyStrategy, OneBitAdam
from simnet.units import Duration
from simnet.validate import measurements, outcome, parts
from simnet.validate.measurements import Row
from simnet.validate.outcome import Parameter
from simnet.validate.parts import Network, once, with_value
from simnet.validate.study import Fit, Study
from simnet.workload.workload import Workload

SOURCE = "1-bit Adam"
TABLE = "Table 1, grad_accum="
FIGURE = "Fig 5(a) batch=16/GPU"
ALL_REDUCE = "backward_allreduce"
BATCH = 16
NUM_ELEMENTS = 336_226_108
"""Parameters of BERT-Large for pre-training, as in scenarios/workloads/gradients/bert_large.json."""
LAWS = ("ring", "hierarchical", "tree")
COUNTED_IN_COMPRESS = ("momentum", "merge", "server_residual", "decompress")
"""Kernels of the codec without a time of their own, since the fitted `compress` is all of it."""
GPUS_OF_BOTH = 64
"""GPUs at which Table 1 and Fig 5a both tell the time of a dense step, with 16 samples a GPU and no accumulation."""
COMPRESSED = OneBitAdam(agreement=False)


ETHERNET = Network(label="Ethernet", column="Eth40 (4.1 Gbps eff)", part="one_bit_adam_ethernet", nominal_gbit_per_s=40)
INFINIBAND = Network(label="InfiniBand", column="IB100", part="one_bit_adam_infiniband", nominal_gbit_per_s=100)
NETWORKS = (ETHERNET, INFINIBAND)


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Seconds of one micro-batch of 16 samples on a V100 of a network, and the rows of Table 1 behind these means."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    rows: tuple[Row, ...]

    @property
    def total_s(self) -> float:
        """Forward, backward and optimizer."""
        return self.forward_s + self.backward_s + self.optimizer_s


def table_rows(network: Network, metric: str, **wanted: object) -> tuple[Row, ...]:
    """Return rows of Table 1 [ms]."""
    found = measurements.load().select(SOURCE, network=network.column, metric=metric, **wanted)
    return tuple(row for row in found if row.location.startswith(TABLE))


def figure_rows(network: Network, method: str) -> tuple[Row, ...]:
    """Return the rows of Fig 5a [samples/s] of "Adam" or "1-bit Adam"."""
    return measurements.load().select(SOURCE, location=FIGURE, network=network.column, method=method)


def figure_s(row: Row) -> float:
    """Return the seconds of an iteration that a throughput of Fig 5a means."""
    return row.gpus * BATCH / row.value


def table_s(row: Row) -> float:
    """Return the seconds that a row of Table 1 gives."""
    return row.value / 1e3


def accumulation(row: Row) -> int:
    """Return the micro-batches of one iteration of a row of Table 1."""
    return int(row.location.removeprefix(TABLE).split()[0])


@once
def compute(network: Network) -> Compute:
    """Return the mean compute of the rows of Table 1 with 16 samples a GPU and no accumulation."""
    found = {
        metric: tuple(row for row in table_rows(network, metric, batch_per_gpu=str(BATCH)) if accumulation(row) == 1)
        for metric in ("forward", "backward_else", "step")
    }
    means = {metric: sum(row.value for row in these) / len(these) / 1e3 for metric, these in found.items()}
    return Compute(
        forward_s=means["forward"],
        backward_s=means["backward_else"],
        optimizer_s=means["step"],
        rows=tuple(row for these in found.values() for row in these),
    )


def compute_parameter(network: Network) -> Parameter:
    """Return the compute time as a parameter."""
    found = compute(network)
    key = f"forward + backward + step, {network.label}"
    return outcome.compute_parameter(key, found.total_s, "mean", found.rows)


def dense(algorithm: str) -> AllReduce:
    """Return Adam's exchange: one fused all-reduce after backward, as Table 1 times it apart from backward."""
    return AllReduce(algorithm=algorithm, bucketing="fused", overlap=False)


def simulated(
    network: Network, calibration: Calibration, num_nodes: int, strategy: AnyStrategy, accumulated: int = 1
) -> StrategyResult:
    """Simulate an iteration of BERT-Large in fp16."""
    scenario = _scenario(network, num_nodes, strategy, accumulated)
    return simulate(structs.replace(scenario, calibration=calibration)).result


@once
def _scenario(network: Network, num_nodes: int, strategy: AnyStrategy, accumulated: int) -> Scenario:
    found = compute(network)
    workload = Workload(
        num_elements=NUM_ELEMENTS,
        dtype="fp16",
        forward_s=Duration(found.forward_s),
        backward_s=Duration(found.backward_s),
        optimizer_s=Duration(found.optimizer_s),
        batch_per_rank=BATCH,
    )
    return Scenario(
        cluster=parts.cluster(network.part, num_nodes),
        workload=workload,
        strategy=strategy,
        run=Run(grad_accumulation=accumulated),
    )


def bare(network: Network) -> Calibration:
    """Return the network's calibration without any fitted value."""
    return parts.bare(network.part, kernels={}, poll_s=Duration(0), all_to_all_efficiency=1.0)


# Table 1: the dense all-reduce.


@once
def law(network: Network, algorithm: str) -> Study:
    """The all-reduce of Table 1 by an algorithm: the bandwidth of the NIC that two rows fit best."""
    rows = [row for row in table_rows(network, ALL_REDUCE) if row.nodes > 1]
    plain = [row for row in rows if row.batch_per_gpu == str(BATCH) and accumulation(row) == 1]
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
        start=bare(network),
        fits=(bandwidth,),
        predict=partial(_all_reduce_s, network, algorithm),
        measured=table_s,
        series=lambda _: network.label,
        label=lambda row: f"{network.label}, {row.gpus} GPUs, batch {row.batch_per_gpu} x {accumulation(row)}",
        predicts=tuple(row for row in rows if row not in known),
    )


def _all_reduce_s(network: Network, algorithm: str, calibration: Calibration, row: Row) -> float:
    return simulated(network, calibration, row.nodes, dense(algorithm)).comm_s


def spread(study: Study) -> float:
    """Return by what factor a law's calibration rows, each fitted alone, disagree on the bandwidth; 1: not at all."""
    alone = [study.refitted([row]).value("inter_node.efficiency") for row in study.known]
    return max(alone) / min(alone)


@once
def laws(network: Network) -> dict[str, float]:
    """Return the spread of every algorithm, the one on which the calibration rows agree best first."""
    found = {algorithm: spread(law(network, algorithm)) for algorithm in LAWS}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def chosen(network: Network) -> str:
    """Return the algorithm that Table 1 chooses."""
    return next(iter(laws(network)))


@once
def single_node(network: Network) -> Study:
    """The links inside a node, from the single-node all-reduce of Table 1."""
    fit = Fit(
        part=network.part,
        key="intra_node.efficiency",
        within=(0.01, 1.0),
        rows=table_rows(network, ALL_REDUCE, nodes=1),
        text=lambda part: f"{part:.4f} ({part * 126:.1f} Gbit/s)",
    )
    return replace(law(network, "ring"), fits=(fit,), predicts=())


def with_single_node(network: Network, calibration: Calibration) -> Calibration:
    """Return a calibration with the links inside a node as the single-node row gives them."""
    key = "intra_node.efficiency"
    return with_value(calibration, key, single_node(network).value(key))


# Fig 5a: the compression stage, and Adam beside it.


@once
def base(network: Network) -> Calibration:
    """Return the network's calibration as the dense rows give it; of the kernels only Adam's step takes time."""
    found: Calibration = law(network, chosen(network)).fitted
    if network is ETHERNET:
        found = with_single_node(network, found)
    update = KernelTime(s_per_element=Duration(compute(network).optimizer_s / NUM_ELEMENTS))
    counted = dict.fromkeys(COUNTED_IN_COMPRESS, KernelTime(s_per_element=Duration(0)))
    return structs.replace(found, kernels={"adam_update": update, **counted})


def codec(network: Network, row: Row) -> Fit:
    """All kernels of the codec as one."""
    return Fit(
        part=network.part,
        key="kernels.compress",
        within=(0.0, 1e-8),
        rows=(row,),
        text=lambda seconds: f"{1e9 * seconds:.4f} ns an element ({1e3 * seconds * NUM_ELEMENTS:.0f} ms)",
    )


def polling(network: Network, row: Row, key: str = "poll_cost") -> Fit:
    """A cost of sends by the square of their number, or with "message_cost" in proportion to it."""
    return Fit(part=network.part, key=key, rows=(row,), text=lambda seconds: f"{1e6 * seconds:.3f} us")


def all_to_all(network: Network, row: Row) -> Fit:
    """The part of the bandwidth that an all-to-all reaches."""
    return Fit(part=network.part, key="all_to_all_efficiency", within=(0.05, 1.0), rows=(row,))


@once
def stage(network: Network) -> Study:
    """The compression stage of Fig 5a: codec and one network cost from the smallest and the largest point."""
    rows = figure_rows(network, "1-bit Adam")
    single, largest = min(rows, key=lambda row: row.gpus), max(rows, key=lambda row: row.gpus)
    fits: tuple[Fit | tuple[Fit, Fit], ...] = ((codec(network, single), polling(network, largest)),)
    if network is INFINIBAND:
        fits = codec(network, single), all_to_all(network, largest)
    return Study(
        start=base(network),
        fits=fits,
        predict=iteration_s(network, COMPRESSED),
        measured=figure_s,
        series=lambda _: network.label,
        label=lambda row: f"{network.label}, {row.gpus} GPUs",
        predicts=tuple(row for row in rows if row not in (single, largest)),
    )


def iteration_s(network: Network, strategy: AnyStrategy) -> Callable[[Calibration, Row], float]:
    """Return what predicts the seconds of an iteration."""
    return lambda calibration, row: simulated(network, calibration, row.nodes, strategy).iteration_s


def stage_parameters(network: Network) -> tuple[Parameter, ...]:
    """Return all that the calibration of the compression stage was fitted to, value by value."""
    steps = tuple(row for row in compute(network).rows if row.metric == "step")
    update = stage(network).value("kernels.adam_update")
    return (
        compute_parameter(network),
        *law(network, chosen(network)).parameters,
        *(single_node(network).parameters if network is ETHERNET else ()),
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
    return tuple(parameter for network in NETWORKS for parameter in stage_parameters(network))


@once
def adam(network: Network) -> Study:
    """Adam in Fig 5a: nothing fitted."""
    return Study(
        start=stage(network).fitted,
        predict=iteration_s(network, dense(chosen(network))),
        measured=figure_s,
        series=lambda _: network.label,
        label=lambda row: f"{network.label}, Adam, {row.gpus} GPUs",
        predicts=figure_rows(network, "Adam"),
    )


@once
def adam_by_figure() -> Study:
    """Adam on Ethernet with the bandwidth that meets the figure's dense point of 64 GPUs."""
    fit = Fit(key="inter_node.efficiency", within=(0.02, 0.5), rows=(row_of_both(ETHERNET),))
    return replace(adam(ETHERNET), fits=(fit,))


def row_of_both(network: Network) -> Row:
    """Return the figure's dense point of a set-up that Table 1 tells too."""
    return next(row for row in figure_rows(network, "Adam") if row.gpus == GPUS_OF_BOTH)


def table_sum_s(network: Network, accumulated: int) -> float:
    """Return the sum of Table 1's parts of a dense step of 64 GPUs with 16 samples a micro-batch [s]."""
    found = (
        row
        for metric in ("forward", ALL_REDUCE, "backward_else", "step")
        for row in table_rows(network, metric, gpus=GPUS_OF_BOTH, batch_per_gpu=str(BATCH))
    )
    return sum(row.value for row in found if accumulation(row) == accumulated) / 1e3

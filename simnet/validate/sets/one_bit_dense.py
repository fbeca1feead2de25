"""1-bit Adam, Fig 5a: throughput of dense Adam, from the calibration of Table 1 with nothing fitted to it."""

from simnet.hardware import Calibration
from simnet.numeric import root
from simnet.validate import parts
from simnet.validate.measurements import Measurements, Row
from simnet.validate.outcome import Alternative, Limit, Outcome, Prediction, alternative
from simnet.validate.sets import one_bit_adam, one_bit_fig5a, one_bit_table1
from simnet.validate.sets.one_bit_adam import ETHERNET, NETWORKS, Network

METHOD = "Adam"
GPUS_OF_BOTH = 64
"""GPUs at which Table 1 and Fig 5a both tell the time of a dense step, with 16 samples a GPU and no accumulation."""
BOUND = Limit(mean=0.18, worst=0.39)

ABOUT = """\
Adam's throughput in the same figure: the dense half of the speedup, and what every sweep of this tool has as its \
baseline. Nothing is fitted to it: the calibration is that of the two sets above, and the all-reduce (fused, after \
backward) is the one that Table 1 chose for each network. No target."""
MISSES = """\
On Ethernet the iteration comes out short by {least} to {most} from 16 GPUs on. The paper disagrees with itself here, \
and the calibration follows its table: for 64 GPUs with 16 samples each Table 1 adds up to {table:.2f} s on Ethernet, \
this figure says {figure:.2f} s; on InfiniBand it is {table_ib:.2f} s against {figure_ib:.2f} s. Nor is another \
bandwidth the cure: with the one that meets the figure's own row of 64 GPUs on Ethernet, 16 GPUs and more come within \
{within}, but 8 GPUs are {eight} slow, and Table 1 is missed (table of alternatives). Between 8 and 16 GPUs the \
figure takes a step that the bytes of a ring do not take. Which of the two the cluster gave on a usual day is not \
known; a prediction for such a network carries this uncertainty of its dense side. InfiniBand inside one node is \
short by {node}, since NVLink is left at its nominal rate (see Table 1)."""


def run(rows: Measurements, *, alternatives: bool) -> Outcome:
    """Predict every dense point of the figure from the calibration of Table 1 and the compression stage."""
    fitted = {network: one_bit_fig5a.fit(rows, network) for network in NETWORKS}
    predictions = tuple(p for network in NETWORKS for p in _predictions(rows, network, fitted[network]))
    of_figure = with_bandwidth_of_figure(rows, fitted[ETHERNET])
    by_figure = _predictions(rows, ETHERNET, of_figure)
    return Outcome(
        name="one_bit_dense",
        title="1-bit Adam, Fig 5a: dense Adam",
        unit="ms",
        parameters=tuple(p for network in NETWORKS for p in one_bit_fig5a.parameters(rows, network, fitted[network])),
        predictions=predictions,
        target=None,
        bound=BOUND,
        about=ABOUT,
        misses=_misses(rows, predictions, by_figure),
        alternatives=_alternatives(rows, predictions, by_figure, of_figure) if alternatives else (),
    )


def predict_s(rows: Measurements, network: Network, calibration: Calibration, row: Row, algorithm: str) -> float:
    """Return the simulated seconds of a dense iteration."""
    found = one_bit_adam.compute(rows, network)
    strategy = one_bit_adam.dense(algorithm)
    return one_bit_adam.simulated(calibration, found, nodes=row.nodes, strategy=strategy).iteration_s


def algorithm(rows: Measurements, network: Network) -> str:
    """Return the all-reduce that Table 1 chose."""
    return one_bit_table1.laws(rows, network)[0].algorithm


def with_bandwidth_of_figure(rows: Measurements, fitted: Calibration) -> Calibration:
    """Return the Ethernet calibration with the bandwidth that meets the figure's dense point of 64 GPUs."""
    row = row_of_both(rows, ETHERNET)
    measured_s, ring = one_bit_fig5a.measured_s(row), algorithm(rows, ETHERNET)

    def excess_s(efficiency: float) -> float:
        tried = parts.with_efficiency(fitted, "inter_node", efficiency)
        return predict_s(rows, ETHERNET, tried, row, ring) - measured_s

    return parts.with_efficiency(fitted, "inter_node", root(excess_s, 0.02, 0.5))


def row_of_both(rows: Measurements, network: Network) -> Row:
    """Return the figure's dense point of a set-up that Table 1 tells too."""
    return next(row for row in one_bit_adam.figure_rows(rows, network, METHOD) if row.gpus == GPUS_OF_BOTH)


def table_s(rows: Measurements, network: Network, accumulation: int) -> float:
    """Return the sum of Table 1's parts of a dense step of 64 GPUs with 16 samples a micro-batch [s]."""
    metrics = ("forward", one_bit_table1.METRIC, "backward_else", "step")
    found = (
        row
        for metric in metrics
        for row in one_bit_adam.table_rows(
            rows, network, metric, gpus=GPUS_OF_BOTH, batch_per_gpu=str(one_bit_adam.BATCH)
        )
    )
    return sum(row.value for row in found if one_bit_adam.accumulation(row) == accumulation) / 1e3


def _predictions(rows: Measurements, network: Network, calibration: Calibration) -> tuple[Prediction, ...]:
    chosen = algorithm(rows, network)
    return tuple(
        Prediction(
            series=network.label,
            label=f"{network.label}, Adam, {row.gpus} GPUs",
            row=row,
            predicted=predict_s(rows, network, calibration, row, chosen),
            measured=one_bit_fig5a.measured_s(row),
        )
        for row in one_bit_adam.figure_rows(rows, network, METHOD)
    )


def _misses(rows: Measurements, predictions: tuple[Prediction, ...], by_figure: tuple[Prediction, ...]) -> str:
    eight = next(p for p in by_figure if p.row.gpus == 8)
    short = [-p.error for p in predictions if p.series == ETHERNET.label and p.row.gpus >= 16]
    node = next(p for p in predictions if p.series != ETHERNET.label and p.row.nodes == 1)
    table, table_ib = (table_s(rows, network, 1) for network in NETWORKS)
    figure, figure_ib = (one_bit_fig5a.measured_s(row_of_both(rows, network)) for network in NETWORKS)
    return MISSES.format(
        least=f"{min(short):.0%}",
        most=f"{max(short):.0%}",
        within=f"{max(abs(p.error) for p in by_figure if p.row.gpus >= 16):.0%}",
        eight=f"{eight.error:.0%}",
        node=f"{-node.error:.0%}",
        table=table,
        table_ib=table_ib,
        figure=figure,
        figure_ib=figure_ib,
    )


def _alternatives(
    rows: Measurements,
    by_table: tuple[Prediction, ...],
    by_figure: tuple[Prediction, ...],
    of_figure: Calibration,
) -> tuple[Alternative, ...]:
    """Return the Ethernet rows but the one of both under either bandwidth, and what the figure's does to Table 1."""
    known = row_of_both(rows, ETHERNET)
    by_table, by_figure = (
        tuple(p for p in these if p.series == ETHERNET.label and p.row != known) for these in (by_table, by_figure)
    )
    efficiency = of_figure.inter_node.efficiency
    assert isinstance(efficiency, float)
    table = one_bit_table1.predictions_with(rows, ETHERNET, efficiency)
    rate = f"{efficiency * ETHERNET.nominal_gbit_per_s:.2f} Gbit/s"
    return (
        alternative("Ethernet: the model above, without the row of 64 GPUs", "the same rows", by_table),
        alternative(f"Ethernet: {rate}, the same rows", "this figure, Adam on 64 GPUs", by_figure),
        alternative(f"Ethernet: {rate}, on the rows of Table 1", "this figure, Adam on 64 GPUs", table),
    )

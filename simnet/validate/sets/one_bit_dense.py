"""1-bit Adam, Fig 5a: throughput of dense Adam, from the calibration of Table 1 with nothing fitted to it."""

from collections.abc import Iterator
from dataclasses import replace

from simnet.comparison import worst_error
from simnet.validate.outcome import Alternative, Limit, Outcome, Prediction
from simnet.validate.sets import one_bit_adam as paper
from simnet.validate.sets import one_bit_models as models
from simnet.validate.shipped import with_value
from simnet.validate.study import all_predictions

PLACE = 7
EFFICIENCY = "inter_node.efficiency"


def published() -> Outcome:
    """Predict every dense point of the figure from the calibration of Table 1 and the compression stage."""
    by_figure = models.adam_by_figure().predictions
    return Outcome(
        title="1-bit Adam, Fig 5a: dense Adam",
        unit="ms",
        bound=Limit(mean=0.18, worst=0.39),
        parameters=models.both_parameters(),
        predictions=all_predictions(map(models.adam, paper.NETWORKS)),
        facts={
            "table_s": {network.label: paper.table_sum_s(network, 1) for network in paper.NETWORKS},
            "figure_s": {network.label: paper.figure_s(paper.row_of_both(network)) for network in paper.NETWORKS},
            "from_16_gpus": tuple(row.gpus for row in models.adam(paper.ETHERNET).predicts if row.gpus >= 16),
            "eight": next(one.error for one in by_figure if one.row.gpus == 8),
            "within": worst_error([one for one in by_figure if one.row.gpus >= 16]),
        },
        others=_alternatives,
    )


def _alternatives() -> Iterator[Alternative]:
    """Yield the Ethernet rows but the one of both under either bandwidth, and what the figure's does to Table 1."""
    by_figure = models.adam_by_figure()
    efficiency = by_figure.value(EFFICIENCY)
    table = models.law(paper.ETHERNET, models.chosen(paper.ETHERNET))
    of_table = replace(table, start=with_value(table.start, EFFICIENCY, efficiency), fits=())
    rate = f"{efficiency * paper.ETHERNET.nominal_gbit_per_s:.2f} Gbit/s"
    on = "this figure, Adam on 64 GPUs"
    yield Alternative(
        "Ethernet: the model above, without the row of 64 GPUs",
        "the same rows",
        _others(models.adam(paper.ETHERNET).predictions),
    )
    yield Alternative(f"Ethernet: {rate}, the same rows", on, _others(by_figure.predictions))
    yield Alternative(f"Ethernet: {rate}, on the rows of Table 1", on, of_table.of((*table.known, *table.predicts)))


def _others(predictions: tuple[Prediction, ...]) -> list[Prediction]:
    return [prediction for prediction in predictions if prediction.row != paper.row_of_both(paper.ETHERNET)]

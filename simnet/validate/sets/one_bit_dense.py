"""1-bit Adam, Fig 5a: throughput of dense Adam, from the calibration of Table 1 with nothing fitted to it."""

from collections.abc import Iterator
from dataclasses import replace

from simnet.comparison import worst_error
from simnet.validate.outcome import Alternative, Limit, Outcome, Prediction
from simnet.validate.sets import one_bit_adam as paper
from simnet.validate.sets import one_bit_models as models
from simnet.validate.shipped import with_value
from simnet.validate.study import all_predictions

ORDER = 7
EFFICIENCY = "inter_node.efficiency"


def evaluate() -> Outcome:
    """Predict every dense point of the figure from the calibration of Table 1 and the compression stage."""
    by_figure = models.dense_adam_by_figure().predictions
    return Outcome(
        title="1-bit Adam, Fig 5a: dense Adam",
        unit="ms",
        bound=Limit(mean=0.18, worst=0.39),
        parameters=models.parameters_of_both_networks(),
        predictions=all_predictions(map(models.dense_adam, paper.NETWORKS)),
        facts={
            "table_s": {network.label: paper.table_sum_s(network, 1) for network in paper.NETWORKS},
            "figure_s": {
                network.label: paper.figure_s(paper.row_in_table_and_figure(network)) for network in paper.NETWORKS
            },
            "from_16_gpus": tuple(row.gpus for row in models.dense_adam(paper.ETHERNET).held_out if row.gpus >= 16),
            "eight": next(one.error for one in by_figure if one.row.gpus == 8),
            "within": worst_error([one for one in by_figure if one.row.gpus >= 16]),
        },
        make_alternatives=_alternatives,
    )


def _alternatives() -> Iterator[Alternative]:
    """Yield the errors on Ethernet with the bandwidth of Table 1 and with that of Fig 5a."""
    by_figure = models.dense_adam_by_figure()
    efficiency = by_figure.value(EFFICIENCY)
    table = models.dense_all_reduce(paper.ETHERNET, models.chosen_algorithm(paper.ETHERNET))
    of_table = replace(table, initial=with_value(table.initial, EFFICIENCY, efficiency), fits=())
    rate = f"{efficiency * paper.ETHERNET.nominal_gbit_per_s:.2f} Gbit/s"
    on = "this figure, Adam on 64 GPUs"
    yield Alternative(
        "Ethernet: the model above, without the row of 64 GPUs",
        "the same rows",
        _others(models.dense_adam(paper.ETHERNET).predictions),
    )
    yield Alternative(f"Ethernet: {rate}, the same rows", on, _others(by_figure.predictions))
    yield Alternative(
        f"Ethernet: {rate}, on the rows of Table 1", on, of_table.compare((*table.train, *table.held_out))
    )


def _others(predictions: tuple[Prediction, ...]) -> list[Prediction]:
    return [prediction for prediction in predictions if prediction.row != paper.row_in_table_and_figure(paper.ETHERNET)]

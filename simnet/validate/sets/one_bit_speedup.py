"""1-bit Adam, Fig 5a: speedup of the compression stage over Adam at the same number of GPUs, nothing fitted to it."""

from msgspec.structs import replace

from simnet.comparison import mean_error
from simnet.validate.outcome import Limit, Outcome
from simnet.validate.published_rows import PublishedRow
from simnet.validate.sets import one_bit_adam as paper
from simnet.validate.sets import one_bit_models as models
from simnet.validate.shipped import PublishedNetwork
from simnet.validate.study import Study, all_predictions

ORDER = 8


def evaluate() -> Outcome:
    """Predict every speedup of the figure from the calibration of Table 1 and the compression stage."""
    predictions = all_predictions(map(_study, paper.NETWORKS))
    ethernet = [one for one in predictions if one.series == paper.ETHERNET.label and one.row.gpus >= 16]
    return Outcome(
        title="1-bit Adam, Fig 5a: speedup",
        unit="x",
        bound=Limit(mean=0.20, worst=0.39),
        parameters=models.parameters_of_both_networks(),
        predictions=predictions,
        facts={
            "short": [-one.error for one in ethernet],
            "of_both": next(
                one for one in ethernet if one.row.gpus == paper.row_in_table_and_figure(paper.ETHERNET).gpus
            ),
            "mean": mean_error(predictions),
            "unmarked": mean_error([one for one in predictions if not one.label.endswith("*")]),
            "networks": [network.label for network in paper.NETWORKS],
        },
    )


def _study(network: PublishedNetwork) -> Study:
    one_bit = {row.gpus: row for row in paper.figure_rows(network, "1-bit Adam")}
    quotients = {_quotient(row, one_bit[row.gpus]): one_bit[row.gpus] for row in paper.figure_rows(network, "Adam")}
    known = {row for parameter in models.compression_stage(network).parameters for row in parameter.rows}
    return Study(
        initial=models.compression_stage(network).fitted,
        predict=lambda found, row: (
            models.dense_adam(network).predict(found, row) / models.compression_stage(network).predict(found, row)
        ),
        measured=lambda row: row.value,
        series=lambda _: network.label,
        label=lambda row: f"{network.label}, {row.gpus} GPUs{' *' if quotients[row] in known else ''}",
        held_out=tuple(quotients),
    )


def _quotient(dense: PublishedRow, one_bit: PublishedRow) -> PublishedRow:
    """Return the quotient of two rows, whose key names the lines of both."""
    return replace(
        dense,
        key=f"{dense.key}, {one_bit.key.partition(':')[2]}",
        method="1-bit Adam / Adam",
        metric="speedup (compression stage)",
        unit="x",
        value=one_bit.value / dense.value,
    )

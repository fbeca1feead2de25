"""1-bit Adam, Fig 5a: speedup of the compression stage over Adam at the same number of GPUs, nothing fitted to it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import replace as with_fields
from typing import Any

from msgspec.structs import replace

from simnet.calibration.comparison import mean_error
from simnet.validation import extrapolation
from simnet.validation.outcome import Alternative, Limit, Outcome
from simnet.validation.published import one_bit_adam as paper
from simnet.validation.published import one_bit_models as models
from simnet.validation.published_rows import PublishedRow
from simnet.validation.shipped_parts import PublishedNetwork
from simnet.validation.study import Study, all_predictions

ORDER = 8
TARGET = Limit(mean=0.10, worst=0.20)


def evaluate() -> Outcome:
    """Predict the speedups of which at least one side is no calibrated point."""
    points = [point for network in paper.NETWORKS for point in _points(network)]
    predictions = all_predictions(map(_study, paper.NETWORKS))
    every = all_predictions(with_fields(_study(network), held_out=_rows(network)) for network in paper.NETWORKS)
    return Outcome(
        title="1-bit Adam, Fig 5a: speedup",
        unit="x",
        target=TARGET,
        bound=TARGET,
        parameters=models.parameters_of_both_networks(),
        predictions=predictions,
        facts={
            "mean": mean_error(predictions),
            "mean_of_all": mean_error(every),
            "num_of_all": len(every),
            "both_fitted": sum(point.is_fitted for point in points),
            "unmarked": mean_error([one for one in predictions if not one.label.endswith("*")]),
            "networks": [network.label for network in paper.NETWORKS],
        },
        make_alternatives=_alternatives,
    )


@dataclass(frozen=True, kw_only=True)
class SpeedupPoint:
    """A published speedup as a row, and how many of its two sides are calibrated points."""

    row: PublishedRow
    num_fitted: int

    @property
    def is_fitted(self) -> bool:
        """Whether both sides are calibrated points."""
        return self.num_fitted == 2


def _points(network: PublishedNetwork) -> tuple[SpeedupPoint, ...]:
    one_bit = {row.gpus: row for row in paper.figure_rows(network, "1-bit Adam")}
    known = {row for parameter in models.stage_parameters(network) for row in parameter.rows}
    return tuple(
        SpeedupPoint(
            row=_quotient(dense, one_bit[dense.gpus]), num_fitted=(dense in known) + (one_bit[dense.gpus] in known)
        )
        for dense in paper.figure_rows(network, "Adam")
    )


def _rows(network: PublishedNetwork) -> tuple[PublishedRow, ...]:
    return tuple(point.row for point in _points(network))


def _study(network: PublishedNetwork) -> Study:
    half = {point.row.key for point in _points(network) if point.num_fitted == 1}
    study = Study(
        initial=models.compression_stage(network).fitted,
        predict=lambda found, row: (
            models.chosen(network, models.dense_adam).predict(found, row)
            / models.compression_stage(network).predict(found, row)
        ),
        measured=lambda row: row.value,
        series=lambda _: network.label,
        label=lambda row: f"{network.label}, {row.gpus} GPUs{' *' if row.key in half else ''}",
        held_out=tuple(point.row for point in _points(network) if not point.is_fitted),
    )
    return extrapolation.with_range(study)


def _alternatives() -> Iterator[Alternative]:
    found = [
        one
        for network in paper.NETWORKS
        for one in with_fields(_study(network), predict=_one_rate(network)).compare(_study(network).held_out)
    ]
    yield Alternative(
        "one bandwidth for all numbers of nodes, that of Table 1", "Table 1, single-node and largest 1-bit point", found
    )
    nearest = [one for one in all_predictions(map(_study, paper.NETWORKS)) if not one.label.endswith("*")]
    yield Alternative("the model above, rows without * only", "the same rows", nearest)


def _one_rate(network: PublishedNetwork) -> Callable[[Any, PublishedRow], float]:
    dense, one_bit = models.one_rate_adam(network), models.one_rate_stage(network)
    return lambda _, row: dense.predict(dense.fitted, row) / one_bit.predict(one_bit.fitted, row)


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

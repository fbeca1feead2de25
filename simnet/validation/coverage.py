"""90 % intervals of predicted published rows, and how many of the published values they hold.

Two errors are added up, as logarithms of factors and in squares:

- The *values* were fitted to rows that another run would have given otherwise. Every calibrated row is varied by the
  spread of values that a publication prints more than once (`run_to_run`), and all sets are fitted again.
- The *model* leaves something out. How much, is read off the rows of the other publications alone, so that a
  publication says nothing about the width of its own intervals. For times it is the width under which 90 % of the rows
  of each of them are inside; for speedups publications count as draws of one error (`model_width`).

Rows of one publication have errors in common, so that the share of rows inside is less sure than their number suggests.
"""

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from simnet.calibration.comparison import coverage
from simnet.engine.intervals import CONFIDENCE, SIGMAS, quantile
from simnet.validation import published as sets
from simnet.validation import published_rows
from simnet.validation.outcome import Outcome, Prediction, Unit
from simnet.validation.published import one_bit_adam
from simnet.validation.published_rows import PublishedRow

Quantity = Literal["time", "speedup"]
TARGET = (0.80, 0.97)
"""Least and largest share of published values inside their 90 % intervals."""
NUM_REFITS = 8
"""Fits with varied rows: a power of two, of which one less rows can be told apart."""
SAME_SET_UP = (
    "source",
    "hardware",
    "network",
    "gpus_per_node",
    "gpus",
    "model",
    "batch_per_gpu",
    "precision",
    "metric",
)
"""Columns in which two rows agree whose quotient is a speedup, or that are one value printed twice."""
MIN_RESIDUALS = 3
"""Residuals from which on a source says how large its error is."""
RowKey = tuple[str, str]
"""Name of a set, and key of a row."""
_TimeError = tuple[PublishedRow, float, tuple[float, float]]
"""A predicted row of a time, the logarithm of measured / predicted, and by how much it may be off for known reasons."""


@dataclass(frozen=True, kw_only=True)
class Residual:
    """How far a published value is from a prediction.

    Attributes:
        source: the publication.
        quantity: "time" or "speedup".
        log_error: logarithm of measured / predicted.
        own_log: logarithms, below and above, by which the prediction may be off for known reasons, at 90 %.
    """

    source: str
    quantity: Quantity
    log_error: float
    own_log: tuple[float, float]

    @property
    def unexplained(self) -> float:
        """The half width, as a logarithm, that the model needs beside the known reasons to hold the value."""
        known = self.own_log[1] if self.log_error > 0 else self.own_log[0]
        return math.sqrt(max(self.log_error**2 - known**2, 0.0))


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the intervals are made of.

    Attributes:
        widths: logarithms, below and above, by which each predicted row may be off since its calibration is.
        residuals: how far published values are off.
        rows_alike: whether the rows of all publications count alike, not each publication.
    """

    widths: Mapping[RowKey, tuple[float, float]]
    residuals: tuple[Residual, ...]
    rows_alike: bool = False

    def width(self, of: Quantity, without: str = "") -> float:
        """Return the half width, as a logarithm, that the model's own error needs, found without one publication.

        It is 0 where no other row tells.
        """
        known = [residual for residual in self.residuals if residual.quantity == of and residual.source != without]
        return model_width([replace(residual, source="") if self.rows_alike else residual for residual in known], of)

    def inside(self, of: Quantity) -> tuple[int, int]:
        """Return how many values are within intervals found without their publication, and how many there are."""
        # As for the next cluster: no publication helps to find the width by which it is judged.
        widths = {residual.source: self.width(of, without=residual.source) for residual in self.residuals}
        known = [residual for residual in self.residuals if residual.quantity == of]
        return sum(residual.unexplained <= widths[residual.source] for residual in known), len(known)


def model_width(residuals: Sequence[Residual], of: Quantity) -> float:
    """Return the half width, as a logarithm, that predictions of the next source need at 90 %; 0 of no residual.

    Sources, not rows, are what the next cluster is one more of: the many rows of one that is predicted well would hide
    another that is not. Of times it is the width under which 90 % of each source's rows are inside. Errors that two
    times have in common cancel in their quotient, so that what is left of a speedup's error looks alike in all sources:
    it is the root of their mean square error, times Student's t of one source less. Few sources keep the rule of times.

    Args:
        residuals: of sources of which none is the one to predict.
        of: time or speedup; residuals of the other are passed over.
    """
    widths: dict[str, list[float]] = {}
    for residual in residuals:
        if residual.quantity == of:
            widths.setdefault(residual.source, []).append(residual.unexplained)
    # A source of one or two rows may be right by luck.
    squares = [
        statistics.fmean(width**2 for width in known) for known in widths.values() if len(known) >= MIN_RESIDUALS
    ]
    if of == "speedup" and len(squares) > 2:
        from scipy.special import stdtrit

        # Student's t at 95 %, with the digits of printed tables.
        return round(float(stdtrit(len(squares) - 1, 0.95)), 3) * math.sqrt(statistics.fmean(squares))
    return max((quantile(sorted(known), CONFIDENCE) for known in widths.values()), default=0.0)


def find_evidence(outcomes: Sequence[Outcome]) -> Evidence:
    """Fit all sets again and again with varied rows, and compare all predictions with what was published."""
    widths = _own_widths(outcomes)
    return Evidence(widths=widths, residuals=_residuals(outcomes, widths))


def with_intervals(outcomes: Sequence[Outcome], evidence: Evidence) -> list[Outcome]:
    """Return sets whose predictions have 90 % intervals."""

    def interval(outcome: Outcome, prediction: Prediction) -> tuple[float, float]:
        width = evidence.width(quantity(outcome.unit), without=prediction.row.source)
        return _interval(prediction, evidence.widths[outcome.name, prediction.row.key], width)

    return [
        replace(
            outcome,
            predictions=tuple(
                replace(prediction, interval=interval(outcome, prediction)) for prediction in outcome.predictions
            ),
        )
        for outcome in outcomes
    ]


def share_inside(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """Return how many published values are inside their intervals, and how many have one."""
    return coverage([prediction for outcome in outcomes for prediction in outcome.predictions])


def by_source(outcomes: Sequence[Outcome]) -> dict[str, tuple[int, int]]:
    """Return the same by publication."""
    predictions_by_source: dict[str, list[Prediction]] = {}
    for outcome in outcomes:
        for prediction in outcome.predictions:
            predictions_by_source.setdefault(prediction.row.source, []).append(prediction)
    return {source: coverage(predictions) for source, predictions in predictions_by_source.items()}


def meets_target(outcomes: Sequence[Outcome]) -> bool:
    """Tell whether as many published values are inside as should be."""
    inside, rows = share_inside(outcomes)
    return TARGET[0] <= inside / rows <= TARGET[1]


def alternatives(outcomes: Sequence[Outcome], evidence: Evidence) -> dict[str, tuple[int, int]]:
    """Return how many published values other intervals would hold, and of how many."""
    exact = replace(evidence, widths=dict.fromkeys(evidence.widths, (0.0, 0.0)))
    certain = replace(evidence, residuals=tuple(replace(residual, log_error=0.0) for residual in evidence.residuals))
    seen = replace(
        evidence,
        residuals=tuple(replace(residual, source=f"{residual.source}, seen") for residual in evidence.residuals),
    )
    shipped = replace(evidence, widths=dict(_with_shipped_ranges(outcomes, evidence)))
    named = {
        "calibrated rows varied, no model error": certain,
        "model error alone": exact,
        "the shipped calibrations' own intervals, too (some were set by people who had seen all rows)": shipped,
        "90 % of the rows of all other publications together, not of each": replace(evidence, rows_alike=True),
        "model error of all publications, the predicted one among them (no test)": seen,
    }
    return {name: share_inside(with_intervals(outcomes, other)) for name, other in named.items()}


def _with_shipped_ranges(
    outcomes: Sequence[Outcome], evidence: Evidence
) -> Iterator[tuple[RowKey, tuple[float, float]]]:
    for outcome in outcomes:
        for prediction in outcome.predictions:
            widths = evidence.widths[outcome.name, prediction.row.key]
            # A larger cluster than those measured has its growing interval in both ranges: it counts once.
            more = [
                max(math.log(end) ** 2 - math.log(known) ** 2, 0.0)
                for end, known in zip(prediction.shipped_range(), prediction.known_range, strict=True)
            ]
            below, above = (math.sqrt(width**2 + added) for width, added in zip(widths, more, strict=True))
            yield (outcome.name, prediction.row.key), (below, above)


def _interval(prediction: Prediction, own_log: tuple[float, float], width: float) -> tuple[float, float]:
    low, high = prediction.band or (prediction.predicted, prediction.predicted)
    below, above = (math.hypot(side, width) for side in own_log)
    return low * math.exp(-below), high * math.exp(above)


def quantity(unit: Unit) -> Quantity:
    """Return what a set of this unit predicts."""
    return "speedup" if unit == "x" else "time"


def _residuals(outcomes: Sequence[Outcome], widths: Mapping[RowKey, tuple[float, float]]) -> tuple[Residual, ...]:
    """Return how far every published value is off, and every speedup of two methods in one set-up.

    A band over what a publication leaves open has no residual, and sets that tell nothing of others are left out.
    """
    residuals: list[Residual] = []
    times: list[_TimeError] = []
    published = {
        prediction.row.key for outcome in outcomes if outcome.unit == "x" for prediction in outcome.predictions
    }
    for outcome in (outcome for outcome in outcomes if outcome.tells_of_others):
        for prediction in outcome.predictions:
            if prediction.band is not None:
                continue
            width = widths[outcome.name, prediction.row.key]
            error = math.log(prediction.measured / prediction.predicted)
            residuals.append(
                Residual(source=prediction.row.source, quantity=quantity(outcome.unit), log_error=error, own_log=width)
            )
            if quantity(outcome.unit) == "time":
                times.append((prediction.row, error, width))
    return (*residuals, *_speedups(times, published))


def _speedups(times: Sequence[_TimeError], published: Collection[str]) -> Iterator[Residual]:
    """Yield the residuals of quotients of two predicted times that differ in the method alone.

    Quotients that are rows of a set are left out: they have a residual already.
    """
    for number, (row, error, width) in enumerate(times):
        for other, other_error, other_own in times[number + 1 :]:
            # All errors but those of the methods are common to both, and cancel.
            if row.method == other.method or _set_up(row) != _set_up(other):
                continue
            if (
                f"{other.key}, {row.key.partition(':')[2]}" in published
                or f"{row.key}, {other.key.partition(':')[2]}" in published
            ):
                continue
            # A quotient is too large where its divisor is too small: the sides of the other change places.
            below, above = (math.hypot(a, b) for a, b in zip(width, reversed(other_own), strict=True))
            yield Residual(source=row.source, quantity="speedup", log_error=error - other_error, own_log=(below, above))


def _set_up(row: PublishedRow) -> tuple[object, ...]:
    return tuple(getattr(row, column) for column in SAME_SET_UP)


def _own_widths(outcomes: Sequence[Outcome]) -> dict[RowKey, tuple[float, float]]:
    """Return, for every predicted row, the logarithms by which it may be off since its calibration is, at 90 %."""
    spread = run_to_run()
    squares: dict[RowKey, float] = {}
    # A band holds everything that is open, and has no width beside.
    names = [outcome.name for outcome in outcomes if any(prediction.band is None for prediction in outcome.predictions)]
    before = {
        (outcome.name, prediction.row.key): prediction.predicted
        for outcome in outcomes
        for prediction in outcome.predictions
    }
    rows = sorted({row.key for outcome in outcomes for row in outcome.calibration_rows})
    for refit in range(NUM_REFITS):
        factors = {key: math.exp(spread * _sign(refit, place)) for place, key in enumerate(rows)}
        with published_rows.varied(factors):
            for name in names:
                for prediction in sets.run(name).predictions:
                    moved = math.log(prediction.predicted / before[name, prediction.row.key])
                    squares[name, prediction.row.key] = (
                        squares.get((name, prediction.row.key), 0.0) + moved**2 / NUM_REFITS
                    )
    return {
        (outcome.name, prediction.row.key): _with_range(
            SIGMAS * math.sqrt(squares.get((outcome.name, prediction.row.key), 0.0)), prediction
        )
        for outcome in outcomes
        for prediction in outcome.predictions
    }


def _with_range(width: float, prediction: Prediction) -> tuple[float, float]:
    low, high = prediction.known_range
    return math.hypot(width, math.log(low)), math.hypot(width, math.log(high))


def _sign(refit: int, place: int) -> int:
    """Return 1 or -1: a row of a Hadamard matrix, so that the effects of rows with other signs do not mix."""
    return 1 - 2 * ((refit & (1 + place % (NUM_REFITS - 1))).bit_count() % 2)


def run_to_run() -> float:
    """Return the standard deviation, as a logarithm, of what a publication measured more than once.

    These are forward, backward without its all-reduce and the step of 1-bit Adam's Table 1, the same on every number of
    GPUs. HKBU prints every time of one GPU once, copied to all of its tables.
    """
    squares, freedom = 0.0, 0
    for network in one_bit_adam.NETWORKS:
        by_metric: dict[str, list[float]] = {}
        for row in one_bit_adam.compute_times(network).rows:
            by_metric.setdefault(row.metric, []).append(math.log(row.value))
        for values in by_metric.values():
            squares += statistics.variance(values) * (len(values) - 1)
            freedom += len(values) - 1
    return math.sqrt(squares / freedom)

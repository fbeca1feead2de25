"""A validation as plain text and as JSON."""

from collections.abc import Iterator, Sequence

from simnet.validate.outcome import SCALE, Limit, Outcome
from simnet.validate.text import error_text, error_texts, is_band, limit_text, predicted_text, rows_text, value_text


def table(outcomes: Sequence[Outcome]) -> str:
    """Return every set with its parameters and rows, and a summary at the end."""
    lines = [line for outcome in outcomes for line in (*_set(outcome), "")]
    return "\n".join(line.rstrip() for line in (*lines, *_summary(outcomes)))


def to_object(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Return the same as data."""
    return {"holds": all(outcome.holds for outcome in outcomes), "sets": [_object(outcome) for outcome in outcomes]}


def _set(outcome: Outcome) -> Iterator[str]:
    yield f"{outcome.name}: {outcome.title}"
    yield "  calibrated:"
    for parameter in outcome.parameters:
        yield f"    {parameter.part}: {parameter.key} = {parameter.text}, {parameter.how}: {rows_text(parameter.rows)}"
    labels = max(len(prediction.label) for prediction in outcome.predictions)
    yield f"  {'predicted rows':<{labels}}  {'predicted':>14}  {'measured':>10}  {'error':>9}   [{outcome.unit}]"
    for prediction in outcome.predictions:
        predicted = predicted_text(prediction, outcome.unit)
        measured = value_text(prediction.measured, outcome.unit)
        yield f"  {prediction.label:<{labels}}  {predicted:>14}  {measured:>10}  {error_text(prediction):>9}"


def _summary(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield f"{'set':<16}{'calibrated':>11}{'predicted':>11}{'mean':>9}{'worst':>9}   {'target':<25}  result"
    for outcome in outcomes:
        mean, worst = error_texts(outcome, outcome.mean, outcome.worst)
        target = limit_text(outcome.target, band=is_band(outcome))
        counts = f"{len(outcome.calibration_rows):>11}{len(outcome.predictions):>11}"
        yield f"{outcome.name:<16}{counts}{mean:>9}{worst:>9}   {target:<25}  {result_text(outcome)}"
    speedups = [outcome.speedups for outcome in outcomes if outcome.speedups]
    if speedups:
        yield ""
        yield "speedups:"
        yield from (f"  {each}" for each in speedups)


def result_text(outcome: Outcome) -> str:
    """Return whether the target is met, and whether the set is worse than it was."""
    bound = limit_text(outcome.bound, band=False)
    if not outcome.holds:
        return f"{outcome.status}, WORSE than the bound ({bound})"
    return outcome.status if outcome.status == "met" else f"{outcome.status} (held to {bound})"


def _object(outcome: Outcome) -> dict[str, object]:
    return {
        "name": outcome.name,
        "title": outcome.title,
        "status": outcome.status,
        "holds": outcome.holds,
        "mean_error": outcome.mean,
        "worst_error": outcome.worst,
        "target": _limit(outcome.target),
        "bound": _limit(outcome.bound),
        "parameters": [
            {
                "part": parameter.part,
                "key": parameter.key,
                "value": float(parameter.value),
                "text": parameter.text,
                "how": parameter.how,
                "rows": [row.key for row in parameter.rows],
            }
            for parameter in outcome.parameters
        ],
        "rows": [
            {
                "row": prediction.row.key,
                "label": prediction.label,
                "unit": outcome.unit,
                "predicted": prediction.predicted * SCALE[outcome.unit],
                "low": None if prediction.low is None else prediction.low * SCALE[outcome.unit],
                "high": None if prediction.high is None else prediction.high * SCALE[outcome.unit],
                "measured": prediction.measured * SCALE[outcome.unit],
                "error": prediction.error,
            }
            for prediction in outcome.predictions
        ],
        "misses": outcome.misses,
        "caveat": outcome.caveat,
        "speedups": outcome.speedups,
    }


def _limit(limit: Limit | None) -> dict[str, float | None] | None:
    return None if limit is None else {"mean": limit.mean, "worst": limit.worst}

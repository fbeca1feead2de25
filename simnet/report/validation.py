"""Published sets for people: their numbers as text, in the terminal as on the page, and as data."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from simnet.calibration.comparison import coverage
from simnet.report.page import Page
from simnet.report.table import Column, Table
from simnet.report.text import percent
from simnet.validation.outcome import SCALE, Limit, Outcome, Prediction, Unit
from simnet.validation.published_rows import PublishedRow

DIGITS: dict[Unit, int] = {"ms": 1, "s": 3, "h": 1, "x": 2}
SUMMARY = (
    Column("set", width=16),
    Column("calibrated", "right", width=11, gap=0),
    Column("predicted", "right", width=11, gap=0),
    Column("mean", "right", width=9, gap=0),
    Column("worst", "right", width=9, gap=0),
    Column("inside 90 %", "right", width=12, gap=1),
    Column("target", width=25, gap=3),
    Column("result"),
)


def validation_page(outcomes: Sequence[Outcome]) -> Page:
    """Return every set with its parameters and rows, and a summary at the end."""
    blocks = [block for outcome in outcomes for block in (*_set(outcome), "")]
    return Page([*blocks, *_summary(outcomes)])


def _set(outcome: Outcome) -> Iterator[str | Table]:
    yield f"{outcome.name}: {outcome.title}"
    yield "  calibrated:"
    for parameter in outcome.parameters:
        yield f"    {parameter.part}: {parameter.key} = {parameter.text}, {parameter.how}: {rows_text(parameter.rows)}"
    columns = (
        Column("predicted rows", width=max(len(prediction.label) for prediction in outcome.predictions)),
        Column("predicted", "right", width=14),
        Column("measured", "right", width=10),
        Column("error", "right", width=9),
        Column("90 % interval", "right", width=18),
        Column(f"[{outcome.unit}]", gap=3),
    )
    yield Table(columns, ((one.label, *cells(one, outcome.unit), "") for one in outcome.predictions), indent=2)


def _summary(outcomes: Sequence[Outcome]) -> Iterator[str | Table]:
    rows = ((outcome.name, *summary_cells(outcome), result_text(outcome)) for outcome in outcomes)
    yield Table(SUMMARY, rows)
    if speedups := speedup_sentences(outcomes):
        yield ""
        yield "speedups:"
        yield from (f"  {each}" for each in speedups)


def summary_cells(outcome: Outcome) -> tuple[str, ...]:
    """Return how many rows were fitted and predicted, both errors, and the target."""
    counts = str(len(outcome.calibration_rows)), str(len(outcome.predictions))
    errors = error_texts(outcome, outcome.mean, outcome.worst)
    return (
        *counts,
        *errors,
        inside_text(coverage(outcome.predictions)),
        limit_text(outcome.target, band=is_band(outcome)),
    )


def inside_text(inside: tuple[int, int]) -> str:
    """Return how many values are inside their intervals: "11 of 12"; "" if none has one."""
    return "{} of {}".format(*inside) if inside[1] else ""


def result_text(outcome: Outcome) -> str:
    """Return whether the target is met, and whether the set is worse than it was."""
    bound = limit_text(outcome.bound, band=False)
    if not outcome.holds:
        return f"{outcome.status}, WORSE than the bound ({bound})"
    return outcome.status if outcome.status == "met" else f"{outcome.status} (held to {bound})"


def speedup_sentences(outcomes: Sequence[Outcome]) -> list[str]:
    """Return how well speedups are predicted, of each set that predicts one."""
    return [text for outcome in outcomes if (text := outcome.text("speedups"))]


def cells(prediction: Prediction, unit: Unit) -> tuple[str, str, str, str]:
    """Return predicted, measured, error and interval."""
    return (
        predicted_text(prediction, unit),
        value_text(prediction.measured, unit),
        error_text(prediction),
        _range_text(prediction.interval, unit) if prediction.interval else "",
    )


def value_text(value: float, unit: Unit) -> str:
    """Return a value in a set's unit, without the unit: "419.8"."""
    shown = value * SCALE[unit]
    return f"{shown:.{DIGITS[unit] + (unit == 'ms' and shown < 100)}f}"


def predicted_text(prediction: Prediction, unit: Unit) -> str:
    """Return the predicted value without its unit; of a band its two ends: "1.6 to 19.5"."""
    return _range_text(prediction.band, unit) if prediction.band else value_text(prediction.predicted, unit)


def _range_text(ends: tuple[float, float], unit: Unit) -> str:
    return " to ".join(value_text(end, unit) for end in ends)


def error_text(prediction: Prediction) -> str:
    """Return the error of a row with its sign: "+1.9 %", or whether it is inside a band."""
    return "inside" if prediction.band and prediction.error == 0 else percent(prediction.error, "+.1")


def limit_text(limit: Limit | None, *, band: bool) -> str:
    """Return a target: "mean <= 3 %, worst <= 6 %"."""
    if limit is None:
        return "none"
    if band:
        return "inside the band"
    named = (("mean", limit.mean), ("worst", limit.worst))
    return ", ".join(f"{name} ≤ {100 * value:g} %" for name, value in named if value is not None)


def error_texts(outcome: Outcome, mean: float, worst: float) -> tuple[str, str]:
    """Return a mean and a worst error of a set; inside a band there is none."""
    return ("inside", "inside") if is_band(outcome) and worst == 0 else (percent(mean), percent(worst))


def is_band(outcome: Outcome) -> bool:
    """Return whether the set predicts bands."""
    return all(prediction.band is not None for prediction in outcome.predictions)


def rows_text(rows: Iterable[PublishedRow]) -> str:
    """Return where rows stand: "measurements.csv lines 4, 19-21"."""
    by_file: dict[str, list[int]] = {}
    for row in rows:
        file, _, line = row.key.partition(":")
        by_file.setdefault(file, []).append(int(line))
    return "; ".join(f"{file} line{'s' * (len(lines) > 1)} {_ranges(sorted(lines))}" for file, lines in by_file.items())


def _ranges(numbers: list[int]) -> str:
    # Numbers that follow one another have the same distance from their places.
    starts = Counter(number - index for index, number in enumerate(numbers))
    texts, place = [], 0
    for count in starts.values():
        first, last = numbers[place], numbers[place + count - 1]
        texts.append(str(first) if count == 1 else f"{first}-{last}")
        place += count
    return ", ".join(texts)


def to_object(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Return sets as data."""
    return {
        "holds": all(outcome.holds for outcome in outcomes),
        "coverage": _coverage_object([one for outcome in outcomes for one in outcome.predictions]),
        "sets": [_object(outcome) for outcome in outcomes],
    }


def _coverage_object(predictions: Sequence[Prediction]) -> dict[str, int]:
    inside, rows = coverage(predictions)
    return {"inside": inside, "rows": rows}


def _object(outcome: Outcome) -> dict[str, object]:
    return {
        "name": outcome.name,
        "title": outcome.title,
        "status": outcome.status,
        "holds": outcome.holds,
        "mean_error": outcome.mean,
        "worst_error": outcome.worst,
        "coverage": _coverage_object(outcome.predictions),
        "target": outcome.target and asdict(outcome.target),
        "bound": asdict(outcome.bound),
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
        "rows": [_row_object(prediction, outcome.unit) for prediction in outcome.predictions],
        "misses": outcome.text("misses"),
        "caveat": outcome.text("caveat"),
        "speedups": outcome.text("speedups"),
    }


def _row_object(prediction: Prediction, unit: Unit) -> dict[str, object]:
    low, high = _ends(prediction.interval, unit)
    band_low, band_high = _ends(prediction.band, unit)
    return {
        "row": prediction.row.key,
        "label": prediction.label,
        "unit": unit,
        "predicted": prediction.predicted * SCALE[unit],
        "low": low,
        "high": high,
        "band_low": band_low,
        "band_high": band_high,
        "measured": prediction.measured * SCALE[unit],
        "error": prediction.error,
    }


def _ends(between: tuple[float, float] | None, unit: Unit) -> tuple[float | None, float | None]:
    return (between[0] * SCALE[unit], between[1] * SCALE[unit]) if between else (None, None)

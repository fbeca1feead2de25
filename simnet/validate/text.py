"""Numbers of a validation as text, the same in the terminal and on the page."""

from collections import Counter
from collections.abc import Iterable

from simnet.validate.measurements import Row
from simnet.validate.outcome import SCALE, Limit, Outcome, Prediction, Unit

DIGITS: dict[Unit, int] = {"ms": 1, "s": 3, "h": 1, "x": 2}


def value_text(value: float, unit: Unit) -> str:
    """Return a value in a set's unit, without the unit: "419.8"."""
    shown = value * SCALE[unit]
    return f"{shown:.{DIGITS[unit] + (unit == 'ms' and shown < 100)}f}"


def predicted_text(prediction: Prediction, unit: Unit) -> str:
    """Return what was predicted, a band as "1.6 to 19.5"."""
    if prediction.low is None or prediction.high is None:
        return value_text(prediction.predicted, unit)
    return f"{value_text(prediction.low, unit)} to {value_text(prediction.high, unit)}"


def error_text(prediction: Prediction) -> str:
    """Return the error of a row with its sign: "+1.9 %", or whether it is inside a band."""
    if prediction.low is not None and prediction.error == 0:
        return "inside"
    return f"{100 * prediction.error:+.1f} %"


def percent(fraction: float) -> str:
    """Return "2.0 %"."""
    return f"{100 * fraction:.1f} %"


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
    """Tell whether the set predicts bands."""
    return all(prediction.low is not None for prediction in outcome.predictions)


def rows_text(rows: Iterable[Row]) -> str:
    """Return where rows stand: "measurements.csv lines 4, 19-21"."""
    by_file: dict[str, list[int]] = {}
    for row in rows:
        file, _, line = row.key.partition(":")
        by_file.setdefault(file, []).append(int(line))
    return "; ".join(f"{file} line{'s' * (len(lines) > 1)} {_ranges(sorted(lines))}" for file, lines in by_file.items())


def _ranges(numbers: list[int]) -> str:
    starts: Counter[int] = Counter()
    for index, number in enumerate(numbers):
        starts[number - index] += 1
    texts, place = [], 0
    for count in starts.values():
        first, last = numbers[place], numbers[place + count - 1]
        texts.append(str(first) if count == 1 else f"{first}-{last}")
        place += count
    return ", ".join(texts)

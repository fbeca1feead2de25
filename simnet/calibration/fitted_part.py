"""The result of one fit, and the tools that the fits share: bounds, intervals, the choice of columns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simnet.calibration.comparison import Comparison, by_series, mean_error
from simnet.calibration.solvers import non_negative_least_squares
from simnet.core.bounded_types import MAX_SPREAD
from simnet.core.errors import SimnetError
from simnet.core.units import Duration

Floats = NDArray[np.float64]
Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class FittedPart:
    """A part of a calibration.

    Attributes:
        table: keys and values as in a calibration file, without intervals.
        shown: text of every fitted number with its interval, by name.
        intervals: 90 % interval of a value as two factors on the value, by dotted key of a calibration.
        residuals: of every fitted and every held-out row [s].
        notes: sentences for the reader.
        is_checked: whether `check_errors` refuses the fit where it explains its rows badly.
    """

    table: Mapping[str, object]
    shown: Mapping[str, str] = field(default_factory=dict)
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    residuals: tuple[Comparison, ...] = ()
    notes: tuple[str, ...] = ()
    is_checked: bool = True


def checked_residuals(parts: Iterable[FittedPart]) -> list[Comparison]:
    """Return the residuals of the parts that `check_errors` checks."""
    return [residual for part in parts if part.is_checked for residual in part.residuals]


def check_errors(residuals: Iterable[Comparison], bound: float) -> None:
    """Refuse fits that explain their own rows badly.

    Args:
        residuals: held-out rows are ignored.
        bound: largest mean absolute relative error of a series.

    Raises:
        SimnetError: a series is above the bound.
    """
    for series, rows in by_series(one for one in residuals if one.role == "fitted").items():
        mean = mean_error(rows)
        if mean > bound:
            raise SimnetError(
                f"{series}: a mean error of {mean:.1%}: at most {bound:.0%} is accepted; measure again, leave out the "
                "files that differ, or accept the fit with --accept-poor-fit"
            )


def widen(factors: Interval, residuals: Sequence[Comparison]) -> Interval:
    """Return the interval of a fitted number, widened by the scatter of single rows about the fit.

    A bootstrap says how well the number itself is known. A new row also scatters about the fit, as the fitted rows do.

    Args:
        factors: the interval as factors on the number.
        residuals: at least one.
    """
    # Independent relative spreads add in squares of their logarithms.
    ratios = np.log([residual.measured / residual.predicted for residual in residuals])
    low, high = np.percentile(ratios, [5.0, 95.0])
    return (
        float(np.exp(-np.hypot(np.log(factors[0]), min(low, 0.0)))),
        min(float(np.exp(np.hypot(np.log(factors[1]), max(high, 0.0)))), MAX_SPREAD),
    )


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 row", "2 rows"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def duration_text(seconds: float) -> str:
    """Return a fitted time as text for a file, with four significant digits."""
    return Duration(float(f"{seconds:.4g}")).text()


def text_with_interval(value: float, spread: Interval | None, text: Callable[[float], str]) -> str:
    """Return the text of a fitted number and its 90 % interval, given as factors on the number."""
    return text(value) + (f" (90 %: {text(value * spread[0])} to {text(value * spread[1])})" if spread else "")


def choose_columns(columns: Mapping[str, Floats], times: Floats, always: Sequence[str], gain: float) -> tuple[str, ...]:
    """Return the columns of a fit by forward selection: those of `always`, then each that lowers the error enough.

    Args:
        columns: one value a row, by name.
        times: above zero.
        always: names of columns that are always kept.
        gain: fraction by which a further column must lower the mean absolute relative error.
    """

    def error(names: Sequence[str]) -> float:
        matrix = np.stack([columns[name] for name in names], axis=1)
        return float(np.mean(np.abs(matrix @ non_negative_least_squares(matrix, times) / times - 1)))

    chosen = [name for name in always if columns[name].any()]
    others = [name for name in columns if name not in always and columns[name].any()]
    best = error(chosen) if chosen else np.inf
    while others:
        errors = {name: error([*chosen, name]) for name in others}
        name = min(errors, key=errors.__getitem__)
        # The second test ends the search on exact data, where rounding alone would pass the first.
        if errors[name] > best * (1 - gain) or errors[name] > best - 1e-9:
            break
        best = errors[name]
        chosen.append(name)
        others.remove(name)
    return tuple(chosen)


Resample = Callable[[np.random.Generator], Mapping[str, float]]
"""Fits to one resample; returns values under the names of the fit itself."""

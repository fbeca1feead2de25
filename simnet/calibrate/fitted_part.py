"""What a fit comes to, and which costs a linear fit needs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simnet.comparison import Comparison, by_series, mean_error
from simnet.errors import SimnetError
from simnet.numeric import non_negative
from simnet.units import Duration

Floats = NDArray[np.float64]
Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class FittedPart:
    """A part of a calibration.

    Attributes:
        table: keys and values as they stand in a calibration file, without intervals.
        shown: every fitted number with its interval, for people, by name.
        intervals: dotted key of a calibration to the 90 % interval of its value, as factors on it.
        residuals: of every row that was fitted or held out, in seconds.
        notes: what the reader has to know, a sentence each.
        is_checked: whether a fit that explains its rows badly is to be refused.
    """

    table: Mapping[str, object]
    shown: Mapping[str, str] = field(default_factory=dict)
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    residuals: tuple[Comparison, ...] = ()
    notes: tuple[str, ...] = ()
    is_checked: bool = True


def checked_residuals(parts: Iterable[FittedPart]) -> list[Comparison]:
    """Return the rows of the parts that `check_errors` is to judge."""
    return [residual for part in parts if part.is_checked for residual in part.residuals]


def check_errors(residuals: Iterable[Comparison], bound: float) -> None:
    """Refuse fits that explain what they were fitted to badly.

    Args:
        residuals: held-out rows are not looked at.
        bound: the largest mean relative error of a series.

    Raises:
        SimnetError: a series is above the bound.
    """
    for series, rows in by_series(one for one in residuals if one.role == "fitted").items():
        mean = mean_error(rows)
        if mean > bound:
            raise SimnetError(
                f"{series}: the fit is off by {mean:.1%} on average: at most {bound:.0%} is taken for an explanation; "
                "measure again, leave out what differs, or write it all the same with --accept-poor-fit"
            )


def widen(factors: Interval, residuals: Sequence[Comparison]) -> Interval:
    """Return the interval of a fitted number, widened by how far single rows lie off the fit.

    A bootstrap tells how well a number is known; what a further row would take scatters about it like these.

    Args:
        factors: the interval as factors on the number.
        residuals: at least one.
    """
    ratios = np.log([residual.measured / residual.predicted for residual in residuals])
    low, high = np.percentile(ratios, [5.0, 95.0])
    return (
        float(np.exp(-np.hypot(np.log(factors[0]), min(low, 0.0)))),
        float(np.exp(np.hypot(np.log(factors[1]), max(high, 0.0)))),
    )


def duration_text(seconds: float) -> str:
    """Return a fitted time as it stands in a file, in four digits."""
    return Duration(float(f"{seconds:.4g}")).text()


def text_with_interval(value: float, spread: Interval | None, text: Callable[[float], str]) -> str:
    """Return a fitted number with its 90 % interval, given as factors on it, for people."""
    return text(value) + (f" (90 %: {text(value * spread[0])} to {text(value * spread[1])})" if spread else "")


def choose_columns(columns: Mapping[str, Floats], times: Floats, always: Sequence[str], gain: float) -> tuple[str, ...]:
    """Return the columns that a fit needs: those of `always`, and each that lowers the mean error by this fraction.

    Args:
        columns: by name, each with one value a row.
        times: above zero.
        always: names of columns that are kept.
        gain: how much smaller the mean absolute relative error must become, as a fraction of what it is.
    """

    def error(names: Sequence[str]) -> float:
        matrix = np.stack([columns[name] for name in names], axis=1)
        return float(np.mean(np.abs(matrix @ non_negative(matrix, times) / times - 1)))

    chosen = [name for name in always if columns[name].any()]
    others = [name for name in columns if name not in always and columns[name].any()]
    best = error(chosen) if chosen else np.inf
    while others:
        errors = {name: error([*chosen, name]) for name in others}
        name = min(errors, key=errors.__getitem__)
        if errors[name] > best * (1 - gain) or errors[name] > best - 1e-9:
            break
        best = errors[name]
        chosen.append(name)
        others.remove(name)
    return tuple(chosen)


Resample = Callable[[np.random.Generator], Mapping[str, float]]
"""Fit to samples drawn anew; returns values by the same names as the fit itself."""

"""What a fit comes to, and the linear fit that all of them but NCCL's use."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simnet.errors import SimnetError
from simnet.units import Duration

Floats = NDArray[np.float64]
MAX_ROUNDS = 30
HUBER = 0.05
"""Relative residual from which on a row weighs less: a tenth of a second off is no reason to bend a fit."""


@dataclass(frozen=True, kw_only=True)
class Residual:
    """A measured time [s] and what the fit makes of it [s].

    `is_held_out` if the fit has not seen it; `is_judged` if a fit that explains it badly is to be refused.
    """

    group: str
    label: str
    measured_s: float
    fitted_s: float
    is_held_out: bool = False
    is_judged: bool = True

    @property
    def error(self) -> float:
        """Relative error with its sign: fitted / measured - 1."""
        return self.fitted_s / self.measured_s - 1


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A part of a calibration.

    Attributes:
        table: keys and values as they stand in a calibration file, without intervals.
        shown: every fitted number with its interval, for people, by name.
        intervals: dotted key of a calibration to the 90 % interval of its value, as factors on it.
        residuals: of every row that was fitted or held out.
        notes: what the reader has to know, a sentence each.
    """

    table: Mapping[str, object]
    shown: Mapping[str, str] = field(default_factory=dict)
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    residuals: tuple[Residual, ...] = ()
    notes: tuple[str, ...] = ()


def mean_error(residuals: Sequence[Residual]) -> float:
    """Return the mean absolute relative error, 0 of none."""
    return sum(abs(residual.error) for residual in residuals) / len(residuals) if residuals else 0.0


def check_errors(residuals: Sequence[Residual], bound: float) -> None:
    """Refuse fits that explain what they were fitted to badly.

    Args:
        residuals: held-out rows, and those that are not to be judged, are not looked at.
        bound: the largest mean relative error of a group.

    Raises:
        SimnetError: a group is above the bound.
    """
    fitted = [residual for residual in residuals if residual.is_judged and not residual.is_held_out]
    for group in dict.fromkeys(residual.group for residual in fitted):
        mean = mean_error([residual for residual in fitted if residual.group == group])
        if mean > bound:
            raise SimnetError(
                f"{group}: the fit is off by {mean:.1%} on average: at most {bound:.0%} is taken for an explanation; "
                "measure again, leave out what differs, or write it all the same with --accept-poor-fit"
            )


def widened(factors: tuple[float, float], residuals: Sequence[Residual]) -> tuple[float, float]:
    """Return the interval of a fitted number, widened by how far single rows lie off the fit.

    A bootstrap tells how well a number is known; what a further row would take scatters about it like these.

    Args:
        factors: the interval as factors on the number.
        residuals: at least one.
    """
    ratios = np.log([residual.measured_s / residual.fitted_s for residual in residuals])
    low, high = np.percentile(ratios, [5.0, 95.0])
    return (
        float(np.exp(-np.hypot(np.log(factors[0]), min(low, 0.0)))),
        float(np.exp(np.hypot(np.log(factors[1]), max(high, 0.0)))),
    )


def duration_text(seconds: float) -> str:
    """Return a fitted time as it stands in a file, in four digits."""
    return Duration(float(f"{seconds:.4g}")).text()


def non_negative(columns: Floats, times: Floats) -> Floats:
    """Return the non-negative coefficients with the least squares of relative errors, rows far off weighing less.

    Args:
        columns: a row for each time, a column for each coefficient; that of a column of zeros is 0.
        times: above zero.

    Source: Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23, on rows divided by their times;
        reweighted after Huber, "Robust Statistics", 1981.

    Example:
        >>> rows = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 4.0]])
        >>> non_negative(rows, rows @ np.array([3.0, 2.0])).round(6).tolist()
        [3.0, 2.0]
    """
    relative = columns / times[:, None]
    norms = np.linalg.norm(relative, axis=0)
    scale = np.where(norms > 0, norms, 1.0)
    weights = np.ones(len(times))
    found = np.zeros(columns.shape[1])
    for _ in range(MAX_ROUNDS):
        before, found = found, _nnls(relative / scale * weights[:, None], weights) / scale
        if np.allclose(found, before, rtol=1e-6, atol=0):
            break
        weights = np.sqrt(HUBER / np.maximum(np.abs(relative @ found - 1), HUBER))
    return found


def _nnls(matrix: Floats, target: Floats) -> Floats:
    """Return the x >= 0 with the least |matrix x - target|."""
    found = np.zeros(matrix.shape[1])
    is_free = np.zeros(matrix.shape[1], dtype=bool)
    for _ in range(3 * matrix.shape[1]):
        gain = matrix.T @ (target - matrix @ found)
        gain[is_free] = -np.inf
        if gain.max(initial=-np.inf) <= 1e-12:
            break
        is_free[gain.argmax()] = True
        found = _within(matrix, target, found, is_free)
    return found


def _within(matrix: Floats, target: Floats, found: Floats, is_free: NDArray[np.bool_]) -> Floats:
    """Move to the least squares over the free columns, fixing at zero those that would turn negative on the way."""
    while True:
        tried = np.zeros_like(found)
        tried[is_free] = np.linalg.lstsq(matrix[:, is_free], target, rcond=None)[0]
        falling = is_free & (tried <= 0)
        if not falling.any():
            return tried
        steps = found[falling] / np.maximum(found[falling] - tried[falling], 1e-300)
        found = found + steps.min() * (tried - found)
        is_free &= found > 1e-15
        found[~is_free] = 0.0
        if not is_free.any():
            return found


def needed_columns(columns: Mapping[str, Floats], times: Floats, always: Sequence[str], gain: float) -> tuple[str, ...]:
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


Draw = Callable[[np.random.Generator], Mapping[str, float]]
"""Fit to samples drawn anew; returns values by the same names as the fit itself."""

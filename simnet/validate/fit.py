"""Fit parameters of a simulation to measured values: a root, or least squares."""

from collections.abc import Callable, Sequence

from simnet.errors import SimnetError

MAX_STEPS = 60
MAX_HALVINGS = 6
RELATIVE_STEP = 1e-6
RELATIVE_TOLERANCE = 1e-8


def root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a monotonic function between `low` and `high` is zero, by regula falsi (Illinois).

    Raises:
        SimnetError: the function has the same sign at both ends.

    Example:
        >>> round(root(lambda x: x * x - 2, 0, 2), 9)
        1.414213562
    """
    at_low, at_high = function(low), function(high)
    if at_low * at_high > 0:
        raise SimnetError(f"calibration: no value between {low:g} and {high:g} meets the rows; check measurements.csv")
    for _ in range(MAX_STEPS):
        middle = high - at_high * (high - low) / (at_high - at_low) if at_high != at_low else high
        at_middle = function(middle)
        if at_middle * at_high <= 0:
            low, at_low = high, at_high
        else:
            at_low /= 2
        moved, high, at_high = abs(middle - high), middle, at_middle
        if moved <= RELATIVE_TOLERANCE * abs(high) or at_high == 0:
            break
    return high


def least_squares(residuals: Callable[[Sequence[float]], Sequence[float]], start: Sequence[float]) -> tuple[float, ...]:
    """Return the parameters with the least sum of squared residuals, by Gauss-Newton with halved steps.

    Args:
        residuals: of parameters, one each; nearly linear.
        start: first guess, no zeros.

    Example:
        >>> [round(x, 6) for x in least_squares(lambda p: [p[0] - 2, p[0] + p[1] - 5], [1, 1])]
        [2.0, 3.0]
    """
    import numpy as np

    def at(parameters: Sequence[float]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        return np.array(residuals(parameters), dtype=np.float64)

    found = np.array(start, dtype=np.float64)
    misfit = at(found.tolist())
    for _ in range(MAX_STEPS):
        nudges = np.diag(found * RELATIVE_STEP)
        slopes = np.stack([(at((found + nudge).tolist()) - misfit) / nudge.sum() for nudge in nudges], axis=1)
        step = np.linalg.lstsq(slopes, -misfit, rcond=None)[0]
        for _ in range(MAX_HALVINGS):
            moved = at((found + step).tolist())
            if moved @ moved < misfit @ misfit:
                break
            step = step / 2
        else:
            break
        gained = 1 - moved @ moved / (misfit @ misfit)
        found, misfit = found + step, moved
        if gained <= RELATIVE_TOLERANCE:
            break
    return tuple(found.tolist())

"""Numbers that meet rows: a root, and the least squares of residuals, by scipy, which loads where a fit is made."""

from collections.abc import Callable, Sequence

from simnet.errors import SimnetError

RELATIVE_TOLERANCE = 1e-8
RELATIVE_STEP = 1e-6
"""By which a parameter is nudged to find its slopes: far above rounding, far below what bends a simulation."""


def root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a continuous function between `low` and `high` is zero, by Brent's method.

    Raises:
        SimnetError: the function has the same sign at both ends.

    Example:
        >>> round(root(lambda x: x * x - 2, 0, 2), 9)
        1.414213562
    """
    from scipy.optimize import brentq

    try:
        return float(brentq(function, low, high, xtol=RELATIVE_TOLERANCE**2 * (high - low), rtol=RELATIVE_TOLERANCE))
    except ValueError as error:
        raise SimnetError(
            f"calibration: no value between {low:g} and {high:g} meets the rows; check measurements.csv"
        ) from error


def least_squares(residuals: Callable[[Sequence[float]], Sequence[float]], start: Sequence[float]) -> tuple[float, ...]:
    """Return the parameters with the least sum of squared residuals, by Levenberg and Marquardt's method.

    Args:
        residuals: of parameters; as many as parameters at least.
        start: first guess, no zeros.

    Example:
        >>> [round(x, 6) for x in least_squares(lambda p: [p[0] - 2, p[0] + p[1] - 5], [1, 1])]
        [2.0, 3.0]
    """
    import numpy as np
    from scipy.optimize import least_squares as minimized

    def at(tried: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        return np.array(residuals(tried.tolist()), dtype=np.float64)

    found = minimized(at, np.array(start), method="lm", diff_step=[RELATIVE_STEP] * len(start))
    return tuple(map(float, found.x))

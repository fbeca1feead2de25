"""A root of a function and least squares, by scipy, which loads only where a fit is made."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from simnet.core.errors import SimnetError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

RELATIVE_TOLERANCE = 1e-8
# Finite differences: far above the rounding of a simulation, far below the scale on which its times bend.
RELATIVE_STEP = 1e-6
MAX_ROUNDS = 30
# Relative residual beyond which a row counts by its distance and not by the square of the distance.
HUBER = 0.05


def find_root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a continuous function between `low` and `high` is zero, by Brent's method.

    Raises:
        SimnetError: the function has the same sign at both ends.

    Example:
        >>> round(find_root(lambda x: x * x - 2, 0, 2), 9)
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


def non_negative_least_squares(columns: "Floats", times: "Floats") -> "Floats":
    """Return the non-negative coefficients with the least squares of relative errors, outliers weighing less.

    Args:
        columns: a row for each time, a column for each coefficient; that of a column of zeros is 0.
        times: above zero.

    Source: Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23, on rows divided by their times;
        reweighted after Huber, "Robust Statistics", 1981. Not `least_squares(loss="huber")`, which stays inside the
        bounds: a cost that is absent must come out as exactly 0, since the file then leaves it out.

    Example:
        >>> import numpy as np
        >>> rows = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 4.0]])
        >>> non_negative_least_squares(rows, rows @ np.array([3.0, 2.0])).round(6).tolist()
        [3.0, 2.0]
    """
    import numpy as np
    from scipy.optimize import nnls

    # Divided by its time, each row counts by its relative error. Scaled to one length, columns of seconds and columns
    # of bytes meet the same tolerance of the solver.
    relative = columns / times[:, None]
    norms = np.linalg.norm(relative, axis=0)
    scale = np.where(norms > 0, norms, 1.0)
    weights = np.ones(len(times))
    found = np.zeros(columns.shape[1])
    for _ in range(MAX_ROUNDS):
        before, found = found, nnls(relative / scale * weights[:, None], weights)[0] / scale
        if np.allclose(found, before, rtol=1e-6, atol=0):
            break
        # Weight squared times residual squared is then linear in the residual beyond HUBER.
        weights = np.sqrt(HUBER / np.maximum(np.abs(relative @ found - 1), HUBER))
    return found

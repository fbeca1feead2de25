"""Bootstrap intervals of fitted numbers: the same fit, repeated on resampled measurements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from simnet.calibration.fitted_part import Floats, Interval, Resample
from simnet.core.bounded_types import MAX_SPREAD
from simnet.core.errors import SimnetError

DRAWS = 200
SEED = 20260101
LOW, HIGH = 5.0, 95.0
"""Percentiles of a 90 % interval."""
MIN_FACTOR = 0.01
"""Replaces a factor of 0 (a resample whose fit does without the cost), since draws take the logarithm of a factor."""
MIN_FITTED_SHARE = 0.5
"""Share of the wanted resamples that must have a fit. A resample may have none, such as one with a single size."""
MAX_DRAWS_RATIO = 10
"""Resamples tried at most, as a multiple of those wanted; if too few of these have a fit, there are too few rows."""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """A row to fit: every repetition of one measured time."""

    samples_s: Floats

    @property
    def median_s(self) -> float:
        """Median of the repetitions [s]."""
        return float(np.median(self.samples_s))


AnySamples = TypeVar("AnySamples", bound=Samples)


def interval_factors(
    point: Mapping[str, float], draw: Resample, draws: int = DRAWS, seed: int = SEED
) -> dict[str, Interval]:
    """Return the 90 % interval of every fitted value, as two factors on it: `MIN_FACTOR` to 1, and 1 to `MAX_SPREAD`.

    A value of zero has no factors and is left out. A value of nearly zero has the upper factor `MAX_SPREAD`, which says
    that the rows do not determine it.

    Args:
        point: the fitted values by name.
        draw: fits once to a resample that it draws with the given generator.
        draws: number of resamples with a fit.
        seed: of the generator.

    Raises:
        SimnetError: nearly no resample could be fitted.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, percentile interval, chapter 13.

    Example:
        >>> low, high = interval_factors({"mean": 10.0}, lambda rng: {"mean": rng.normal(10.0, 1.0)})["mean"]
        >>> 0.8 < low < 0.9 and 1.1 < high < 1.2
        True
    """
    rng = np.random.default_rng(seed)
    found: list[Mapping[str, float]] = []
    for tried in range(MAX_DRAWS_RATIO * draws):
        if tried >= draws and len(found) >= draws * MIN_FITTED_SHARE:
            break
        try:
            found.append(draw(rng))
        # A resample with few distinct rows may leave a cost undetermined, which is no evidence about its size.
        except (SimnetError, np.linalg.LinAlgError):
            continue
    if len(found) < draws * MIN_FITTED_SHARE:
        raise SimnetError(
            "bootstrap: fewer than one resample in twenty has a fit; measure more sizes, or give more files"
        )
    return {name: _interval([one[name] / value for one in found]) for name, value in point.items() if value > 0}


def resampled_median(samples: Floats, rng: np.random.Generator) -> float:
    """Return the median of a resample of the same size."""
    return float(np.median(rng.choice(samples, size=len(samples))))


def resample_rows(rows: Sequence[AnySamples], rng: np.random.Generator) -> tuple[list[AnySamples], list[float]]:
    """Return a two-level resample: rows drawn from the rows, and for each the median of resampled repetitions [s]."""
    # The rows vary the choice of sizes and groups, the repetitions vary the noise of one measurement.
    picked = [rows[pick] for pick in rng.integers(len(rows), size=len(rows))]
    return picked, [resampled_median(row.samples_s, rng) for row in picked]


def _interval(ratios: list[float]) -> Interval:
    low, high = np.percentile(ratios, [LOW, HIGH])
    # The fitted value must lie in its interval, even if every resample falls on one side of it.
    return min(max(float(low), MIN_FACTOR), 1.0), min(max(float(high), 1.0), MAX_SPREAD)

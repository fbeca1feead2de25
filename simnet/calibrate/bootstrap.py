"""Intervals of fitted numbers: the same fit on samples drawn from the samples, many times over."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from simnet.calibrate.fitted_part import Floats, Interval, Resample
from simnet.errors import SimnetError

DRAWS = 200
SEED = 20260101
LOW, HIGH = 5.0, 95.0
"""Percentiles of a 90 % interval."""
MIN_FACTOR = 0.01
"""Stands for 0, which draws of a value that some fits do without would give: factors are drawn on a log scale."""
MIN_FITTED_SHARE = 0.5
"""Draws without a fit (all rows of one size, say) are left out; more are drawn until this part of them has one."""
MAX_DRAWS_RATIO = 10
"""Times as many draws as were asked for: with fewer than one fit in twenty of these, the rows are too few."""


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
    """Return the 90 % interval of every value, as factors on it, that hold 1 between them.

    Values that are zero have no factors and are left out.

    Args:
        point: the fit itself, by name.
        draw: fits once to samples drawn with the generator that it is given.
        draws: how often.
        seed: of the generator.

    Raises:
        SimnetError: nearly no draw could be fitted.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, percentile interval, chapter 13.

    Example:
        >>> low, high = factors({"mean": 10.0}, lambda rng: {"mean": rng.normal(10.0, 1.0)})["mean"]
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
        # A draw of few distinct rows does not tell all costs apart: it says nothing about them.
        except (SimnetError, np.linalg.LinAlgError):
            continue
    if len(found) < draws * MIN_FITTED_SHARE:
        raise SimnetError(
            "bootstrap: nearly no draw can be fitted: too few rows; measure more sizes, or give more files"
        )
    return {name: _interval([one[name] / value for one in found]) for name, value in point.items() if value > 0}


def resampled_median(samples: Floats, rng: np.random.Generator) -> float:
    """Return the median of as many samples drawn from these."""
    return float(np.median(rng.choice(samples, size=len(samples))))


def resample_rows(rows: Sequence[AnySamples], rng: np.random.Generator) -> tuple[list[AnySamples], list[float]]:
    """Return as many rows drawn from these, and the median of samples drawn from those of each [s]."""
    picked = [rows[pick] for pick in rng.integers(len(rows), size=len(rows))]
    return picked, [resampled_median(row.samples_s, rng) for row in picked]


def _interval(ratios: list[float]) -> Interval:
    low, high = np.percentile(ratios, [LOW, HIGH])
    # The fit belongs to its interval, also where the draws are skewed to one side of it.
    return min(max(float(low), MIN_FACTOR), 1.0), max(float(high), 1.0)

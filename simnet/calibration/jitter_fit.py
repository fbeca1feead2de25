"""Fit how the compute of ranks varies from step to step: a lognormal, or quantiles where that does not fit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simnet.calibration.fitted_part import Floats

MIN_CV = 0.001
"""Below it, clocks and rounding vary as much."""
MOST_SAMPLES = 200
CRITICAL = 0.895
"""Of the Kolmogorov-Smirnov test at 5 % where mean and variance are those of the sample; see `fits_lognormal`."""


@dataclass(frozen=True, kw_only=True)
class FittedJitter:
    """Factors of mean 1 on compute.

    Attributes:
        cv: standard deviation / mean.
        samples: quantiles of the factors where they are not lognormal; else ().
    """

    cv: float
    samples: tuple[float, ...] = ()


def fit(times_s: Sequence[Floats]) -> FittedJitter | None:
    """Return how ranks vary around their own means; None where they hardly do.

    Args:
        times_s: of each rank, without pauses [s].
    """
    factors = np.concatenate([mine / mine.mean() for mine in times_s])
    deviation = float(np.log(factors).std(ddof=1))
    cv = math.sqrt(math.expm1(deviation**2))
    if cv < MIN_CV:
        return None
    if fits_lognormal(factors):
        return FittedJitter(cv=cv)
    return FittedJitter(cv=float(factors.std(ddof=1)), samples=quantiles(factors))


def fits_lognormal(factors: Floats) -> bool:
    """Tell whether a lognormal with the mean and variance of the logarithms fits, by Kolmogorov and Smirnov at 5 %.

    Source: Stephens, "EDF statistics for goodness of fit and some comparisons", JASA 69, 1974, table 1.3: the
        parameters are those of the sample, for which the usual table would hardly ever refuse.
    """
    from scipy.stats import kstest

    logs = np.log(factors)
    distance = float(kstest((logs - logs.mean()) / logs.std(ddof=1), "norm").statistic)
    root = math.sqrt(len(factors))
    return distance * (root - 0.01 + 0.85 / root) < CRITICAL


def quantiles(factors: Floats) -> tuple[float, ...]:
    """Return at most `MOST_SAMPLES` quantiles, each of which stands for as many of the factors."""
    number = min(MOST_SAMPLES, len(factors))
    found = np.quantile(factors, (np.arange(number) + 0.5) / number)
    return tuple(float(one) for one in np.round(found / found.mean(), 4))


def common_part(logs: Floats) -> float:
    """Return which part of the variance all ranks have in common in a step, 0 where that may be chance.

    Args:
        logs: logarithms of factors, a row a rank; nan where a rank paused.

    Source: the intraclass correlation of a one-way analysis of variance (Shrout and Fleiss, Psychological Bulletin 86,
        1979).
    """
    whole = logs[:, ~np.isnan(logs).any(axis=0)]
    num_ranks, num_steps = whole.shape
    if num_steps < 3:
        return 0.0
    between = num_ranks * float(whole.mean(axis=0).var(ddof=1))
    within = float(whole.var(axis=0, ddof=1).mean())
    if between + (num_ranks - 1) * within <= 0:
        return 0.0
    part = (between - within) / (between + (num_ranks - 1) * within)
    deviation = math.sqrt(2 / ((num_steps - 1) * num_ranks * (num_ranks - 1)))
    return part if part > 3 * deviation else 0.0

"""Predicted against measured: the one row of every such table and figure, and what several of them come to.

Published sets, measured steps, lab campaigns and the residuals of a calibration all are tuples of `Comparison`. A table
that says more of a row derives a class with more fields: `class Prediction(Comparison)` adds the published row.
A residual of a calibration is a `Comparison` with its group as `series`, the fitted time as `predicted`, and the role
"fitted" or "held out".
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

Role = Literal["fitted", "held out", "predicted"]
"""Whether a fit saw the row, was kept from it, or no fit of this table concerns it."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A measured value and what a model says of it, both in seconds, or both plain ratios such as speedups.

    Attributes:
        series: rows of one series share a colour, and a mean of their own.
        label: of this row within a table.
        interval: of the prediction, 90 %; None if it has none.
    """

    series: str
    label: str
    measured: float
    predicted: float
    interval: tuple[float, float] | None = None
    role: Role = "predicted"

    @property
    def error(self) -> float:
        """Relative error with its sign: predicted / measured - 1."""
        return self.predicted / self.measured - 1

    @property
    def is_inside(self) -> bool | None:
        """Tell whether the measured value lies in the predicted interval; None without one."""
        if self.interval is None:
            return None
        return self.interval[0] <= self.measured <= self.interval[1]


AnyComparison = TypeVar("AnyComparison", bound=Comparison)


def mean_error(comparisons: Sequence[Comparison]) -> float:
    """Return the mean of the absolute relative errors; 0 of none."""
    return sum(abs(comparison.error) for comparison in comparisons) / len(comparisons) if comparisons else 0.0


def mean_signed_error(comparisons: Sequence[Comparison]) -> float:
    """Return the mean of the relative errors, above 0 where predictions are too large; 0 of none."""
    return sum(comparison.error for comparison in comparisons) / len(comparisons) if comparisons else 0.0


def worst_row(comparisons: Iterable[AnyComparison]) -> AnyComparison:
    """Return the row with the largest absolute relative error, of at least one."""
    return max(comparisons, key=lambda comparison: abs(comparison.error))


def worst_error(comparisons: Sequence[Comparison]) -> float:
    """Return the largest absolute relative error; 0 of none."""
    return abs(worst_row(comparisons).error) if comparisons else 0.0


def within(comparisons: Sequence[Comparison], mean_percent: float | None, worst_percent: float | None) -> bool:
    """Tell whether mean and worst error are at most these limits [%]; None: not limited."""
    reached = 100 * mean_error(comparisons), 100 * worst_error(comparisons)
    limits = mean_percent, worst_percent
    return all(limit is None or error <= limit for error, limit in zip(reached, limits, strict=True))


def coverage(comparisons: Iterable[Comparison]) -> tuple[int, int]:
    """Return how many measured values lie inside their intervals, and how many rows have one.

    Example:
        >>> row = Comparison(series="a", label="a", measured=1.0, predicted=1.1, interval=(1.05, 1.2))
        >>> coverage([row])
        (0, 1)
    """
    inside = [comparison.is_inside for comparison in comparisons if comparison.is_inside is not None]
    return sum(inside), len(inside)


def by_series(comparisons: Iterable[AnyComparison]) -> dict[str, list[AnyComparison]]:
    """Return the rows of each series, both in their first order."""
    grouped: dict[str, list[AnyComparison]] = {}
    for comparison in comparisons:
        grouped.setdefault(comparison.series, []).append(comparison)
    return grouped

"""Means over seeds, with their intervals."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's t by number of seeds, two-sided


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean with its 95 % interval over seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        """Return that of two or more values, one a seed."""
        mean = statistics.fmean(values)
        half = T_95[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
        return cls(mean=mean, low=mean - half, high=mean + half)

    @classmethod
    def paired(cls, ours: Sequence[float], theirs: Sequence[float]) -> "Interval":
        """Return that of the differences between runs with the same seeds, in the same order."""
        return cls.of([our - their for our, their in zip(ours, theirs, strict=True)])

"""The nouns of time lost by cause: times of an iteration, and what each fault of a cluster adds to them."""

from msgspec import Struct


class StepTimes(Struct, frozen=True, kw_only=True, gc=False):
    """Times of an iteration, or differences of such times, which may be negative.

    Attributes:
        mean_s: mean [s].
        p50_s: median [s].
        p95_s: time that 95 % do not exceed [s].
    """

    mean_s: float
    p50_s: float
    p95_s: float

    def minus(self, other: "StepTimes") -> "StepTimes":
        """Return how much longer these are than others."""
        return StepTimes(
            mean_s=self.mean_s - other.mean_s, p50_s=self.p50_s - other.p50_s, p95_s=self.p95_s - other.p95_s
        )


class LostToFault(Struct, frozen=True, kw_only=True, gc=False):
    """What an iteration takes longer than without one fault, all others as they are.

    Attributes:
        key: of the fault, such as "cluster.faults.0".
        lost: mean, median and 95th percentile with it less those without it.
    """

    key: str
    lost: StepTimes


class LostTime(Struct, frozen=True, kw_only=True, gc=False):
    """What faults cost an iteration, each by itself and all together.

    Attributes:
        faults: each by itself, in the order of the cluster file.
        together: what all of them cost.
        interaction: what is left of `together` less the sum over `faults`: above 0 where faults hide each other, so
            that to remove one alone gains less; below 0 where each makes the others worse.
    """

    faults: tuple[LostToFault, ...]
    together: StepTimes
    interaction: StepTimes

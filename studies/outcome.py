"""What the final runs of the comparison say: means, differences to the dense reference, steps to a target."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from studies.contenders import SETTINGS, Row, best_of, mean_loss
from studies.tasks import TASKS
from studies.written import Written

DENSE = ("adam", "sgd")
TARGET_SHARE = 0.95
"""Of the way from a guess down to the reference's final loss: where the target of a task lies. Fixed before any final
run."""
TARGET_RANKS = 4
AT_A_GUESS = 0.95
"""Of the loss of a guess: a run that ends above has learned nothing that lasted."""
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t by number of seeds, two-sided 95 %."""


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


class Outcome:
    """The final runs of one task, of the systems that have run.

    Args:
        written: the files.
        task: in `TASKS`.
    """

    def __init__(self, written: Written, task: str) -> None:
        self.written, self.task = written, task

    @cached_property
    def reference(self) -> str:
        """The dense optimizer of lower validation loss in the search."""
        return min(DENSE, key=lambda system: mean_loss(self.best(system)["losses"]))

    @cached_property
    def target(self) -> float:
        """The held-out loss to be reached, the same for all systems and numbers of ranks."""
        final = statistics.fmean(row["values"][-1] for row in self.rows(self.reference, TARGET_RANKS))
        return final + (1 - TARGET_SHARE) * (math.log(TASKS[self.task].classes) - final)

    def best(self, system: str) -> Row:
        """Return the trial that a system's final runs took."""
        return best_of(self.written.trials(self.task, system))

    def seeds(self, ranks: int) -> list[int]:
        """Return the seeds on which every system has run; only these count."""
        rows = [row for row in self.written.curves(self.task) if row["ranks"] == ranks]
        of = [{row["seed"] for row in rows if row["system"] == system} for system in SETTINGS]
        return sorted(set.intersection(*of))

    def rows(self, system: str, ranks: int) -> list[Row]:
        """Return the final runs of a system that count, seed by seed."""
        seeds = self.seeds(ranks)
        rows = [row for row in self.written.curves(self.task) if (row["system"], row["ranks"]) == (system, ranks)]
        return sorted((row for row in rows if row["seed"] in seeds), key=lambda row: int(row["seed"]))

    def finals(self, system: str, ranks: int, column: str = "values") -> list[float]:
        """Return the last value of each seed that did not diverge."""
        return [row[column][-1] for row in self.rows(system, ranks) if row["values"][-1] is not None]

    def difference(self, system: str, ranks: int) -> Interval | None:
        """Return the final loss less the reference's, paired by seed; None if a seed diverged or for the reference."""
        has_diverged = len(self.finals(system, ranks)) < len(self.rows(system, ranks))
        if system == self.reference or has_diverged:
            return None
        pairs = zip(self.finals(system, ranks), self.finals(self.reference, ranks), strict=True)
        return Interval.of([ours - theirs for ours, theirs in pairs])

    def num_at_a_guess(self, system: str, ranks: int) -> int:
        """Return how many seeds ended no better than a guess, or nearly so, without diverging."""
        return sum(final > AT_A_GUESS * math.log(TASKS[self.task].classes) for final in self.finals(system, ranks))

    def steps_to_target(self, system: str, ranks: int) -> list[float]:
        """Return for each seed the first evaluated step at or below the target; infinity for never."""
        return [first_at(row, self.target) for row in self.rows(system, ranks)]


def first_at(row: Row, target: float) -> float:
    """Return the first evaluated step of a curve at or below a loss.

    Example:
        >>> first_at({"steps": [10, 20, 30], "values": [2.0, 1.0, None]}, 1.5)
        20
    """
    pairs = zip(row["steps"], row["values"], strict=True)
    return next((step for step, value in pairs if value is not None and value <= target), math.inf)

"""The final runs of the comparison: means, differences to the dense reference, steps to a target."""

import math
import statistics
from collections.abc import Iterable, Sequence
from functools import cached_property

from studies.candidates import CANDIDATES, IN_TOPOLOGY
from studies.interval import Interval
from studies.ledger import Row
from studies.search import best_of, mean_loss
from studies.systems_study import NAME, TOPOLOGY_RANKS, SystemsStudy
from studies.tasks import TASKS

DENSE = ("adam", "sgd")
TARGET_SHARE = 0.95
"""Of the way from a guess down to the reference's final loss: where the target of a task lies. Fixed before any final
run."""
TARGET_RANKS = 4
AT_A_GUESS = 0.95
"""Of the loss of a guess: a run that ends above has learned nothing that lasted."""


class Outcome:
    """The final runs of one task, of the systems that have run.

    Args:
        study: with its files.
        task: in `TASKS["systems"]`.
        only: seeds; None for all.
    """

    def __init__(self, study: SystemsStudy, task: str, only: Sequence[int] | None = None) -> None:
        self.study, self.name, self.task = study, task, TASKS[NAME][task]
        self._only = only

    @cached_property
    def reference(self) -> str:
        """The dense optimizer of lower validation loss in the search."""
        return min(DENSE, key=lambda system: mean_loss(self.best(system)["losses"]))

    @cached_property
    def target(self) -> float:
        """The held-out loss to be reached, the same for all systems and numbers of ranks."""
        final = statistics.fmean(row["values"][-1] for row in self.rows(self.reference, TARGET_RANKS))
        return final + (1 - TARGET_SHARE) * (math.log(self.task.classes) - final)

    def best(self, system: str) -> Row:
        """Return the trial that a system's final runs took."""
        return best_of(self.study.searches[self.name, system].rows)

    def seeds(self, ranks: int) -> list[int]:
        """Return the seeds on which every system has run; only these count."""
        found = self._seeds_of(CANDIDATES, ranks)
        return found if self._only is None else [seed for seed in found if seed in self._only]

    @property
    def topology_seeds(self) -> list[int]:
        """The seeds on which every system has run in all its topologies; for those, only these count."""
        others = self._seeds_of(IN_TOPOLOGY, TOPOLOGY_RANKS)
        return [seed for seed in self.seeds(TOPOLOGY_RANKS) if seed in others]

    def _seeds_of(self, systems: Iterable[str], ranks: int) -> list[int]:
        rows = [row for row in self.study.curves[self.name].rows if row["ranks"] == ranks]
        # A seed that some systems lack would favour those that had an easy one.
        of = [{row["seed"] for row in rows if row["system"] == system} for system in systems]
        return sorted(set.intersection(*of)) if of else []

    def rows(self, system: str, ranks: int) -> list[Row]:
        """Return the final runs of a system, with its remedy, plain or in a topology, that count, seed by seed."""
        seeds = self.topology_seeds if system in IN_TOPOLOGY else self.seeds(ranks)
        plain = self.study.plain.having({"task": self.name})
        rows = [*self.study.curves[self.name].rows, *plain]
        rows = [row for row in rows if (row["system"], row["ranks"]) == (system, ranks)]
        return sorted((row for row in rows if row["seed"] in seeds), key=lambda row: int(row["seed"]))

    def finals(self, system: str, ranks: int, column: str = "values") -> list[float]:
        """Return the last value of each seed that did not diverge."""
        return [row[column][-1] for row in self.rows(system, ranks) if row["values"][-1] is not None]

    def difference(self, system: str, ranks: int) -> Interval | None:
        """Return the final loss less the reference's, paired by seed; None if a seed diverged or for the reference."""
        return None if system == self.reference else self.apart(system, self.reference, ranks)

    def apart(self, system: str, other: str, ranks: int) -> Interval | None:
        """Return a system's final loss less that of another, paired by seed; None if a seed diverged with either."""
        ours, theirs = ({row["seed"]: row["values"][-1] for row in self.rows(one, ranks)} for one in (system, other))
        pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
        if any(None in pair for pair in pairs):
            return None
        return Interval.paired(*zip(*pairs, strict=True))

    def num_at_a_guess(self, system: str, ranks: int) -> int:
        """Return how many seeds ended no better than a guess, or nearly so, without diverging."""
        return sum(final > AT_A_GUESS * math.log(self.task.classes) for final in self.finals(system, ranks))

    def num_lost(self, system: str, ranks: int) -> int:
        """Return how many seeds diverged or ended at a guess."""
        num_diverged = len(self.rows(system, ranks)) - len(self.finals(system, ranks))
        return num_diverged + self.num_at_a_guess(system, ranks)

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

"""The search for an lr, and for a setting or two that belong to it: one rule for all systems."""

import math
from dataclasses import dataclass, replace

from studies.ledger import Ledger, Row
from studies.run import Columns, Run
from studies.tasks import Trial

STEP = math.sqrt(10)
"""Factor from the highest or lowest lr of a search to one beyond it."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """The trials of one system on one task; the lowest held-out loss wins.

    Attributes:
        system: its name in the rows.
        run: what every trial runs, but for its settings and its seed.
        fixed: what is tried first.
        num_trials: in all; those beyond the fixed ones follow the best so far (`next_trial`).
        seeds: of every trial. The first decides what is tried next, all together which trial is best.
        ledger: of rows with task, system, trial and losses, one loss a seed, None where the run diverged.
    """

    system: str
    run: Run
    fixed: tuple[Trial, ...]
    num_trials: int
    seeds: tuple[int, ...]
    ledger: Ledger

    @property
    def rows(self) -> list[Row]:
        """The trials so far."""
        return self.ledger.having({"task": self.run.task, "system": self.system})

    @property
    def is_done(self) -> bool:
        """Whether all trials have run on all seeds."""
        rows = self.rows
        return len(rows) == self.num_trials and all(len(row["losses"]) == len(self.seeds) for row in rows)

    @property
    def best(self) -> Trial:
        """What the final runs take."""
        trial: Trial = best_of(self.rows)["trial"]
        return trial

    def next_run(self) -> Run | None:
        """Return the run that is due: every trial on the first seed, then the others; None after the last."""
        rows = self.rows
        trial = next_trial(self.fixed, rows, self.num_trials)
        if trial is not None:
            return self._run(trial, self.seeds[0])
        due = (self._run(row["trial"], seed) for row in rows for seed in self.seeds[len(row["losses"]) :])
        return next(due, None)

    def record(self, run: Run, result: Columns) -> None:
        """Add the final loss of a run to its trial."""
        key = {"task": run.task, "system": self.system, "trial": run.trial}
        losses = [loss for row in self.ledger.having(key) for loss in row["losses"]]
        self.ledger.put(key, {"losses": [*losses, result["values"][-1]]})

    def _run(self, trial: Trial, seed: int) -> Run:
        return replace(self.run, trial=trial, seed=seed, split="validation")


def next_trial(fixed: tuple[Trial, ...], rows: list[Row], num_trials: int) -> Trial | None:
    """Return what to try after these rows of a search, None after the last.

    First the fixed trials. Then, with the settings of the best so far on the first seed: one lr beyond the best if that
    is the highest or lowest tried with them, otherwise the geometric mean of the best and the better of its neighbours.
    If all have diverged, that of the lowest lr counts as the best.
    """
    if len(rows) >= num_trials:
        return None
    tried = [row["trial"] for row in rows]
    untried = (trial for trial in fixed if trial not in tried)
    return next(untried, None) or _next_to(best_of(rows, 1)["trial"], rows)


def _next_to(best: Trial, rows: list[Row]) -> Trial:
    """Return the trial that follows the best of a search."""
    like = [row for row in rows if {**row["trial"], "lr": best["lr"]} == best]
    like.sort(key=lambda row: row["trial"]["lr"])
    index = [row["trial"] for row in like].index(best)
    # At an edge the optimum may lie outside, so the search goes on outwards; else it lies between two that were tried.
    if index in (0, len(like) - 1):
        lr = best["lr"] * STEP if index else best["lr"] / STEP
    else:
        neighbour = best_of([like[index - 1], like[index + 1]], 1)
        lr = math.sqrt(best["lr"] * neighbour["trial"]["lr"])
    return {**best, "lr": float(f"{lr:.3g}")}


def best_of(rows: list[Row], num_seeds: int | None = None) -> Row:
    """Return the row of lowest mean loss over its first seeds, or all; if all diverged, that of lowest lr."""
    return min(rows, key=lambda row: (mean_loss(row["losses"][:num_seeds]), row["trial"]["lr"]))


def mean_loss(losses: list[float | None]) -> float:
    """Return the mean over seeds, infinity if one of them diverged.

    Example:
        >>> mean_loss([1.0, 2.0]), mean_loss([1.0, None])
        (1.5, inf)
    """
    return sum(math.inf if loss is None else loss for loss in losses) / len(losses)

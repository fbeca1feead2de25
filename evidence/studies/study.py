"""A study: searches, then final runs with what they found; every result is a row in a file of JSON."""

import fcntl
import json
import math
import multiprocessing
import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from evidence import ROOT
from evidence.studies.run import Columns, Run, perform
from evidence.studies.tasks import Trial
from simnet.core.files import write_file

Row = dict[str, Any]
CURVES = ROOT / "scenarios" / "convergence"
STEP = math.sqrt(10)
"""Factor from the highest or lowest lr of a search to one beyond it."""


class Ledger:
    """The rows of one file, which is replaced as a whole after every run, so that a study can be stopped at any time.

    Args:
        path: of the file; may not be there yet.
        member: of the file's object that holds the rows; "" where the file is a list of rows.
        head: returns the other members of the object, given the rows.
        order: by which the rows are sorted when they are written; as they came if None.
    """

    def __init__(
        self,
        path: Path,
        member: str = "",
        *,
        head: Callable[[list[Row]], Row] = lambda _: {},
        order: Callable[[Row], Any] | None = None,
    ) -> None:
        self.path = path
        self._member, self._head, self._order = member, head, order
        self._rows: list[Row] | None = None

    @property
    def rows(self) -> list[Row]:
        if self._rows is None:
            self._rows = self._read()
        return self._rows

    def having(self, values: Mapping[str, object]) -> list[Row]:
        return having(self.rows, values)

    def put(self, key: Row, result: Row) -> None:
        """Add a row of a key and a result, or replace the one with this key; other processes may do so, too."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # The file itself is no lock, since it is replaced.
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            rows = [row for row in self._read() if not having([row], key)]
            self.write([*rows, {**key, **result}])
        finally:
            os.close(folder)

    def write(self, rows: list[Row], head: Row | None = None) -> None:
        """Replace the file by these rows, one a line, under this head, or that which `head` returns."""
        self._rows = rows if self._order is None else sorted(rows, key=self._order)
        text = "[\n" + ",\n".join(map(json.dumps, self._rows)) + "\n]"
        if self._member:
            members = self._head(self._rows) if head is None else head
            lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in members.items()]
            text = "{\n" + ",\n".join([*lines, f"{json.dumps(self._member)}: {text}"]) + "\n}"
        write_file(self.path, f"{text}\n".encode())

    def _read(self) -> list[Row]:
        if not self.path.exists():
            return []
        document = json.loads(self.path.read_text(encoding="utf-8"))
        rows: list[Row] = document[self._member] if self._member else document
        return rows


def having(rows: list[Row], values: Mapping[str, object]) -> list[Row]:
    """Return the rows that have these values; None also stands for a value that a row does not name."""
    return [row for row in rows if all(row.get(name) == value for name, value in values.items())]


@dataclass(frozen=True, kw_only=True)
class Search:
    """The trials of one system on one task: one rule for all systems; the lowest held-out loss wins.

    Attributes:
        system: its name in the rows.
        run: what every trial runs, but for its settings and its seed.
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
        return self.ledger.having({"task": self.run.task, "system": self.system})

    @property
    def is_done(self) -> bool:
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
        due = [(trial, self.seeds[0])] if trial is not None else []
        due += [(row["trial"], seed) for row in rows for seed in self.seeds[len(row["losses"]) :]]
        return replace(self.run, trial=due[0][0], seed=due[0][1], split="validation") if due else None

    def record(self, run: Run, result: Columns) -> None:
        key = {"task": run.task, "system": self.system, "trial": run.trial}
        losses = [loss for row in self.ledger.having(key) for loss in row["losses"]]
        self.ledger.put(key, {"losses": [*losses, result["values"][-1]]})


def next_trial(fixed: tuple[Trial, ...], rows: list[Row], num_trials: int) -> Trial | None:
    """Return what to try after these rows of a search, None after the last.

    First the fixed trials. Then, with the settings of the best so far on the first seed: one lr beyond the best if that
    is the highest or lowest tried with them, otherwise the geometric mean of the best and the better of its neighbours.
    If all have diverged, that of the lowest lr counts as the best.
    """
    if len(rows) >= num_trials:
        return None
    tried = [row["trial"] for row in rows]
    if untried := [trial for trial in fixed if trial not in tried]:
        return untried[0]
    best = best_of(rows, 1)["trial"]
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


class Final(NamedTuple):
    """A run with the settings that a search found, whose result becomes a row; it is found again by its key."""

    run: Run
    ledger: Ledger
    key: Row

    @property
    def is_done(self) -> bool:
        return bool(self.ledger.having(self.key))

    def record(self, result: Columns) -> None:
        columns = {name: [round_5(value) for value in values] for name, values in result.items() if name != "steps"}
        self.ledger.put(self.key, {**result, **columns})


class Job(NamedTuple):
    """A run that may start now, and what writes its result."""

    title: str
    run: Run
    record: Callable[[Columns], None]


class Study:
    """What is searched, and what is run with it."""

    searches: Mapping[tuple[str, str], Search]

    def finals(self) -> Iterable[Final]:
        """Return all final runs whose search is done, done or not, the most urgent first."""
        raise NotImplementedError

    def jobs_left(self) -> Iterator[Job]:
        """Yield what may be done now, all at once, the most urgent first: the next run of each search, final runs."""
        for search in self.searches.values():
            if (run := search.next_run()) is not None:
                yield Job(_title("search", run), run, partial(search.record, run))
        for final in self.finals():
            if not final.is_done:
                yield Job(_title(final.ledger.path.stem, final.run), final.run, final.record)

    def status(self) -> Iterator[str]:
        finals, searches = list(self.finals()), self.searches.values()
        for task in dict.fromkeys(planned.run.task for planned in (*searches, *finals)):
            of_task = [search for search in searches if search.run.task == task]
            done = sum(len(row["losses"]) for search in of_task for row in search.rows)
            total = sum(search.num_trials * len(search.seeds) for search in of_task)
            of_task = [final.is_done for final in finals if final.run.task == task]
            yield f"{task}: search {done} of {total} runs, final {sum(of_task)} of {len(of_task)} runs"

    def run(self, options: Namespace) -> None:
        """Run what is left: `jobs` at once, `at_most` in all, with `only` in their titles."""
        left = options.at_most
        # spawn: torch's threads do not survive a fork.
        with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            # Asked for anew when all have run, since the next trial of a search depends on the last.
            while jobs := [job for job in self.jobs_left() if options.only in job.title][:left]:
                left = None if left is None else left - len(jobs)
                for job, result in zip(jobs, pool.map(perform, [job.run for job in jobs]), strict=True):
                    job.record(result)
                    print(f"{job.title}: {result['values'][-1]}", flush=True)


def _title(kind: str, run: Run) -> str:
    trial = ", ".join(f"{name} {value}" for name, value in run.trial.items())
    system = ", ".join([run.system, *filter(None, [run.options.get("topology")])])
    return f"{kind}: {run.task}, {system}, {run.ranks} ranks, seed {run.seed}, {trial}"


def round_5(value: float | None) -> float | None:
    """Return 5 significant digits.

    Example:
        >>> round_5(0.123456), round_5(None)
        (0.12346, None)
    """
    return None if value is None else float(f"{value:.5g}")

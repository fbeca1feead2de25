"""A study: searches, then final runs with what they found, and the one way to run whatever is not done yet."""

import multiprocessing
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from studies.ledger import Ledger, Row
from studies.run import Columns, Run, perform
from studies.search import Search


@dataclass(frozen=True, kw_only=True)
class Final:
    """A run with the settings that a search found, whose result becomes a row of its own.

    Attributes:
        run: all of it.
        ledger: of the row.
        key: the columns of the row that are not results; the row is found again by them.
        rounded: whether numbers are written with 5 significant digits.
    """

    run: Run
    ledger: Ledger
    key: Row
    rounded: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the row is there."""
        return bool(self.ledger.having(self.key))

    def record(self, result: Columns) -> None:
        """Add the row."""
        columns = {name: [round_5(value) for value in values] for name, values in result.items() if name != "steps"}
        self.ledger.put(self.key, {**result, **columns} if self.rounded else result)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run that may start now.

    Attributes:
        title: for people.
        run: the training.
        record: writes its result.
    """

    title: str
    run: Run
    record: Callable[[Columns], None]


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is searched, and what is run with it.

    Attributes:
        name: in `tasks.TASKS`.
        searches: all of them.
        finals: returns all final runs whose search is done, done or not, the most urgent first.
    """

    name: str
    searches: tuple[Search, ...]
    finals: Callable[[], Iterable[Final]]

    def jobs_left(self) -> Iterator[Job]:
        """Yield what may be done now, all at once, the most urgent first: the next run of each search, final runs."""
        for search in self.searches:
            run = search.next_run()
            if run is not None:
                yield Job(title=_title("search", run), run=run, record=partial(search.record, run))
        for final in self.finals():
            if not final.is_done:
                yield Job(title=_title(final.ledger.path.stem, final.run), run=final.run, record=final.record)

    def status(self) -> Iterator[str]:
        """Yield a line on the searches and the final runs of each task."""
        finals = list(self.finals())
        searched = (search.run.task for search in self.searches)
        for task in dict.fromkeys([*searched, *(final.run.task for final in finals)]):
            searches = [search for search in self.searches if search.run.task == task]
            done = sum(len(row["losses"]) for search in searches for row in search.rows)
            total = sum(search.num_trials * len(search.seeds) for search in searches)
            of_task = [final for final in finals if final.run.task == task]
            num_done = sum(final.is_done for final in of_task)
            yield f"{task}: search {done} of {total} runs, final {num_done} of {len(of_task)} runs"


def _title(kind: str, run: Run) -> str:
    trial = ", ".join(f"{name} {value}" for name, value in run.trial.items())
    system = ", ".join([run.system, *filter(None, [run.options.get("topology")])])
    return f"{kind}: {run.task}, {system}, {run.ranks} ranks, seed {run.seed}, {trial}"


def run_left(study: Study, options: Namespace) -> None:
    """Run what is left of a study, or a part of it: `jobs` at once, `at_most` in all, with `only` in their titles."""
    left = options.at_most
    # spawn: torch's threads do not survive a fork.
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        # Asked for anew when all have run, since the next trial of a search depends on the last.
        while jobs := [job for job in study.jobs_left() if options.only in job.title][:left]:
            left = None if left is None else left - len(jobs)
            for job, result in zip(jobs, pool.map(perform, [job.run for job in jobs]), strict=True):
                job.record(result)
                print(f"{job.title}: {result['values'][-1]}", flush=True)


def round_5(value: float | None) -> float | None:
    """Return 5 significant digits.

    Example:
        >>> round_5(0.123456), round_5(None)
        (0.12346, None)
    """
    return None if value is None else float(f"{value:.5g}")

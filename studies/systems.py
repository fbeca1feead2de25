"""Search and train every system on three tasks, and write docs/evidence/systems-training.md.

OMP_NUM_THREADS=1 python -m studies.systems run --jobs 2     # what is not written yet; stop and start it at any time
python -m studies.systems status                             # what is left
python -m studies.systems page                               # the page and its figures, from what is written

Search trials are in studies/results/systems_search.json, final curves in scenarios/convergence.
"""

import argparse
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import torch

from studies.contenders import (
    FINAL_RANKS,
    FINAL_SEEDS,
    NUM_TRIALS,
    SEARCH_SEEDS,
    SETTINGS,
    Row,
    best_of,
    next_trial,
    strategy_of,
)
from studies.plans import Plan, train
from studies.tasks import TASKS, Trial
from studies.written import Written

SEARCH_RANKS = 4


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training that is to be done, for the search or as one of the finals."""

    system: str
    plan: Plan

    @property
    def is_search(self) -> bool:
        """Tell which of the two."""
        return self.plan.split == "validation"

    @property
    def place(self) -> tuple[Any, ...]:
        """What no two jobs at once may share: a search goes on from its last trial."""
        return self.plan.task, self.system, self.plan.ranks, self.plan.seed


def jobs_left(written: Written) -> Iterator[Job]:
    """Yield what may be done now, the most urgent first: searches, then finals, seed by seed."""
    for task in TASKS:
        for system in SETTINGS:
            yield from _trial_left(written, task, system)
    for ranks in FINAL_RANKS:
        for seed in FINAL_SEEDS:
            for task in TASKS:
                yield from _finals_left(written, task, ranks, seed)


def _trial_left(written: Written, task: str, system: str) -> Iterator[Job]:
    """Yield the next run of a search, if there is one: on the first seed, then on the others."""
    rows = written.trials(task, system)
    seeds = SEARCH_SEEDS[task]
    trial = next_trial(system, rows)
    if trial is not None:
        yield _job(task, system, trial, SEARCH_RANKS, seeds[0])
        return
    for row in rows:
        if len(row["losses"]) < len(seeds):
            yield _job(task, system, row["trial"], SEARCH_RANKS, seeds[len(row["losses"])])
            return


def _finals_left(written: Written, task: str, ranks: int, seed: int) -> Iterator[Job]:
    for system in SETTINGS:
        if written.is_searched(task, system) and not written.has_curve(task, system, ranks, seed):
            yield _job(task, system, best_of(written.trials(task, system))["trial"], ranks, seed)


def _job(task: str, system: str, trial: Trial, ranks: int, seed: int) -> Job:
    split = "test" if seed in FINAL_SEEDS else "validation"
    plan = Plan(task=task, strategy=strategy_of(system), trial=trial, ranks=ranks, seed=seed, split=split)
    return Job(system=system, plan=plan)


def work(plan: Plan) -> tuple[Row, float]:
    """Train in a process of the pool; return the result and the seconds that it took."""
    torch.set_num_threads(1)
    begin = time.perf_counter()
    result = train(plan)
    return result, time.perf_counter() - begin


def run(num_processes: int) -> None:
    """Do all that is left, in so many processes at once."""
    written = Written()
    running: dict[Future[tuple[Row, float]], Job] = {}
    with ProcessPoolExecutor(num_processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        while True:
            places = [job.place for job in running.values()]
            free = [job for job in jobs_left(written) if job.place not in places]
            for job in free[: num_processes - len(running)]:
                running[pool.submit(work, job.plan)] = job
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                note(written, running.pop(future), *future.result())


def note(written: Written, job: Job, result: Row, seconds: float) -> None:
    """Write what a job gave, and tell of it."""
    if job.is_search:
        written.add_trial(job.system, job.plan, result)
    else:
        written.add_curve(job.system, job.plan, result)
    plan, last = job.plan, result["values"][-1]
    what = f"{plan.task}, {job.system}, {plan.ranks} ranks, seed {plan.seed}, {plan.trial}"
    print(f"{what}: {last} in {seconds:.1f} s", flush=True)


def status() -> None:
    """Print how much is done."""
    written = Written()
    num_finals = len(SETTINGS) * len(FINAL_RANKS) * len(FINAL_SEEDS)
    for task in TASKS:
        num_trials = NUM_TRIALS * len(SETTINGS) * len(SEARCH_SEEDS[task])
        done = sum(len(row["losses"]) for system in SETTINGS for row in written.trials(task, system))
        print(f"{task}: {done} of {num_trials} runs of the search, {len(written.curves(task))} of {num_finals} finals")


def parse() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "status", "page"])
    parser.add_argument("--jobs", type=int, default=1, help="of run: trainings at once (default %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    given = parse()
    if given.command == "run":
        run(given.jobs)
    elif given.command == "status":
        status()
    else:
        from studies import systems_page

        systems_page.write()

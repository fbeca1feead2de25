"""The comparison of all compressing systems on three tasks, behind docs/evidence/binsgdm.md."""

import itertools
import platform
import time
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from simnet.core.version import VERSION
from studies.candidates import ALL, CANDIDATES, IN_TOPOLOGY, PLAIN, strategy_of
from studies.ledger import Ledger, Row
from studies.run import ROOT, Run
from studies.search import Search
from studies.study import Final, Study
from studies.tasks import TASKS

NAME = "systems"
FINAL_SEEDS = (0, 1, 2, 3, 4)
FINAL_RANKS = (4, 16)
TOPOLOGY_RANKS = 4
"""Of the systems in other topologies: on 16 ranks a scatter-reduce encodes 256 pieces a step, which takes too long."""
TOPOLOGY_SEEDS = {"digits": (0, 1, 2), "mnist_5k": (0, 1, 2), "characters": (0, 1, 2)}
"""Of the same, by task."""
SEARCH_RANKS = 4
SEARCH_SEEDS = {"characters": (100,), "mnist_5k": (100, 101), "digits": (100, 101)}
RANKS_PER_NODE = {4: 2, 16: 4}
"""By ranks, of those systems and topologies that look at nodes."""
NUM_TRIALS = 6
"""Of every system on every task: four are fixed, two follow the best so far."""
SEARCH = ROOT / "studies" / "results" / "systems_search.json"
PLAIN_RUNS = ROOT / "studies" / "results" / "systems_plain.json"
CURVES = ROOT / "scenarios" / "convergence"
ALL_REDUCED = ("all_reduce", "power_sgd", "grad_zip", "random_k")
"""Strategies whose all-reduces simnet is to run by the fastest algorithm; training does not depend on it."""


class SystemsStudy:
    """The study with its files.

    Args:
        search: file of the trials.
        curves: folder of the final curves, one file a task, which `simnet.analysis.convergence` reads.
        plain: file of the final runs of systems without their remedies.
    """

    def __init__(self, search: Path = SEARCH, curves: Path = CURVES, plain: Path = PLAIN_RUNS) -> None:
        head = {
            "ranks": SEARCH_RANKS,
            "seeds": SEARCH_SEEDS,
            "steps": {name: task.steps for name, task in TASKS[NAME].items()},
        }
        trials = Ledger(search, "trials", head=lambda _: head)
        systems = [*CANDIDATES, *PLAIN]
        self.searches = {(task, system): _search(task, system, trials) for task in TASKS[NAME] for system in systems}
        self.plain = Ledger(plain, order=lambda row: (row["task"], row["system"], row["ranks"], row["seed"]))
        self.curves = {task: self._curves(task, curves) for task in TASKS[NAME]}

    @cached_property
    def study(self) -> Study:
        """What there is to run."""
        return Study(name=NAME, searches=tuple(self.searches.values()), finals=self._finals)

    def write_target(self, task: str, target: float) -> None:
        """Put the target of a task into its file, and leave everything else as it is."""
        ledger = self.curves[task]
        head = ledger.read_head()
        systems = head.pop("systems")
        ledger.write(ledger.rows, head | {"target": float(f"{target:.5g}"), "systems": systems})

    def _curves(self, task: str, folder: Path) -> Ledger:
        systems = [*CANDIDATES, *IN_TOPOLOGY]
        return Ledger(
            folder / f"{task}.json",
            "curves",
            head=partial(self._head, task),
            order=lambda row: (systems.index(row["system"]), row["ranks"], row["seed"]),
        )

    def search_of(self, task: str, system: str) -> Search:
        """Return the search that says what a system runs with: for another topology, that of its own form."""
        return self.searches[task, ALL[system].tuned_as or system]

    def _finals(self) -> Iterator[Final]:
        """Yield them seed by seed, so that all systems have as many seeds wherever the study is stopped."""
        trials = {key: search.best for key, search in self.searches.items() if search.is_done}
        own = itertools.product(FINAL_RANKS, FINAL_SEEDS, TASKS[NAME], [*CANDIDATES, *PLAIN])
        others = (
            (TOPOLOGY_RANKS, seed, task, system)
            for task, seeds in TOPOLOGY_SEEDS.items()
            for seed in seeds
            for system in IN_TOPOLOGY
        )
        for ranks, seed, task, system in (*own, *others):
            if (trial := trials.get((task, ALL[system].tuned_as or system))) is not None:
                yield self._final(task, system, _run(task, system, ranks=ranks, trial=trial, seed=seed))

    def _final(self, task: str, system: str, run: Run) -> Final:
        key = {"system": system, "ranks": run.ranks, "seed": run.seed}
        if system in PLAIN:
            return Final(run=run, ledger=self.plain, key={"task": task, **key}, rounded=True)
        return Final(run=run, ledger=self.curves[task], key=key, rounded=True)

    def _head(self, task: str, rows: list[Row]) -> Row:
        """Return the members of a file of curves in front of the rows, in the order of the file."""
        source = (
            f"python -m studies run systems: all ranks in one process by the code of binsgdm {VERSION}, torch "
            f"{torch.__version__}, Python {platform.python_version()}, CPU, {time.strftime('%Y-%m-%d')}; evaluated on "
            "test data"
        )
        systems = dict.fromkeys(row["system"] for row in rows)
        return {
            "format": "simnet-convergence",
            "version": 2,
            "task": TASKS[NAME][task].title,
            "metric": "test loss",
            "unit": TASKS[NAME][task].unit,
            "better": "lower",
            "batch": TASKS[NAME][task].batch,
            "num_parameters": TASKS[NAME][task].num_parameters,
            "source": source,
            "systems": {system: self._described(task, system) for system in systems},
        }

    def _described(self, task: str, system: str) -> Row:
        """Return what simnet simulates a system as, and the settings that it was trained with."""
        trial = self.search_of(task, system).best
        strategy = strategy_of(system)
        if strategy["kind"] in ALL_REDUCED:
            strategy["algorithm"] = "auto"
        if "dense_share" in trial:
            strategy["dense_steps"] = TASKS[NAME][task].dense_steps(trial)
        settings = {name: value for name, value in trial.items() if name != "optimizer"}
        return {
            "title": ALL[system].title,
            "strategy": strategy,
            "optimizer": trial["optimizer"],
            "settings": settings,
        }


def _search(task: str, system: str, ledger: Ledger) -> Search:
    return Search(
        system=system,
        run=_run(task, system, ranks=SEARCH_RANKS),
        fixed=ALL[system].fixed_trials,
        num_trials=NUM_TRIALS,
        seeds=SEARCH_SEEDS[task],
        ledger=ledger,
    )


def _run(task: str, system: str, *, ranks: int, **changes: Any) -> Run:
    candidate = ALL[system]
    # The two dense candidates differ in their optimizer only, which is part of the trial.
    return Run(
        study=NAME,
        task=task,
        system="dense" if candidate.kind == "all_reduce" else candidate.system or system,
        options=candidate.options,
        ranks=ranks,
        ranks_per_node=RANKS_PER_NODE[ranks],
        **changes,
    )

"""The files of the comparison of systems: its search trials, and its final curves as the simulator reads them."""

import json
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from studies.contenders import NUM_TRIALS, SEARCH_SEEDS, SETTINGS, Row, best_of, strategy_of
from studies.plans import Plan
from studies.tasks import TASKS

ROOT = Path(__file__).parents[1]
SEARCH = ROOT / "studies" / "results" / "systems_search.json"
REDUCED = ("all_reduce", "power_sgd", "grad_zip", "random_k")
"""Strategies for whose all-reduces the simulator is to take the fastest algorithm; training knows nothing of it."""
CURVES = ROOT / "scenarios" / "convergence"


class Written:
    """What has been done, in files that are replaced as a whole after every run.

    Args:
        search: of the trials.
        curves: the folder of the final curves, a file a task.
    """

    def __init__(self, search: Path = SEARCH, curves: Path = CURVES) -> None:
        self._search, self._folder = search, curves
        self._trials: list[Row] = json.loads(search.read_text())["trials"] if search.exists() else []
        paths = {task: curves / f"{task}.json" for task in TASKS}
        self._curves = {t: json.loads(p.read_text())["curves"] if p.exists() else [] for t, p in paths.items()}

    def trials(self, task: str, system: str) -> list[Row]:
        """Return the trials of a search so far."""
        return [row for row in self._trials if (row["task"], row["system"]) == (task, system)]

    def curves(self, task: str) -> list[Row]:
        """Return the final curves of a task."""
        return self._curves[task]

    def has_curve(self, task: str, system: str, ranks: int, seed: int) -> bool:
        """Tell whether a final run is done."""
        return any((row["system"], row["ranks"], row["seed"]) == (system, ranks, seed) for row in self._curves[task])

    def is_searched(self, task: str, system: str) -> bool:
        """Tell whether all trials of a search have run on all its seeds."""
        rows = self.trials(task, system)
        return len(rows) == NUM_TRIALS and all(len(row["losses"]) == len(SEARCH_SEEDS[task]) for row in rows)

    def add_trial(self, system: str, plan: Plan, result: Row) -> None:
        """Note a run of a search, on the first seed or another."""
        found = [row for row in self.trials(plan.task, system) if row["trial"] == plan.trial]
        if not found:
            found = [{"task": plan.task, "system": system, "trial": plan.trial, "losses": []}]
            self._trials += found
        found[0]["losses"].append(result["values"][-1])
        steps = {name: task.steps for name, task in TASKS.items()}
        replace(self._search, {"ranks": plan.ranks, "seeds": SEARCH_SEEDS, "steps": steps}, "trials", self._trials)

    def add_curve(self, system: str, plan: Plan, result: Row) -> None:
        """Note a final run."""
        self._curves[plan.task].append({"system": system, "ranks": plan.ranks, "seed": plan.seed, **result})
        self.write_curves(plan.task)

    def write_curves(self, task: str) -> None:
        """Write the curves of a task, in the order of the table, with the systems that they are of."""
        order = list(SETTINGS)
        rows = sorted(self._curves[task], key=lambda row: (order.index(row["system"]), row["ranks"], row["seed"]))
        systems = {
            system: self._described(task, system) for system in order if any(r["system"] == system for r in rows)
        }
        replace(self._folder / f"{task}.json", {**heading(task), "systems": systems}, "curves", rows)

    def write_target(self, task: str, target: float) -> None:
        """Put the target of a task into its file, and leave everything else as it is."""
        path = self._folder / f"{task}.json"
        head = json.loads(path.read_text()) | {"target": float(f"{target:.5g}")}
        rows, systems = head.pop("curves"), head.pop("systems")
        replace(path, {**head, "systems": systems}, "curves", rows)

    def _described(self, task: str, system: str) -> Row:
        trial = best_of(self.trials(task, system))["trial"]
        strategy = strategy_of(system)
        if strategy["kind"] in REDUCED:
            strategy["algorithm"] = "auto"
        if "dense_share" in trial:
            strategy["dense_steps"] = TASKS[task].dense_steps(trial)
        settings = {name: value for name, value in trial.items() if name != "optimizer"}
        title = SETTINGS[system].title
        return {"title": title, "strategy": strategy, "optimizer": trial["optimizer"], "settings": settings}


def heading(task: str) -> Row:
    """Return what a file of curves says first."""
    source = (
        f"studies/systems.py: all ranks in one process by the code of binsgdm 0.1.0, torch {torch.__version__}, "
        f"Python {platform.python_version()}, CPU, {time.strftime('%Y-%m-%d')}; evaluated on test data"
    )
    return {
        "format": "simnet-convergence",
        "version": 1,
        "task": TASKS[task].title,
        "metric": "test loss",
        "unit": TASKS[task].unit,
        "better": "lower",
        "batch": TASKS[task].batch,
        "source": source,
    }


def replace(path: Path, head: Mapping[str, object], name: str, rows: list[Row]) -> None:
    """Write a file of one object, one row of its last member a line, and put it in the place of the old one."""
    path.parent.mkdir(exist_ok=True, parents=True)
    members = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    lines = ",\n".join(map(json.dumps, rows))
    new = path.with_suffix(".new")
    new.write_text("{\n" + ",\n".join([*members, f"{json.dumps(name)}: [\n{lines}\n]"]) + "\n}\n")
    os.replace(new, path)  # noqa: PTH105

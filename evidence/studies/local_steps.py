"""What steps that workers take alone do to the loss, on the tasks of the systems study; docs/evidence/binsgdm.md.

Tasks, batches, seeds and targets are those of the systems study, whose files of curves stand beside these.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from evidence import RESULTS
from evidence.studies import figures
from evidence.studies.page import BINSGDM, FIGURES, of_seeds
from evidence.studies.run import Run
from evidence.studies.study import CURVES, Final, Ledger, Row, Search, Study
from evidence.studies.tasks import TASKS as ALL_TASKS
from evidence.studies.tasks import Trial
from simnet.report.table import Table

TASKS = ALL_TASKS["systems"]
WORKERS = 4
SEARCH_SEEDS = (100,)  # none of SEEDS
SEEDS = (0, 1, 2)
LRS: dict[str, tuple[float, ...]] = {
    "digits": (0.0066, 0.0132),
    "mnist_5k": (0.0087, 0.0173),
    "characters": (0.005, 0.01),
}
"""Adam's best lr in the systems study, and half of that."""
OUTER: tuple[dict[str, Any], ...] = (
    {"outer_lr": 0.7, "outer_momentum": 0.9},
    {"outer_lr": 0.7, "outer_momentum": 0.5},
)
PAGE = BINSGDM
DRAWN = ("adam", "local_sgd_4", "diloco_10_fp32", "diloco_10_one_bit_tensor")
BYTES = {"fp32": 4.0, "int8": 1.0, "one_bit": 1 / 8}
"""Of a parameter in an exchange, without scales."""
KEPT = ("format", "version", "task", "metric", "unit", "better", "batch", "num_parameters", "target")
EXCHANGES = {
    "fp32": "",
    "int8": "byte_grad:topology=scatter_reduce",
    "one_bit": "ef_sign_sgd:topology=scatter_reduce,scale_per=bucket",
}
"""What simnet calls the exchanges of binsgdm.DiLoCo."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to train.

    Attributes:
        inner_steps: between two exchanges; 1 averages gradients.
        outer: settings of DiLoCo; None averages parameters.
        tuned_as: the way whose search says what this one runs with; None for one of its own.
    """

    title: str
    inner_steps: int
    outer: dict[str, Any] | None = None
    tuned_as: str | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """Those of a `Run` that are not of a task."""
        options = {"inner_steps": self.inner_steps, "outer": self.outer}
        return {"study": "systems", "system": "local_steps", "options": options, "ranks": WORKERS}


WAYS: dict[str, Way] = {
    "adam": Way(title="DDP, Adam", inner_steps=1),
    "local_sgd_4": Way(title="local SGD 4", inner_steps=4),
    **{
        f"diloco_{steps}_{exchange}": Way(
            title=f"DiLoCo {steps}, {label}",
            inner_steps=steps,
            outer={"exchange": exchange},
            tuned_as=None if exchange != "int8" else f"diloco_{steps}_fp32",
        )
        for steps in (10, 30)
        for exchange, label in (("fp32", "fp32"), ("int8", "int8"), ("one_bit", "1 bit"))
    },
    "diloco_10_one_bit_tensor": Way(
        title="DiLoCo 10, 1 bit, a scale a tensor",
        inner_steps=10,
        outer={"exchange": "one_bit", "options": {"scale_per": "tensor"}},
        tuned_as="diloco_10_one_bit",
    ),
}


class LocalStepsStudy(Study):
    def __init__(self) -> None:
        self.results = Ledger(RESULTS / "local_steps_final.json")
        trials = Ledger(RESULTS / "local_steps_search.json")
        ways = [name for name, way in WAYS.items() if way.tuned_as is None]
        self.searches = {(task, name): _search(task, name, trials) for task, name in product(TASKS, ways)}

    def search_of(self, task: str, way: str) -> Search:
        """Return the search that says what a way runs with."""
        return self.searches[task, WAYS[way].tuned_as or way]

    def rows(self, task: str, way: str) -> list[Row]:
        return self.results.having({"task": task, "system": way})

    def finals(self) -> Iterator[Final]:
        for seed, task, way in product(SEEDS, TASKS, WAYS):
            if (search := self.search_of(task, way)).is_done:
                run = Run(task=task, trial=search.best, seed=seed, **WAYS[way].fields)
                yield Final(run, self.results, {"task": task, "system": way, "seed": seed})


def _search(task: str, way: str, ledger: Ledger) -> Search:
    outer = OUTER if WAYS[way].outer is not None else ({},)
    lrs = LRS[task] if WAYS[way].inner_steps > 1 else LRS[task][-1:]
    fixed: tuple[Trial, ...] = tuple({"lr": lr, **settings} for lr, settings in product(lrs, outer))
    run = Run(task=task, **WAYS[way].fields)
    return Search(system=way, run=run, fixed=fixed, num_trials=len(fixed), seeds=SEARCH_SEEDS, ledger=ledger)


def read() -> LocalStepsStudy:
    return LocalStepsStudy()


def regions(study: LocalStepsStudy) -> dict[str, str]:
    every = losses(study)
    means = [(*row[:2], *(cell.partition(" (")[0] for cell in row[2:])) for row in every.rows]
    return {"local steps": Table(every.columns, means).markdown()}


def data(study: LocalStepsStudy) -> dict[str, Table]:
    chosen = [
        [way.title, *(", ".join(map(str, study.searches[task, name].best.values())) for task in TASKS)]
        for name, way in WAYS.items()
        if way.tuned_as is None
    ]
    titles = [task.title for task in TASKS.values()]
    return {"local-steps": losses(study), "local-steps-settings": Table(["way", *titles], chosen)}


def losses(study: LocalStepsStudy) -> Table:
    """Return the final test loss of every way on every task: mean of the seeds, lowest to highest."""
    lines = []
    for name, way in WAYS.items():
        sent = BYTES["fp32" if way.outer is None else way.outer["exchange"]] / way.inner_steps
        finals = [[row["values"][-1] for row in study.rows(task, name)] for task in TASKS]
        lines.append(
            [way.title, f"{sent:.3g}", *("diverged" if None in of_task else of_seeds(of_task) for of_task in finals)]
        )
    return Table(["way", "bytes a parameter and step", *(task.title for task in TASKS.values())], lines)


def draw(study: LocalStepsStudy) -> None:
    """Draw a panel for each task, test loss over steps; write the curves as files of convergence, a curve a line."""
    by_task = {task: {name: study.rows(task, name) for name in DRAWN} for task in TASKS}
    titles = {name: task.title for name, task in TASKS.items()}
    figures.draw_losses(by_task, {name: WAYS[name].title for name in DRAWN}, titles, FIGURES / "local_steps.png")
    for task in TASKS:
        whole = document(study, task)
        curves = ",\n".join(json.dumps(curve) for curve in whole.pop("curves"))
        text = f'{json.dumps(whole, indent=1)[:-2]},\n "curves": [\n{curves}\n ]\n}}\n'
        (CURVES / f"{task}_local_steps.json").write_text(text, encoding="utf-8")


def document(study: LocalStepsStudy, task: str) -> dict[str, Any]:
    """Return the convergence file of a task: every way that simnet has a strategy for, each rank a worker."""
    known = json.loads((CURVES / f"{task}.json").read_text(encoding="utf-8"))
    ways = {name: way for name, way in WAYS.items() if not (way.outer or {}).get("options")}
    curves = [
        {"system": row["system"], "ranks": WORKERS, **{key: row[key] for key in ("seed", "steps", "values")}}
        for row in study.results.having({"task": task})
        if row["system"] in ways
    ]
    return {
        **{key: known[key] for key in KEPT},
        "task": f"{known['task']}, local steps",
        "source": f"python -m evidence.studies run local_steps: {WORKERS} workers in one process by the protocols of "
        f"binsgdm, CPU; {len(SEEDS)} seeds; evaluated on test data",
        "systems": {
            name: {
                "title": way.title,
                "strategy": _strategy(way),
                "optimizer": "adam",
                "settings": study.search_of(task, name).best,
            }
            for name, way in ways.items()
        },
        "curves": curves,
    }


def _strategy(way: Way) -> dict[str, Any]:
    if way.inner_steps == 1:
        return {"kind": "all_reduce", "algorithm": "auto"}
    if way.outer is None:
        return {"kind": "local_sgd", "inner_steps": way.inner_steps}
    exchange = EXCHANGES[way.outer["exchange"]]
    diloco = {"kind": "diloco", "inner_steps": way.inner_steps, "workers": "rank"}
    return {**diloco, "exchange_by": exchange} if exchange else diloco

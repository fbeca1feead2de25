"""BinSGDM against Adam on digits and characters, behind docs/evidence/training.md."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from studies.ledger import Ledger, Row
from studies.run import ROOT, Run
from studies.search import Search
from studies.study import Final, Study
from studies.tasks import Trial

NAME = "training"
RESULTS = ROOT / "studies" / "results"
SEARCH_SEEDS = {"digits": (100, 101), "lm": (100,), "lm_long": (100,), "lm_alone": (100,)}
FINAL_SEEDS = (0, 1, 2, 3, 4)
SCALE_SEEDS = (0, 1, 2)
SEARCHED = ("lr", "beta", "beta2", "warmup", "weight_decay")

SHORT_LRS = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
LONG_LRS = (3e-3, 4.5e-3, 6.7e-3, 1e-2, 1.5e-2, 2.25e-2)


def _grid(lrs: tuple[float, ...], betas: tuple[float, ...]) -> tuple[Trial, ...]:
    return tuple({"optimizer": "binsgdm", "lr": lr, "beta": beta} for lr in lrs for beta in betas)


ADAM_SHORT: tuple[Trial, ...] = tuple({"optimizer": "adam", "lr": round(3e-4 * 1.3**power, 6)} for power in range(18))
ADAM_LONG: tuple[Trial, ...] = tuple(
    {"optimizer": "adam", "lr": lr, "warmup": warmup} for lr in LONG_LRS for warmup in (0, 200)
)
SEARCHES: dict[str, dict[str, tuple[Trial, ...]]] = {
    "digits": {"binsgdm": _grid(SHORT_LRS, (0.9, 0.95, 0.98)), "adam": ADAM_SHORT},
    "lm": {"binsgdm": _grid(SHORT_LRS, (0.9, 0.95, 0.98)), "adam": ADAM_SHORT},
    "lm_long": {"binsgdm": _grid(LONG_LRS[:4], (0.8, 0.9, 0.95)), "adam": ADAM_LONG},
    "lm_alone": {"binsgdm": _grid(LONG_LRS[:4], (0.3, 0.5, 0.7)), "adam": ADAM_LONG},
}
"""All trials, fixed before any final run of a task."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """An optimizer, and how it is attached to the ranks.

    Attributes:
        optimizer: with the best settings of its search.
        ranks_per_node: of BinSGDM.
        options: of BinSGDM's `attach`.
    """

    optimizer: str = "binsgdm"
    ranks_per_node: int = 2
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Final runs that share a file: variants on one task, over seeds."""

    file: str
    task: str
    variants: tuple[Variant, ...]
    ranks: int = 4
    seeds: tuple[int, ...] = SCALE_SEEDS


ADAM = Variant(optimizer="adam")
FLAT = Variant(ranks_per_node=1, options={"topology": "flat"})
HIERARCHICAL = Variant(options={"topology": "hierarchical"})
OPTIONS: dict[str, dict[str, Any]] = {
    "overlap": {"overlap": True},
    "intra bf16": {"intra_node_dtype": "bf16"},
    "intra one_bit": {"intra_node_dtype": "one_bit"},
}
"""By name on the page, options of `attach` that change what travels, or when."""
AVERAGED = Variant(options={"average": "gradients"})
ALONE = Variant(ranks_per_node=1)


def _scale_variants(task: str, ranks: int) -> tuple[Variant, ...]:
    """Return one rank without nodes, more ranks with and without; Adam on 8 ranks was not run on characters."""
    variants = (FLAT,) if ranks == 1 else (FLAT, HIERARCHICAL)
    return variants if (task, ranks) == ("lm", 8) else (*variants, ADAM)


STAGES = (
    *(
        Stage(file=f"final_{task}", task=task, variants=(Variant(), ADAM), seeds=FINAL_SEEDS)
        for task in ("digits", "lm", "lm_long")
    ),
    Stage(file="final_lm_alone", task="lm_alone", variants=(ALONE, ADAM), ranks=1, seeds=FINAL_SEEDS),
    *(
        Stage(file=f"scale_{task}_{ranks}", task=task, variants=_scale_variants(task, ranks), ranks=ranks)
        for task in ("digits", "lm")
        for ranks in (1, 2, 4, 8)
    ),
    Stage(file="options_digits", task="digits", variants=tuple(Variant(options=it) for it in OPTIONS.values())),
    *(
        Stage(file=f"average_{task}", task=task, variants=(AVERAGED,), seeds=FINAL_SEEDS)
        for task in ("digits", "lm", "lm_long")
    ),
)


class TrainingStudy:
    """The study with its files.

    Args:
        folder: of all results.
    """

    def __init__(self, folder: Path = RESULTS) -> None:
        self.explored = Ledger(folder / "explore_lm.json")
        """Single runs with settings of many kinds, each with its last validation loss."""
        self.searches = {
            (task, optimizer): _search(task, optimizer, ledger)
            for task in SEARCHES
            for ledger in [Ledger(folder / f"search_{task}.json", upgrade=partial(_upgraded_trial, task))]
            for optimizer in SEARCHES[task]
        }
        self.results = {stage.file: Ledger(folder / f"{stage.file}.json", upgrade=_upgraded_result) for stage in STAGES}
        self.study = Study(name=NAME, searches=tuple(self.searches.values()), finals=self._finals)

    def rows(self, file: str, **values: object) -> list[Row]:
        """Return the rows of a file of final runs that have some values."""
        return self.results[file].having(values)

    def _finals(self) -> Iterator[Final]:
        for stage in STAGES:
            for variant in stage.variants:
                search = self.searches[stage.task, variant.optimizer]
                if search.is_done:
                    yield from (self._final(stage, variant, search.best, seed) for seed in stage.seeds)

    def _final(self, stage: Stage, variant: Variant, trial: Trial, seed: int) -> Final:
        run = _run(stage.task, variant.optimizer, stage.ranks, variant.ranks_per_node)
        run = replace(run, options=variant.options, trial=trial, seed=seed)
        on_nodes = {"ranks_per_node": variant.ranks_per_node} if run.system == "binsgdm" and run.ranks > 1 else {}
        key = {**trial, **variant.options, **on_nodes, "ranks": stage.ranks, "seed": seed}
        return Final(run=run, ledger=self.results[stage.file], key=key)


def _search(task: str, optimizer: str, ledger: Ledger) -> Search:
    # BinSGDM's steps depend on how the batch is shared, so its longest search has the ranks of its final runs.
    run = _run(task, optimizer, 1, 1)
    if (task, optimizer) == ("lm_long", "binsgdm"):
        run = replace(run, ranks=4, ranks_per_node=2, in_processes=False)
    fixed = SEARCHES[task][optimizer]
    return Search(
        system=optimizer, run=run, fixed=fixed, num_trials=len(fixed), seeds=SEARCH_SEEDS[task], ledger=ledger
    )


def _run(task: str, optimizer: str, ranks: int, ranks_per_node: int) -> Run:
    system = "dense" if optimizer == "adam" else optimizer
    return Run(study=NAME, task=task, system=system, ranks=ranks, ranks_per_node=ranks_per_node, in_processes=True)


def _upgraded_trial(task: str, row: Row) -> Row:
    """Return a row of a search, given one of an earlier version, which holds the mean of the losses only."""
    if "trial" in row:
        return row
    trial = {name: row[name] for name in ("optimizer", *SEARCHED) if name in row}
    losses = [row["loss"]] * len(SEARCH_SEEDS[task])
    return {"task": task, "system": row["optimizer"], "trial": trial, "losses": losses}


def _upgraded_result(row: Row) -> Row:
    """Return a row of a final run, given one of an earlier version, which holds a list of evaluations."""
    if "curve" not in row:
        return row
    kept = {FORMER_NAMES.get(name, name): value for name, value in row.items() if name != "curve"}
    columns = {new: [point[old] for point in row["curve"]] for old, new in COLUMNS.items() if old in row["curve"][0]}
    return {**kept, **columns}


FORMER_NAMES = {"intra": "intra_node_dtype"}
COLUMNS = {"step": "steps", "loss": "values", "accuracy": "accuracy"}
"""By their names in an evaluation of an earlier version."""

"""BinSGDM against Adam on every task, with margins and searches fixed before any final run; docs/evidence/training.md.

Three optimizers: BinSGDM with shaped rounding, BinSGDM with the paper's random rounding, Adam. The same weights,
batches and cosine decay of lr to 0 for a seed. Every optimizer has as many trials on a case: the same lrs times
values of one setting of its own, then two trials that follow the best so far (`studies.search.next_trial`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from studies.ledger import Ledger, Row
from studies.run import ROOT, Run
from studies.search import Search
from studies.study import Final, Study
from studies.tasks import TASKS, Trial

NAME = "margins"
FOLDER = ROOT / "studies" / "results"
FINAL_SEEDS = (0, 1, 2, 3, 4)
LOSS, ACCURACY = "values", "accuracy"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A task on some ranks, and how far behind Adam BinSGDM may end there.

    Attributes:
        task: in `TASKS["margins"]`.
        ranks: of them `ranks_per_node` in a node.
        margins: by column of a result; of the loss where `is_relative` as a part of Adam's.
        is_relative: whether margins are parts of Adam's mean.
        lrs: that the searches begin with.
        num_settings: of the two that an optimizer has, how many they are tried with.
        search_seeds: of the searches.
        is_real: whether the final runs have a process for each rank, over gloo; else all ranks are in one process.
    """

    task: str
    ranks: int = 4
    ranks_per_node: int = 2
    margins: dict[str, float] = field(default_factory=lambda: {LOSS: 0.05})
    is_relative: bool = False
    lrs: tuple[float, ...] = (3e-3, 6e-3, 1.2e-2)
    num_settings: int = 2
    search_seeds: tuple[int, ...] = (100,)
    is_real: bool = True


IMAGES: dict[str, Any] = {
    "margins": {ACCURACY: 0.01, LOSS: 0.05}, "lrs": (1.5e-3, 3e-3, 6e-3), "search_seeds": (100, 101)
}  # fmt: skip
SIXTEEN: dict[str, Any] = {"ranks": 16, "ranks_per_node": 4, "is_real": False}
CASES: dict[str, Case] = {
    "characters_300": Case(task="characters_300"),
    "characters_1000": Case(task="characters_1000"),
    "characters_2000": Case(task="characters_2000"),
    "characters_1000_16": Case(task="characters_1000", **SIXTEEN),
    "digits": Case(task="digits", **IMAGES),
    "digits_16": Case(task="digits", **IMAGES, **SIXTEEN),
    "mnist": Case(task="mnist", **IMAGES),
    "mnist_16": Case(task="mnist", **IMAGES, **SIXTEEN),
    # As wide and deep as the smallest GPT that people train on characters; two windows a rank.
    "gpt": Case(
        task="gpt",
        ranks=8,
        ranks_per_node=4,
        margins={LOSS: 0.02},
        is_relative=True,
        lrs=(5e-4, 1e-3, 2e-3),
        num_settings=1,
        is_real=False,
    ),
}
"""All cases, with the margins that were asked for before any of them was run."""

SHAPED, RANDOM, ADAM = "shaped", "random", "adam"
FIXED: dict[str, tuple[Trial, ...]] = {
    SHAPED: tuple(
        {"optimizer": "binsgdm", "rounding": "shaped", "beta": 0.9, "beta_b": 0.99, "nesterov": True, "gain": gain}
        for gain in (2.0, 3.0)
    ),
    RANDOM: tuple(
        {"optimizer": "binsgdm", "rounding": "random", "beta": beta, "beta_b": None, "nesterov": False, "gain": 1.0}
        for beta in (0.8, 0.9)
    ),
    ADAM: tuple({"optimizer": "adam", "beta2": beta2} for beta2 in (0.99, 0.999)),
}
"""By optimizer, the settings that every lr is tried with: two values of one of them."""
OPTIONS: dict[str, dict[str, Any]] = {SHAPED: {"average": "gradients"}, RANDOM: {}, ADAM: {}}
"""Of `binsgdm.attach`."""
WARMED_UP = (SHAPED, ADAM)
"""What starts with a warm-up of a tenth of the steps; random rounding loses by one (results/explore_lm.json)."""
NUM_FOLLOWING = 2


class MarginStudy:
    """The study with its files.

    Args:
        folder: of the results.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        trials = Ledger(folder / "margins_search.json")
        self.results = Ledger(folder / "margins_final.json")
        self.searches = {(case, name): _search(case, name, trials) for case in CASES for name in FIXED}
        self.study = Study(name=NAME, searches=tuple(self.searches.values()), finals=self._finals)

    def rows(self, case: str, optimizer: str) -> list[Row]:
        """Return the final runs of an optimizer in a case, seed by seed."""
        rows = self.results.having({"case": case, "optimizer": optimizer})
        return sorted(rows, key=lambda row: int(row["seed"]))

    def _finals(self) -> Iterator[Final]:
        for (case, optimizer), search in self.searches.items():
            if search.is_done:
                for seed in FINAL_SEEDS:
                    run = _run(case, optimizer, trial=search.best, seed=seed, in_processes=CASES[case].is_real)
                    key = {"case": case, "optimizer": optimizer, "seed": seed}
                    yield Final(run=run, ledger=self.results, key=key, rounded=True)


def _search(case: str, optimizer: str, ledger: Ledger) -> Search:
    of = CASES[case]
    warmup = {"warmup": TASKS[NAME][of.task].steps // 10} if optimizer in WARMED_UP else {}
    settings = FIXED[optimizer][: of.num_settings]
    fixed = tuple({**some, **warmup, "lr": lr} for some in settings for lr in of.lrs)
    return Search(
        system=f"{optimizer}, {case}",
        run=_run(case, optimizer),
        fixed=fixed,
        num_trials=len(fixed) + NUM_FOLLOWING,
        seeds=of.search_seeds,
        ledger=ledger,
    )


def _run(case: str, optimizer: str, **changes: Any) -> Run:
    of = CASES[case]
    return Run(
        study=NAME,
        task=of.task,
        system="dense" if optimizer == ADAM else "binsgdm",
        options=OPTIONS[optimizer],
        ranks=of.ranks,
        ranks_per_node=of.ranks_per_node,
        **changes,
    )

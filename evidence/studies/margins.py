"""BinSGDM against Adam on every task, with margins and searches fixed before any final run; docs/evidence/binsgdm.md.

Three optimizers are searched for: BinSGDM with shaped rounding, BinSGDM with the paper's random rounding, Adam. The
same weights, batches and cosine decay of lr to 0 for a seed. Every optimizer has as many trials on a case: the same lrs
times values of one setting of its own, then two trials that follow the best so far (`study.next_trial`). A
fourth is not searched for: BinSGDM with its defaults, and an lr that follows from Adam's by one rule for all cases.
"""

import math
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from evidence import RESULTS
from evidence.studies import figures
from evidence.studies.page import BINSGDM, FIGURES, Interval, number
from evidence.studies.run import Run
from evidence.studies.study import Final, Ledger, Row, Search, Study, mean_loss
from evidence.studies.tasks import TASKS, Trial
from simnet.report.table import Table

PAGE = BINSGDM
FINAL_SEEDS = (0, 1, 2, 3, 4)  # of five, a 95 % interval is 2.8 standard errors either way
LOSS, ACCURACY = "values", "accuracy"
IMAGES: dict[str, Any] = {
    "margins": {ACCURACY: 0.01, LOSS: 0.05}, "lrs": (1.5e-3, 3e-3, 6e-3), "search_seeds": (100, 101)
}  # fmt: skip
SIXTEEN: dict[str, Any] = {"ranks": 16, "ranks_per_node": 4, "is_real": False}
SHAPED, RANDOM, ADAM, DEFAULTS = "shaped", "random", "adam", "defaults"
AVERAGED = "defaults, gradients averaged"
"""`DEFAULTS` with the gradients averaged in a node, which is run on 16 ranks only."""
OPTIMIZERS = (SHAPED, ADAM, DEFAULTS, RANDOM)
"""In the order of the final runs, so that a case which is stopped early has what is asked for first."""
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
OPTIONS: dict[str, dict[str, Any]] = {
    SHAPED: {"average": "gradients"},
    RANDOM: {},
    ADAM: {},
    DEFAULTS: {},
    AVERAGED: {"average": "gradients"},
}
"""Of `binsgdm.attach`."""
LR_OF_ADAM = 0.7
"""What the best lr of Adam is multiplied by to have that of `DEFAULTS`; from the searches, `gpt` aside."""
DEFAULT_SETTINGS: Trial = {
    "optimizer": "binsgdm", "rounding": "shaped", "beta": 0.9, "beta_b": 0.99, "nesterov": True, "gain": 2.0
}  # fmt: skip
"""Those that `binsgdm.BinSGDM` has where nothing is said; written out, so that a row says what it was run with."""
UNSEARCHED = (DEFAULTS, AVERAGED)
WARMED_UP = (SHAPED, ADAM, *UNSEARCHED)
"""What starts with a warm-up of a tenth of the steps; random rounding gains nothing by it (evidence/binsgdm.md)."""
NUM_FOLLOWING = 2
RUN_TWICE = "characters_300"
"""The case whose final runs are made a second time with all ranks in one process, to see that both are alike."""
IN_ONE_PROCESS = f"{RUN_TWICE} in one process"
TITLES = {
    SHAPED: "BinSGDM, searched", DEFAULTS: "BinSGDM, defaults", RANDOM: "BinSGDM, random", ADAM: "Adam"
}  # fmt: skip
NOT_RUN = "not run"
SEARCHED = {SHAPED: ("lr", "gain"), RANDOM: ("lr", "beta"), ADAM: ("lr", "beta2")}
"""By optimizer, the settings in which its trials differ."""
METRICS = {LOSS: "loss", ACCURACY: "accuracy"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A task on some ranks, and how far behind Adam BinSGDM may end there.

    Attributes:
        margins: by column of a result; of the loss where `is_relative` as a part of Adam's mean.
        lrs: that the searches begin with.
        num_settings: of the two that an optimizer has, how many they are tried with.
        is_real: whether the final runs have a process for each rank, over gloo; else all ranks are in one process,
            which takes a third of the time.
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


CASES: dict[str, Case] = {
    "characters_300": Case(task="characters_300"),
    "characters_1000": Case(task="characters_1000"),
    "characters_2000": Case(task="characters_2000", is_real=False),
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


class MarginStudy(Study):
    def __init__(self) -> None:
        trials = Ledger(RESULTS / "margins_search.json")
        self.results = Ledger(RESULTS / "margins_final.json")
        self.searches = {(case, name): _search(case, name, trials) for case in CASES for name in FIXED}

    def rows(self, case: str, optimizer: str) -> list[Row]:
        rows = self.results.having({"case": case, "optimizer": optimizer})
        return sorted(rows, key=lambda row: int(row["seed"]))

    def has_run(self, case: str, optimizer: str) -> bool:
        return len(self.rows(case, optimizer)) == len(FINAL_SEEDS)

    @property
    def cases(self) -> list[str]:
        """The cases with all final runs of what is asked for."""
        return [case for case in CASES if self.has_run(case, SHAPED) and self.has_run(case, ADAM)]

    def last(self, case: str, optimizer: str, column: str = LOSS) -> list[float]:
        """Return the last evaluation of each final run."""
        return [row[column][-1] for row in self.rows(case, optimizer)]

    def finals(self) -> Iterator[Final]:
        of_cases = [(name, name, optimizer, CASES[name].is_real) for name, optimizer in product(CASES, OPTIMIZERS)]
        of_cases += [(name, name, AVERAGED, False) for name, of in CASES.items() if of.ranks == 16]
        of_cases += [(IN_ONE_PROCESS, RUN_TWICE, optimizer, False) for optimizer in OPTIMIZERS]
        for name, case, optimizer, in_processes in of_cases:
            search = self.searches[case, ADAM if optimizer in UNSEARCHED else optimizer]
            if search.is_done:
                trial = defaults(search.best) if optimizer in UNSEARCHED else search.best
                for seed in FINAL_SEEDS:
                    run = _run(case, optimizer, trial=trial, seed=seed, in_processes=in_processes)
                    yield Final(run, self.results, {"case": name, "optimizer": optimizer, "seed": seed})


def defaults(of_adam: Trial) -> Trial:
    """Return BinSGDM's defaults with the lr, and the warm-up, that follow from Adam's.

    Example:
        >>> defaults({"optimizer": "adam", "lr": 0.01, "warmup": 30})["lr"]
        0.007
    """
    return {**DEFAULT_SETTINGS, "warmup": of_adam["warmup"], "lr": float(f"{LR_OF_ADAM * of_adam['lr']:.3g}")}


def _search(case: str, optimizer: str, ledger: Ledger) -> Search:
    of = CASES[case]
    warmup = {"warmup": TASKS["margins"][of.task].steps // 10} if optimizer in WARMED_UP else {}
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
        study="margins",
        task=of.task,
        system="dense" if optimizer == ADAM else "binsgdm",
        options=OPTIONS[optimizer],
        ranks=of.ranks,
        ranks_per_node=of.ranks_per_node,
        **changes,
    )


def read() -> MarginStudy:
    return MarginStudy()


def regions(study: MarginStudy) -> dict[str, str]:
    """Return the verdicts without margins and intervals; a case and its metric in one column."""
    table = verdicts(study)
    heads = [column.title.removeprefix("BinSGDM, ") for column in table.columns[3:]]
    lines = [
        (f"{case}, {metric}", *(re.sub(r" \[.*\]|not run", "", cell) for cell in cells))
        for case, metric, _, *cells in table.rows
    ]
    return {"margins": Table(["BinSGDM less Adam", *heads], lines).markdown()}


def data(study: MarginStudy) -> dict[str, Table]:
    cases = [(name, column) for name in study.cases for column in CASES[name].margins]
    finals = [
        [
            title(CASES[name]),
            METRICS[column],
            *(
                spread(study.last(name, optimizer, column)) if study.has_run(name, optimizer) else NOT_RUN
                for optimizer in TITLES
            ),
        ]
        for name, column in cases
    ]
    twice = []
    for optimizer, name in TITLES.items():
        real, played = (study.last(case, optimizer) for case in (RUN_TWICE, IN_ONE_PROCESS))
        if len(real) == len(played) == len(FINAL_SEEDS):
            twice.append([name, spread(real), spread(played), interval_text(Interval.paired(played, real))])
    searched = [
        [title(CASES[case]), TITLES[name], *best_texts(search, SEARCHED[name])]
        for (case, name), search in study.searches.items()
        if search.is_done
    ]
    heads = [title(CASES[RUN_TWICE]), "a process a rank", "one process", "difference"]
    return {
        "training": Table(["case", "metric", *TITLES.values()], finals),
        "training-margins": verdicts(study),
        "training-processes": Table(heads, twice),
        "training-search": Table(["case", "optimizer", "best", "next", "worst"], searched),
    }


def draw(study: MarginStudy) -> None:
    rows = {
        case: {optimizer: study.rows(case, optimizer) for optimizer in TITLES if study.has_run(case, optimizer)}
        for case in study.cases
    }
    figures.draw_losses(rows, TITLES, {case: title(CASES[case]) for case in rows}, FIGURES / "margins.png")


def title(case: Case) -> str:
    """Return what a case is, for people.

    Example:
        >>> title(CASES["characters_1000_16"])
        'Characters, 1000 steps, 16 ranks'
    """
    task = TASKS["margins"][case.task]
    return f"{task.title.removesuffix(', 5,000 images')}, {task.steps} steps, {case.ranks} ranks"


def verdicts(study: MarginStudy) -> Table:
    """Return the table of what BinSGDM ends at, less what Adam does, and whether that is within the margin."""
    titles = {other: TITLES[other] for other in (SHAPED, DEFAULTS, RANDOM)} | {
        AVERAGED: 'defaults, average="gradients"'
    }
    lines = []
    for name in study.cases:
        for column, margin in CASES[name].margins.items():
            of_adam, is_relative = study.last(name, ADAM, column), CASES[name].is_relative
            most = margin * statistics.fmean(of_adam) if is_relative else margin
            texts = []
            for other in titles:
                if study.has_run(name, other):
                    apart = Interval.paired(study.last(name, other, column), of_adam)
                    texts.append(f"{interval_text(apart)} {verdict(apart, most, column)}")
                else:
                    texts.append(NOT_RUN)
            lines.append([title(CASES[name]), METRICS[column], f"{margin:g}" + " of Adam's" * is_relative, *texts])
    return Table(["case", "metric", "margin", *titles.values()], lines)


def best_texts(search: Search, names: tuple[str, ...]) -> list[str]:
    """Return the two best trials of a search and its worst, with their validation loss."""
    best = sorted(search.rows, key=lambda row: mean_loss(row["losses"]))
    shown = (*best[:2], best[-1])
    return [trial_text(row["trial"], names, mean_loss(row["losses"])) for row in shown]


def trial_text(trial: Trial, names: tuple[str, ...], loss: float) -> str:
    """Return some settings of a trial and its validation loss.

    Example:
        >>> trial_text({"optimizer": "adam", "lr": 0.01, "beta2": 0.99, "warmup": 200}, ("lr", "beta2"), 1.7056)
        'lr 0.01, beta2 0.99: 1.706'
    """
    settings = ", ".join(f"{name} {trial[name]:.4g}" for name in names)
    return f"{settings}: {'diverged' if math.isinf(loss) else number(loss)}"


def verdict(apart: Interval, margin: float, column: str) -> str:
    """Return whether the whole interval is within the margin, beyond it, or neither.

    Example:
        >>> verdict(Interval(mean=-0.02, low=-0.03, high=-0.01), 0.01, "accuracy")
        'not shown'
    """
    worst, least = (-apart.low, -apart.high) if column == ACCURACY else (apart.high, apart.low)
    if worst <= margin:
        return "better" if worst < 0 else "reached"
    return "missed" if least > margin else "not shown"


def interval_text(apart: Interval) -> str:
    return f"{apart.mean:+.4f} [{apart.low:+.4f}, {apart.high:+.4f}]"


def spread(values: list[float]) -> str:
    """Return mean and standard deviation over seeds."""
    return f"{statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f}"

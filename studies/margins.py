"""BinSGDM against Adam on every task, with margins and searches fixed before any final run; docs/evidence/binsgdm.md.

Three optimizers are searched for: BinSGDM with shaped rounding, BinSGDM with the paper's random rounding, Adam. The
same weights, batches and cosine decay of lr to 0 for a seed. Every optimizer has as many trials on a case: the same lrs
times values of one setting of its own, then two trials that follow the best so far (`studies.search.next_trial`). A
fourth is not searched for: BinSGDM with its defaults, and an lr that follows from Adam's by one rule for all cases.
"""

import math
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from simnet.report.table import Table
from studies import figures
from studies.interval import Interval
from studies.ledger import Ledger, Row
from studies.page import BINSGDM, FIGURES, number
from studies.run import ROOT, Run
from studies.search import Search, mean_loss
from studies.study import Final, Study
from studies.tasks import TASKS, Trial

NAME = "margins"
PAGE = BINSGDM
FOLDER = ROOT / "studies" / "results"
FINAL_SEEDS = (0, 1, 2, 3, 4)
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
FIGURE = FIGURES / "margins.png"
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
        task: in `TASKS["margins"]`.
        ranks: of them `ranks_per_node` in a node.
        margins: by column of a result; of the loss where `is_relative` as a part of Adam's.
        is_relative: whether margins are parts of Adam's mean.
        lrs: that the searches begin with.
        num_settings: of the two that an optimizer has, how many they are tried with.
        search_seeds: of the searches.
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
        for case, optimizer in product(CASES, OPTIMIZERS):
            yield from self._finals_of(case, case, optimizer, in_processes=CASES[case].is_real)
        for case, of in CASES.items():
            if of.ranks == 16:
                yield from self._finals_of(case, case, AVERAGED, in_processes=False)
        for optimizer in OPTIMIZERS:
            yield from self._finals_of(IN_ONE_PROCESS, RUN_TWICE, optimizer, in_processes=False)

    def _finals_of(self, name: str, case: str, optimizer: str, *, in_processes: bool) -> Iterator[Final]:
        search = self.searches[case, ADAM if optimizer in UNSEARCHED else optimizer]
        if search.is_done:
            trial = defaults(search.best) if optimizer in UNSEARCHED else search.best
            for seed in FINAL_SEEDS:
                run = _run(case, optimizer, trial=trial, seed=seed, in_processes=in_processes)
                key = {"case": name, "optimizer": optimizer, "seed": seed}
                yield Final(run=run, ledger=self.results, key=key, rounded=True)


def defaults(of_adam: Trial) -> Trial:
    """Return BinSGDM's defaults with the lr, and the warm-up, that follow from Adam's.

    Example:
        >>> defaults({"optimizer": "adam", "lr": 0.01, "warmup": 30})["lr"]
        0.007
    """
    return {**DEFAULT_SETTINGS, "warmup": of_adam["warmup"], "lr": float(f"{LR_OF_ADAM * of_adam['lr']:.3g}")}


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


def read() -> MarginStudy:
    """Return the study with what is done."""
    return MarginStudy()


def regions(study: MarginStudy) -> dict[str, str]:
    """Return the generated parts of the page, by region."""
    return {"margins": _without_intervals(verdicts(study)).markdown()}


def data(study: MarginStudy) -> dict[str, Table]:
    """Return the tables that the page links to, by name."""
    return {
        "training": finals(study),
        "training-margins": verdicts(study),
        "training-processes": played_beside_real(study),
        "training-search": searched(study),
    }


def draw(study: MarginStudy) -> None:
    """Draw the figure, if a case has run."""
    rows = {
        case: {name: study.rows(case, name) for name in TITLES if _has_run(study, case, name)}
        for case in _run_cases(study)
    }
    if rows:
        figures.draw_margins(rows, TITLES, {case: title(CASES[case]) for case in rows}, FIGURE)


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
    for name in _run_cases(study):
        for column, margin in CASES[name].margins.items():
            most = allowed(study, name, column)
            apart = [
                difference(study, name, other, column) if _has_run(study, name, other) else None for other in titles
            ]
            texts = [f"{interval_text(one)} {verdict(one, most, column)}" if one else NOT_RUN for one in apart]
            margin_text = f"{margin:g}" + " of Adam's" * CASES[name].is_relative
            lines.append([title(CASES[name]), METRICS[column], margin_text, *texts])
    return Table(["case", "metric", "margin", *titles.values()], lines)


def _without_intervals(table: Table) -> Table:
    """Return a table of what is ended at without margins and intervals; a case and its metric in one column."""
    heads = [column.title.removeprefix("BinSGDM, ") for column in table.columns[3:]]
    lines = [
        (f"{case}, {metric}", *(re.sub(r" \[.*\]|not run", "", cell) for cell in cells))
        for case, metric, _, *cells in table.rows
    ]
    return Table(["BinSGDM less Adam", *heads], lines)


def finals(study: MarginStudy) -> Table:
    """Return the table of what every optimizer ends at."""
    lines = [
        [title(CASES[name]), METRICS[column], *(_ended(study, name, other, column) for other in TITLES)]
        for name in _run_cases(study)
        for column in CASES[name].margins
    ]
    return Table(["case", "metric", *TITLES.values()], lines)


def played_beside_real(study: MarginStudy) -> Table:
    """Return the table of a case run by processes and again in one process."""
    lines = []
    for optimizer, name in TITLES.items():
        real, played = (study.rows(case, optimizer) for case in (RUN_TWICE, IN_ONE_PROCESS))
        if len(real) == len(played) == len(FINAL_SEEDS):
            apart = Interval.paired(last(played, LOSS), last(real, LOSS))
            lines.append([name, spread(last(real, LOSS)), spread(last(played, LOSS)), interval_text(apart)])
    return Table([title(CASES[RUN_TWICE]), "a process a rank", "one process", "difference"], lines)


def searched(study: MarginStudy) -> Table:
    """Return the table of the best trials of each search."""
    lines = [
        [title(CASES[case]), TITLES[name], *best_texts(search, SEARCHED[name])]
        for (case, name), search in study.searches.items()
        if search.is_done
    ]
    return Table(["case", "optimizer", "best", "next", "worst"], lines)


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


def difference(study: MarginStudy, case: str, optimizer: str, column: str) -> Interval:
    """Return an optimizer's final values less Adam's, paired by seed."""
    return Interval.paired(*(last(study.rows(case, name), column) for name in (optimizer, ADAM)))


def allowed(study: MarginStudy, case: str, column: str) -> float:
    """Return by how much BinSGDM may be worse than Adam."""
    margin = CASES[case].margins[column]
    return margin * statistics.fmean(last(study.rows(case, ADAM), column)) if CASES[case].is_relative else margin


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
    """Return a difference with its interval."""
    return f"{apart.mean:+.4f} [{apart.low:+.4f}, {apart.high:+.4f}]"


def last(rows: list[Row], column: str) -> list[float]:
    """Return the last evaluation of each row."""
    return [row[column][-1] for row in rows]


def spread(values: list[float]) -> str:
    """Return mean and standard deviation over seeds."""
    return f"{statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f}"


def _ended(study: MarginStudy, case: str, optimizer: str, column: str) -> str:
    return spread(last(study.rows(case, optimizer), column)) if _has_run(study, case, optimizer) else NOT_RUN


def _run_cases(study: MarginStudy) -> list[str]:
    """Return the cases with all final runs of what is asked for."""
    return [case for case in CASES if all(_has_run(study, case, name) for name in (SHAPED, ADAM))]


def _has_run(study: MarginStudy, case: str, optimizer: str) -> bool:
    return len(study.rows(case, optimizer)) == len(FINAL_SEEDS)

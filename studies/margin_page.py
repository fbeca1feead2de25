"""What docs/evidence/binsgdm.md says of training against Adam: tables and figure, from the committed files."""

import math
import re
import statistics

from simnet.report.table import Table
from studies import figures
from studies.interval import Interval
from studies.ledger import Row
from studies.margin_study import (
    ACCURACY,
    ADAM,
    AVERAGED,
    CASES,
    DEFAULTS,
    FINAL_SEEDS,
    IN_ONE_PROCESS,
    LOSS,
    RANDOM,
    RUN_TWICE,
    SHAPED,
    Case,
    MarginStudy,
)
from studies.page import BINSGDM, FIGURES, number
from studies.search import Search, mean_loss
from studies.tasks import TASKS, Trial

PAGE = BINSGDM
FIGURE = FIGURES / "margins.png"
TITLES = {
    SHAPED: "BinSGDM, searched", DEFAULTS: "BinSGDM, defaults", RANDOM: "BinSGDM, random", ADAM: "Adam"
}  # fmt: skip
NOT_RUN = "not run"
SEARCHED = {SHAPED: ("lr", "gain"), RANDOM: ("lr", "beta"), ADAM: ("lr", "beta2")}
"""By optimizer, the settings in which its trials differ."""
METRICS = {LOSS: "loss", ACCURACY: "accuracy"}


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

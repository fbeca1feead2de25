"""The tables and the figure of docs/evidence/training.md, from the committed files."""

import statistics

from binsgdm import BinSGDM
from simnet.show.table import Table
from studies import figures
from studies.interval import Interval
from studies.ledger import Row, having
from studies.page import EVIDENCE, FIGURES
from studies.search import Search, mean_loss
from studies.tasks import Trial
from studies.training_study import OPTIONS, SEARCHED, TrainingStudy

PAGE = EVIDENCE / "training.md"
MARGINS = {"digits": ("accuracy", 0.01), "lm": ("loss", 0.05), "lm_long": ("loss", 0.05), "lm_alone": ("loss", 0.05)}
"""Fixed before any final run: BinSGDM reaches Adam if the whole interval is no worse than Adam by more than this."""
TITLES = {"binsgdm": BinSGDM.title, "adam": "Adam"}
METRICS = {"accuracy": "test accuracy", "values": "test loss (nats)"}
"""By column of a row, the title of its column in a table."""


def regions(study: TrainingStudy) -> dict[str, str]:
    """Return the generated parts of the page, by region."""
    tables = {
        "searches": searched(study),
        "verdicts": verdicts(study),
        "exploration": explored(study.explored.rows),
        "ranks, digits": scaled(study, "digits", ("accuracy", "values")),
        "ranks, lm": scaled(study, "lm", ("values",)),
        "options": varied(study),
    }
    return {name: table.markdown() for name, table in tables.items()}


def draw(study: TrainingStudy) -> None:
    """Draw the figure."""
    rows = {task: {name: study.rows(f"final_{task}", optimizer=name) for name in TITLES} for task in MARGINS}
    figures.draw_training(rows, TITLES, FIGURES / "training_curves.png")


def searched(study: TrainingStudy) -> Table:
    """Return the table of the best trials of each search."""
    rows = [[task, TITLES[system], *best_texts(search)] for (task, system), search in study.searches.items()]
    return Table(["task", "optimizer", "best", "next", "next", "next"], rows)


def best_texts(search: Search) -> list[str]:
    """Return the four best trials of a search, with their validation loss in nats."""
    best = sorted(search.rows, key=lambda row: mean_loss(row["losses"]))[:4]
    return [trial_text(row["trial"], mean_loss(row["losses"])) for row in best]


def verdicts(study: TrainingStudy) -> Table:
    """Return the table of the final runs: BinSGDM against Adam, averaging updates or gradients inside a node."""
    finals = {task: study.rows(f"final_{task}") for task in MARGINS}
    rows = [verdict(task, task, finals[task]) for task in MARGINS]
    for task in ("digits", "lm", "lm_long"):
        averaged = study.rows(f"average_{task}") + having(finals[task], {"optimizer": "adam"})
        rows.append(verdict(f"{task}, average gradients", task, averaged))
    columns = ["task", "metric", *TITLES.values(), "difference, 95 % interval", "margin", "verdict"]
    return Table(columns, rows)


def verdict(title: str, task: str, rows: list[Row]) -> list[str]:
    """Return the row of a task: BinSGDM minus Adam, paired by seed."""
    metric, margin = MARGINS[task]
    column = "accuracy" if metric == "accuracy" else "values"
    rows = sorted(rows, key=lambda row: int(row["seed"]))
    ours, theirs = (last(having(rows, {"optimizer": optimizer}), column) for optimizer in TITLES)
    difference = Interval.of([our - their for our, their in zip(ours, theirs, strict=True)])
    worst, least = (difference.high, difference.low) if metric == "loss" else (-difference.low, -difference.high)
    reached = "reached" if worst <= margin else "missed" if least > margin else "not shown"
    interval = f"{difference.mean:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}]"
    return [title, metric, spread(ours), spread(theirs), interval, str(margin), reached]


_OURS: Trial = {"optimizer": "binsgdm", "weight_decay": None, "no_draw": None}
EXPLORED: dict[str, Trial] = {
    "Adam": {"optimizer": "adam", "weight_decay": None},
    "BinSGDM, 1 rank": {**_OURS, "play_ranks": None},
    "2 ranks": {**_OURS, "play_ranks": 2},
    "4 ranks": {**_OURS, "play_ranks": 4, "ranks_per_node": 2},
    "1 rank, no draw": {**_OURS, "play_ranks": 1, "no_draw": True},
    "4 ranks, no draw": {**_OURS, "play_ranks": 4, "no_draw": True},
}
"""Columns of the exploration: the rows that each is the best of. Two ranks are two nodes, four are two of two."""


def explored(rows: list[Row]) -> Table:
    """Return the table of the exploration: the best of what was tried at each number of steps and each batch."""
    rows = [{"batch": 16, **row} for row in rows]
    lines: list[list[str]] = []
    for steps, batch in sorted({(row["steps"], row["batch"]) for row in rows}):
        cells = [having(rows, {"steps": steps, "batch": batch, **values}) for values in EXPLORED.values()]
        lines.append([str(steps), str(batch), *map(best_explored, cells)])
    return Table(["steps", "batch", *EXPLORED], lines)


def best_explored(rows: list[Row]) -> str:
    """Return the run of lowest loss, and of how many it is the best."""
    if not rows:
        return ""
    best = min(rows, key=lambda row: float(row["loss"]))
    return f"{trial_text(best, best['loss'])} ({len(rows)})"


def scaled(study: TrainingStudy, task: str, columns: tuple[str, ...]) -> Table:
    """Return the table of a task over ranks and topology."""
    shapes: dict[str, Trial] = {
        "BinSGDM, flat": {"optimizer": "binsgdm", "topology": "flat"},
        "BinSGDM, hierarchical": {"optimizer": "binsgdm", "topology": "hierarchical"},
        "Adam": {"optimizer": "adam"},
    }
    lines = [
        [str(ranks), name, *(spread(last(rows, column)) for column in columns)]
        for ranks in (1, 2, 4, 8)
        for name, shape in shapes.items()
        if (rows := study.rows(f"scale_{task}_{ranks}", **shape))
    ]
    return Table(["ranks", "optimizer, topology", *(METRICS[column] for column in columns)], lines)


def varied(study: TrainingStudy) -> Table:
    """Return the table of digits over the options of `attach`, on four ranks."""
    variants = {"none": study.rows("scale_digits_4", optimizer="binsgdm", topology="hierarchical")}
    variants |= {name: study.rows("options_digits", **options) for name, options in OPTIONS.items()}
    lines = [[name, *(spread(last(rows, column)) for column in METRICS)] for name, rows in variants.items()]
    return Table(["option", *METRICS.values()], lines)


def last(rows: list[Row], column: str) -> list[float]:
    """Return the last evaluation of each row."""
    return [row[column][-1] for row in rows]


def spread(values: list[float]) -> str:
    """Return mean and standard deviation over two or more seeds."""
    if len(values) < 2:
        return f"{values[0]:.4f} (1 seed)"
    return f"{statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f}"


def trial_text(trial: Trial, loss: float) -> str:
    """Return the settings of a trial and its validation loss in nats.

    Example:
        >>> trial_text({"optimizer": "adam", "lr": 0.01, "warmup": 200}, 1.7056)
        'lr 0.01, warm-up 200: 1.706'
    """
    names = {"warmup": "warm-up", "weight_decay": "weight decay"}
    settings = [f"{names.get(name, name)} {trial[name]:.4g}" for name in SEARCHED if name in trial]
    return ", ".join(settings) + f": {loss:.3f}"

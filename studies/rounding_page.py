"""What docs/evidence/binsgdm.md says of single changes: tables and figure, from the committed file."""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from simnet.report.table import Table
from studies import figures
from studies.ledger import Row
from studies.page import BINSGDM, FIGURES, number
from studies.rounding_study import BASE, MANY_RANKS, PAPER, PLAYED, SEEDS, TOGETHER, TRIALS, RoundingStudy

PAGE = BINSGDM
FIGURE = FIGURES / "rounding_explored.png"
Settings = tuple[Mapping[str, Any], Mapping[str, Any]]


def regions(study: RoundingStudy) -> dict[str, str]:
    """Return the generated parts of the page, by region."""
    return {"rounding": together(study).markdown()}


def data(study: RoundingStudy) -> dict[str, Table]:
    """Return the tables that the page links to, by name."""
    return {"rounding": explored(study), "rounding-ranks": over_ranks(study)}


def draw(study: RoundingStudy) -> None:
    """Draw a panel for each thing that was changed."""
    panels = {
        what: {title: study.rows(*settings) for title, settings in variants.items()}
        for what, variants in _by_what().items()
    }
    figures.draw_explored(panels, study.rows({}, {}), FIGURE)


def together(study: RoundingStudy) -> Table:
    """Return the way from the paper's form to the base; the paper's form with a warm-up, and Adam."""
    forms = {**TOGETHER, "the paper's form, with warm-up": (PAPER, {})}
    lines = [[title, *_losses(study.rows(*settings))] for title, settings in forms.items()]
    adam = {title: study.rows({}, trial) for title, trial in TRIALS["Adam"].items()}
    best = min(adam, key=lambda title: _mean(adam[title]))
    return Table(["form", *_seed_titles(), "mean"], [*lines, [f"Adam, {best}", *_losses(adam[best])]])


def explored(study: RoundingStudy) -> Table:
    """Return the table of single changes."""
    base = _mean(study.rows({}, {}))
    lines = [[BASE, "", *_losses(study.rows({}, {})), ""]]
    for what, variants in _by_what().items():
        for title, settings in variants.items():
            rows = study.rows(*settings)
            lines.append([what, title, *_losses(rows), f"{_mean(rows) - base:+.3f}"])
    return Table(["changed", "to", *_seed_titles(), "mean", "less the base"], lines)


def over_ranks(study: RoundingStudy) -> Table:
    """Return the table of 16 ranks."""
    forms: dict[str, Settings] = {
        "the paper's form": (PAPER, {"warmup": 0}),
        **{title: (options, {}) for title, options in MANY_RANKS.items()},
    }
    lines = [[title, *_losses(study.rows(*settings, ranks=16))] for title, settings in forms.items()]
    return Table(["16 ranks, 4 nodes of 4", *_seed_titles(), "mean"], lines)


def _by_what() -> dict[str, dict[str, Settings]]:
    """Return by what is changed, and by title, the settings of every single change."""
    played = {what: {title: (options, {}) for title, options in of.items()} for what, of in PLAYED.items() if what}
    trials = {what: {title: ({}, trial) for title, trial in of.items()} for what, of in TRIALS.items()}
    return {**played, **trials}


def _seed_titles() -> Iterator[str]:
    return (f"seed {seed}" for seed in SEEDS)


def _losses(rows: list[Row]) -> list[str]:
    finals = [row["values"][-1] for row in rows]
    return [*("diverged" if final is None else number(final) for final in finals), number(_mean(rows))]


def _mean(rows: list[Row]) -> float:
    finals = [row["values"][-1] for row in rows]
    return float("inf") if None in finals or not finals else statistics.fmean(finals)

"""What was tried to bring BinSGDM to Adam's loss, behind docs/evidence/binsgdm.md: one change at a time, two seeds."""

import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simnet.report.table import Table
from studies import figures
from studies.ledger import Ledger, Row
from studies.page import BINSGDM, FIGURES, number
from studies.run import ROOT, Run
from studies.study import Final, Study

NAME = "rounding"
FILE = ROOT / "studies" / "results" / "explored_rounding.json"
SEEDS = (100, 101)
BASE = "base"
LR, WARMUP = 8e-3, 100

PLAYED: dict[str, dict[str, Mapping[str, Any]]] = {
    "": {BASE: {}},
    "rounding": {
        "random at both places, as in the paper": {"rounding": "random"},
        "random at the merge only": {"merge_rounding": "random"},
        "random in the node only": {"rounding": "random", "merge_rounding": "shaped"},
        "none (not one bit)": {"rounding": "none"},
        "shaped by second order": {"rounding": "second_order"},
        "shaped, without a dithered start": {"is_dithered": False},
        "a scale per tensor, error feedback": {"rounding": "tensor_scale"},
    },
    "gain": {
        **{f"{gain:g}": {"gain": gain} for gain in (1.0, 1.5, 3.0, 4.0)},
        "3 falling to 1": {"gain": 3.0, "final_gain": 1.0},
        "1 rising to 3": {"gain": 1.0, "final_gain": 3.0},
        "so that the mean of |u| is 0.2": {"mean_u": 0.2},
        "so that the mean of |u| is 0.3": {"mean_u": 0.3},
    },
    "decays": {
        "b decays as m (0.9)": {"beta_b": None},
        "b decays by 0.95": {"beta_b": 0.95},
        "b decays by 0.98": {"beta_b": 0.98},
        "b decays by 0.995": {"beta_b": 0.995},
        "b decays by 0.999": {"beta_b": 0.999},
        "no look-ahead, m decays by 0.9": {"nesterov": False},
        "no look-ahead, m decays by 0.8": {"nesterov": False, "beta": 0.8},
        "m decays by 0.8": {"beta": 0.8},
        "m decays by 0.95": {"beta": 0.95},
    },
    "b": {
        "root of a mean of squares": {"squares": True, "beta_b": 0.99, "gain": 3.0},
        "agreed on between nodes, element by element": {"agreed_b": "element"},
        "agreed on between nodes, a mean a tensor": {"agreed_b": "tensor"},
        "kept where the gradient is 0": {"keeps_b": True},
    },
    "averaged in the node": {
        "updates": {"average": "updates"},
        "updates, gain 3": {"average": "updates", "gain": 3.0},
    },
}
"""By what is changed: titles, and the settings of `played.Form` that differ from the base."""
TRIALS: dict[str, dict[str, Mapping[str, Any]]] = {
    "schedule": {
        "no warm-up": {"warmup": 0},
        "no warm-up, lr 0.006": {"warmup": 0, "lr": 6e-3},
        "warm-up of 50 steps": {"warmup": 50},
        "warm-up of 200 steps": {"warmup": 200},
        "lr 0.0057": {"lr": 5.7e-3},
        "lr 0.0113": {"lr": 1.13e-2},
        "weight decay 0.1": {"weight_decay": 0.1},
    },
    "Adam": {
        "lr 0.008": {"optimizer": "adam"},
        "lr 0.011": {"optimizer": "adam", "lr": 1.1e-2},
        "lr 0.016": {"optimizer": "adam", "lr": 1.6e-2},
        "lr 0.011, beta2 0.99": {"optimizer": "adam", "lr": 1.1e-2, "beta2": 0.99},
    },
}
"""By what is changed: titles, and what differs of lr, its schedule and the optimizer."""
PAPER: Mapping[str, Any] = {
    "rounding": "random", "gain": 1.0, "beta": 0.8, "beta_b": None, "nesterov": False, "average": "updates"
}  # fmt: skip
TOGETHER: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "the paper's form": (PAPER, {"warmup": 0}),
    "shaped": ({**PAPER, "rounding": "shaped"}, {"warmup": 0}),
    "shaped, gain 2": ({**PAPER, "rounding": "shaped", "gain": 2.0}, {"warmup": 0}),
    "and gradients averaged in the node": (
        {**PAPER, "rounding": "shaped", "gain": 2.0, "average": "gradients"}, {"warmup": 0}
    ),
    "and b decays by 0.99": (
        {**PAPER, "rounding": "shaped", "gain": 2.0, "average": "gradients", "beta_b": 0.99}, {"warmup": 0}
    ),
    "and warm-up": ({**PAPER, "rounding": "shaped", "gain": 2.0, "average": "gradients", "beta_b": 0.99}, {}),
    "and a look-ahead, m decays by 0.9": ({}, {}),
}  # fmt: skip
"""From the paper's form to the base, one change after the other."""
MANY_RANKS: dict[str, Mapping[str, Any]] = {
    **{f"base, gain {gain:g}": {"gain": gain} for gain in (2.0, 3.0, 4.0)},
    "base, updates averaged": {"average": "updates"},
    "base, updates clipped on each rank and averaged": {"average": "updates", "clips_ranks": True},
    "base, updates averaged, gain 4": {"average": "updates", "gain": 4.0},
    "base, updates clipped on each rank and averaged, gain 4": {
        "average": "updates", "gain": 4.0, "clips_ranks": True
    },
}  # fmt: skip
"""Titles, and what differs from the base, on 16 ranks."""
NODES = {4: 2, 16: 4}
"""Ranks, and of them in a node."""
PAGE = BINSGDM
FIGURE = FIGURES / "rounding_explored.png"
Settings = tuple[Mapping[str, Any], Mapping[str, Any]]


class RoundingStudy:
    """The exploration with its file."""

    def __init__(self, file: Path = FILE) -> None:
        self.ledger = Ledger(file)
        self.study = Study(name=NAME, searches=(), finals=self._finals)

    def rows(self, options: Mapping[str, Any], trial: Mapping[str, Any], ranks: int = 4) -> list[Row]:
        """Return the runs of some settings, one a seed."""
        return [row for seed in SEEDS for row in self.ledger.having(_key(options, trial, ranks, seed))]

    def _finals(self) -> Iterator[Final]:
        for seed in SEEDS:
            for options, trial, ranks in settings():
                run, key = _run(options, trial, ranks, seed), _key(options, trial, ranks, seed)
                yield Final(run=run, ledger=self.ledger, key=key, rounded=True)


def settings() -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any], int]]:
    """Yield what is run: settings of the form, of the trial, and the number of ranks; the base first."""
    for of_form in PLAYED.values():
        yield from ((options, {}, 4) for options in of_form.values())
    for of_trial in TRIALS.values():
        yield from (({}, trial, 4) for trial in of_trial.values())
    yield from ((options, trial, 4) for options, trial in TOGETHER.values() if options)
    yield from ((options, {}, 16) for options in MANY_RANKS.values())
    yield PAPER, {}, 4
    yield PAPER, {"warmup": 0}, 16


def _run(options: Mapping[str, Any], trial: Mapping[str, Any], ranks: int, seed: int) -> Run:
    whole = {"optimizer": "played", "lr": LR, "warmup": WARMUP, **trial}
    is_played = whole["optimizer"] == "played"
    return Run(
        study="margins",
        task="characters_1000",
        system="played" if is_played else "dense",
        options=dict(options),
        trial=whole,
        ranks=ranks,
        ranks_per_node=NODES[ranks],
        seed=seed,
        split="validation",
    )


def _key(options: Mapping[str, Any], trial: Mapping[str, Any], ranks: int, seed: int) -> Row:
    return {"options": dict(options), "trial": dict(trial), "ranks": ranks, "seed": seed}


def read() -> RoundingStudy:
    """Return the study with what is done."""
    return RoundingStudy()


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

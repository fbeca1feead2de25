"""What was tried to bring BinSGDM to Adam's loss, behind docs/evidence/binsgdm.md: one change at a time, two seeds."""

import math
import statistics
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from evidence import RESULTS
from evidence.studies import figures
from evidence.studies.page import BINSGDM, FIGURES, number
from evidence.studies.run import Run
from evidence.studies.study import Final, Ledger, Row, Search, Study
from simnet.report.table import Table

SEEDS = (100, 101)
SEED_TITLES = [f"seed {seed}" for seed in SEEDS]
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
APART = (-0.12, 0.3)  # nats
LINES = ("-", "--")
Settings = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Of the form, and of the trial."""


class RoundingStudy(Study):
    searches: Mapping[tuple[str, str], Search] = {}

    def __init__(self) -> None:
        self.ledger = Ledger(RESULTS / "explored_rounding.json")

    def rows(self, options: Mapping[str, Any], trial: Mapping[str, Any], ranks: int = 4) -> list[Row]:
        """Return the runs of some settings, one a seed."""
        return [row for seed in SEEDS for row in self.ledger.having(_key(options, trial, ranks, seed))]

    def finals(self) -> Iterator[Final]:
        """Yield what is run: the base, every single change, the way from the paper's form to the base, 16 ranks."""
        settings: list[tuple[Mapping[str, Any], Mapping[str, Any], int]] = [({}, {}, 4)]
        settings += [(*one, 4) for variants in _by_what().values() for one in variants.values()]
        settings += [(options, trial, 4) for options, trial in TOGETHER.values() if options]
        settings += [(options, {}, 16) for options in MANY_RANKS.values()]
        settings += [(PAPER, {}, 4), (PAPER, {"warmup": 0}, 16)]
        for seed, (options, trial, ranks) in product(SEEDS, settings):
            whole = {"optimizer": "played", "lr": LR, "warmup": WARMUP, **trial}
            run = Run(
                study="margins",
                task="characters_1000",
                system="played" if whole["optimizer"] == "played" else "dense",
                options=dict(options),
                trial=whole,
                ranks=ranks,
                ranks_per_node=NODES[ranks],
                seed=seed,
                split="validation",
            )
            yield Final(run, self.ledger, _key(options, trial, ranks, seed))


def _key(options: Mapping[str, Any], trial: Mapping[str, Any], ranks: int, seed: int) -> Row:
    return {"options": dict(options), "trial": dict(trial), "ranks": ranks, "seed": seed}


def _by_what() -> dict[str, dict[str, Settings]]:
    """Return by what is changed, and by title, the settings of every single change."""
    played = {what: {title: (options, {}) for title, options in of.items()} for what, of in PLAYED.items() if what}
    return played | {what: {title: ({}, trial) for title, trial in of.items()} for what, of in TRIALS.items()}


def read() -> RoundingStudy:
    return RoundingStudy()


def regions(study: RoundingStudy) -> dict[str, str]:
    """Return the way from the paper's form to the base; the paper's form with a warm-up, and Adam."""
    rows = {title: study.rows(*settings) for title, settings in TOGETHER.items()}
    rows["the paper's form, with warm-up"] = study.rows(PAPER, {})
    adam = {title: study.rows({}, trial) for title, trial in TRIALS["Adam"].items()}
    best = min(adam, key=lambda title: _mean(adam[title]))
    rows[f"Adam, {best}"] = adam[best]
    return {"rounding": _table("form", rows).markdown()}


def data(study: RoundingStudy) -> dict[str, Table]:
    base = study.rows({}, {})
    lines = [[BASE, "", *_losses(base), ""]]
    for what, variants in _by_what().items():
        for title, settings in variants.items():
            rows = study.rows(*settings)
            lines.append([what, title, *_losses(rows), f"{_mean(rows) - _mean(base):+.3f}"])
    many = {"the paper's form": study.rows(PAPER, {"warmup": 0}, 16)}
    many |= {title: study.rows(options, {}, 16) for title, options in MANY_RANKS.items()}
    return {
        "rounding": Table(["changed", "to", *SEED_TITLES, "mean", "less the base"], lines),
        "rounding-ranks": _table("16 ranks, 4 nodes of 4", many),
    }


def _table(what: str, rows: Mapping[str, list[Row]]) -> Table:
    return Table([what, *SEED_TITLES, "mean"], [[title, *_losses(found)] for title, found in rows.items()])


def _losses(rows: list[Row]) -> list[str]:
    finals = [row["values"][-1] for row in rows]
    return [*("diverged" if final is None else number(final) for final in finals), number(_mean(rows))]


def _mean(rows: list[Row]) -> float:
    finals = [row["values"][-1] for row in rows]
    return math.inf if None in finals or not finals else statistics.fmean(finals)


def draw(study: RoundingStudy) -> None:
    """Draw a panel for each thing that was changed: mean loss of the seeds less that of the base, over steps."""
    base, by_what = figures.means(study.rows({}, {})), _by_what()
    size, texts = (
        (7.8, 2.5 * math.ceil(len(by_what) / 2)),
        ("Step", "Validation loss less that of the base (nats per character)"),
    )
    with figures.panels(FIGURES / "rounding_explored.png", len(by_what), 2, size, texts, sharex=True, sharey=True) as (
        _,
        axes,
    ):
        for axis, (what, variants) in zip(axes, by_what.items(), strict=True):
            axis.axhline(0, color="0.35", linewidth=1.5)
            for place, (title, settings) in enumerate(variants.items()):
                rows = study.rows(*settings)
                apart = [loss - of_base for loss, of_base in zip(figures.means(rows), base, strict=True)]
                line, colour = divmod(place, len(figures.COLOURS))
                axis.plot(rows[0]["steps"], apart, LINES[line], color=figures.COLOURS[colour], label=title)
            axis.set_title(what)
            axis.grid(alpha=0.25, linewidth=0.5)
            # On a white ground, since lines may run below it.
            axis.legend(fontsize=6, frameon=True, framealpha=0.9, edgecolor="none")
        axes[0].set_ylim(*APART)

"""Which systems are compared, with which options, and what is searched for each."""

import math
from dataclasses import dataclass, field
from typing import Any

from binsgdm import BinSGDM
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.systems.base import System
from binsgdm.systems.dense import Dense
from binsgdm.systems.registry import BUILT_IN
from studies.tasks import Trial

FINAL_SEEDS = (0, 1, 2, 3, 4)
FINAL_RANKS = (4, 16)
SEARCH_SEEDS = {"characters": (100,), "mnist_5k": (100, 101), "digits": (100, 101)}
"""Of every trial. The first decides what is tried next, all together what is best."""
NUM_TRIALS = 6
"""Of every system on every task: four that are fixed, two that follow the best so far (`next_trial`)."""
STEP = math.sqrt(10)
"""From one lr of the search to one beyond it."""

Row = dict[str, Any]
Choice = tuple[Trial, tuple[float, ...]]
"""Settings, and the lrs that are tried with them first."""

ADAM: Choice = ({"optimizer": "adam"}, (3e-3, 1e-2))
SGD: Choice = ({"optimizer": "sgd", "momentum": 0.9}, (3e-2, 1e-1))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a system is run here.

    Attributes:
        title: for people.
        options: of the system, beside its defaults.
        choices: what the search begins with; four trials in all.
        kind: of the simulator's strategy; None for the name in the table.
    """

    title: str
    options: dict[str, Any] = field(default_factory=dict)
    choices: tuple[Choice, ...] = (ADAM, SGD)
    kind: str | None = None


OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys(("qsgd", "qsgd_inf", "nuqsgd"), ("4 bits", {"bits": 4, "block_size": 8192})),
    "sign_sgd": ("majority vote", {}),
    "marsit": ("", {"sync_period": 100}),
    **dict.fromkeys(("power_sgd", "grad_zip"), ("rank 4", {"matrix_rank": 4})),
    "atomo": ("budget 3", {"budget": 3.0}),
    **dict.fromkeys(("top_k", "ms_top_k"), ("1 %", {"ratio": 0.01})),
    "random_k": ("10 %", {"ratio": 0.1}),
}
"""Options beside a system's defaults, and what of them its title tells. They are the papers' or usual ones, with one
exception: Random-k keeps 10 % instead of 1 %, since 1 % would deliver each element once in all of 120 steps."""
BY_SIGNS: tuple[Choice, ...] = (
    ({"optimizer": "sgd", "momentum": 0.0}, (3e-3, 1e-2)),
    ({"optimizer": "sgd", "momentum": 0.9}, (3e-4, 1e-3)),
)
"""Where the gradient is +1 or -1, whatever it was."""


def _averaging(system: type[System]) -> Setting:
    """Return how a system that averages gradients is run."""
    told, options = OPTIONS.get(system.name, ("", dict(system.usual_options)))
    choices = BY_SIGNS if system.name == "sign_sgd" else (ADAM, SGD)
    return Setting(title=", ".join(filter(None, (system.title, told))), options=options, choices=choices)


SETTINGS: dict[str, Setting] = {
    "adam": Setting(title="dense, Adam", kind="all_reduce", choices=((ADAM[0], (1e-3, 3e-3, 1e-2, 3e-2)),)),
    "sgd": Setting(title="dense, SGD", kind="all_reduce", choices=((SGD[0], (1e-2, 3e-2, 1e-1, 3e-1)),)),
    "binsgdm": Setting(
        title=BinSGDM.title,
        choices=tuple(({"optimizer": "binsgdm", "beta": beta}, (3e-3, 1e-2)) for beta in (0.9, 0.95)),
    ),
    "one_bit_adam": Setting(
        title=OneBitAdam.title,
        choices=tuple(
            ({"optimizer": "one_bit_adam", "dense_share": 0.2, "eps": eps}, (3e-3, 1e-2)) for eps in (1e-8, 1e-4)
        ),
    ),
    **{system.name: _averaging(system) for system in BUILT_IN if system is not Dense},
}
"""All that are compared: two dense optimizers, both 1-bit optimizers, and every system of binsgdm."""


def strategy_of(system: str) -> dict[str, Any]:
    """Return kind and options of a system, as a scenario of the simulator takes them."""
    setting = SETTINGS[system]
    return {"kind": setting.kind or system, **setting.options}


def next_trial(system: str, rows: list[Row]) -> Trial | None:
    """Return what to try after these rows of a system's search, None after the last.

    First the fixed ones. Then, with the settings of the best so far on the first seed: one lr beyond the best if that
    is the highest or lowest tried with them, otherwise the geometric mean of the best and the better of its neighbours.
    If all have diverged, that of the lowest lr counts as the best.
    """
    if len(rows) >= NUM_TRIALS:
        return None
    tried = [row["trial"] for row in rows]
    fixed = [{**settings, "lr": lr} for settings, lrs in SETTINGS[system].choices for lr in lrs]
    for trial in fixed:
        if trial not in tried:
            return trial
    return _next_to(best_of(rows, 1)["trial"], rows)


def _next_to(best: Trial, rows: list[Row]) -> Trial:
    """Return the trial that follows the best of a search."""
    like = [row for row in rows if {**row["trial"], "lr": best["lr"]} == best]
    like.sort(key=lambda row: row["trial"]["lr"])
    place = [row["trial"] for row in like].index(best)
    if place in (0, len(like) - 1):
        lr = best["lr"] * STEP if place else best["lr"] / STEP
    else:
        neighbour = best_of([like[place - 1], like[place + 1]], 1)
        lr = math.sqrt(best["lr"] * neighbour["trial"]["lr"])
    return {**best, "lr": float(f"{lr:.3g}")}


def best_of(rows: list[Row], num_seeds: int | None = None) -> Row:
    """Return the row of lowest mean validation loss over so many seeds, or all; if all diverged, that of lowest lr."""
    return min(rows, key=lambda row: (mean_loss(row["losses"][:num_seeds]), row["trial"]["lr"]))


def mean_loss(losses: list[float | None]) -> float:
    """Return the mean over seeds, infinity if one of them diverged.

    Example:
        >>> mean_loss([1.0, 2.0]), mean_loss([1.0, None])
        (1.5, inf)
    """
    return sum(math.inf if loss is None else loss for loss in losses) / len(losses)

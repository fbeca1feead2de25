"""Which systems are compared, with which options, and what is searched for each."""

from dataclasses import dataclass, field
from typing import Any

from binsgdm import BinSGDM
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.systems.base import System
from binsgdm.systems.dense import Dense
from binsgdm.systems.registry import BUILT_IN
from studies.tasks import Trial

Choice = tuple[Trial, tuple[float, ...]]  # settings, and the lrs that are tried with them first

ADAM: Choice = ({"optimizer": "adam"}, (3e-3, 1e-2))
SGD: Choice = ({"optimizer": "sgd", "momentum": 0.9}, (3e-2, 1e-1))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """How a system is run in the comparison.

    Attributes:
        title: for people.
        options: of the system, where they are not its defaults.
        choices: what the search begins with; four trials in all.
        kind: of the simulator's strategy; None for the system's name.
    """

    title: str
    options: dict[str, Any] = field(default_factory=dict)
    choices: tuple[Choice, ...] = (ADAM, SGD)
    kind: str | None = None

    @property
    def fixed_trials(self) -> tuple[Trial, ...]:
        """The trials that the search begins with."""
        return tuple({**settings, "lr": lr} for settings, lrs in self.choices for lr in lrs)


OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys(("qsgd", "qsgd_inf", "nuqsgd"), ("4 bits", {"bits": 4, "block_size": 8192})),
    "sign_sgd": ("majority vote", {}),
    "marsit": ("", {"sync_period": 100}),
    **dict.fromkeys(("power_sgd", "grad_zip"), ("rank 4", {"matrix_rank": 4})),
    "atomo": ("budget 3", {"budget": 3.0}),
    **dict.fromkeys(("top_k", "ms_top_k"), ("1 %", {"ratio": 0.01})),
    "random_k": ("10 %", {"ratio": 0.1}),
}
"""By system: what the title adds, and the options that are not defaults.

They are the papers' or usual ones, with one exception: Random-k keeps 10 % instead of 1 %, since 1 % would deliver each
element once in all of 120 steps."""
BY_SIGNS: tuple[Choice, ...] = (
    ({"optimizer": "sgd", "momentum": 0.0}, (3e-3, 1e-2)),
    ({"optimizer": "sgd", "momentum": 0.9}, (3e-4, 1e-3)),
)
"""For SignSGD, whose gradients are +1 and -1: an update is as large as lr, so lr is a tenth of the others'."""


def _averaging(system: type[System]) -> Candidate:
    """Return how a system that averages gradients is run."""
    suffix, options = OPTIONS.get(system.name, ("", dict(system.usual_options)))
    choices = BY_SIGNS if system.name == "sign_sgd" else (ADAM, SGD)
    return Candidate(title=", ".join(filter(None, (system.title, suffix))), options=options, choices=choices)


CANDIDATES: dict[str, Candidate] = {
    "adam": Candidate(title="dense, Adam", kind="all_reduce", choices=((ADAM[0], (1e-3, 3e-3, 1e-2, 3e-2)),)),
    "sgd": Candidate(title="dense, SGD", kind="all_reduce", choices=((SGD[0], (1e-2, 3e-2, 1e-1, 3e-1)),)),
    "binsgdm": Candidate(
        title=BinSGDM.title,
        choices=tuple(({"optimizer": "binsgdm", "beta": beta}, (3e-3, 1e-2)) for beta in (0.9, 0.95)),
    ),
    "one_bit_adam": Candidate(
        title=OneBitAdam.title,
        choices=tuple(
            ({"optimizer": "one_bit_adam", "dense_share": 0.2, "eps": eps}, (3e-3, 1e-2)) for eps in (1e-8, 1e-4)
        ),
    ),
    **{system.name: _averaging(system) for system in BUILT_IN if system is not Dense},
}
"""By name, in the order of the tables: two dense optimizers, both 1-bit optimizers, and every system of binsgdm."""


def strategy_of(system: str) -> dict[str, Any]:
    """Return kind and options of a system as a scenario of simnet has them."""
    candidate = CANDIDATES[system]
    return {"kind": candidate.kind or system, **candidate.options}

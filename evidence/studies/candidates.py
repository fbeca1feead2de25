"""Which systems are compared, with which options, and what is searched for each."""

from dataclasses import dataclass, field, replace
from typing import Any

from binsgdm import BinSGDM
from binsgdm.compressors.base import System
from binsgdm.compressors.registry import SYSTEMS
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from evidence.studies.tasks import Trial

Choice = tuple[Trial, tuple[float, ...]]  # settings, and the lrs that are tried with them first

STUDIED: tuple[type[System], ...] = tuple(
    SYSTEMS[name]
    for name in (
        "one_bit_sgd", "sign_sgd", "ef_sign_sgd", "terngrad", "qsgd", "qsgd_inf", "nuqsgd", "byte_grad", "marsit",
        "power_sgd", "grad_zip", "atomo", "top_k", "ms_top_k", "random_k",
    )
)  # fmt: skip
"""The systems whose trainings are committed. The study is finished: what binsgdm gets later needs no training."""
ADAM: Choice = ({"optimizer": "adam"}, (3e-3, 1e-2))
SGD: Choice = ({"optimizer": "sgd", "momentum": 0.9}, (3e-2, 1e-1))
LOCAL_MOMENTUM = {"momentum": 0.9}
"""For systems in which every rank sends its own momentum; the optimizer that goes on with their mean has none."""
AFTER_MOMENTUM: tuple[Choice, ...] = (
    ({"optimizer": "adam", "beta1": 0.0}, (3e-3, 1e-2)),
    ({"optimizer": "sgd", "momentum": 0.0}, (3e-2, 1e-1)),
)
SHAPED: Trial = {"optimizer": "binsgdm", "beta": 0.9, "beta_b": 0.99, "nesterov": True}
DRAWN: Trial = {"optimizer": "binsgdm", "beta_b": None, "nesterov": False, "gain": 1.0}
"""BinSGDM as this project rounds, and as the paper does."""
WARMUP_STEPS = 24
"""Of sparsifiers: as many as 1-bit Adam's dense stage has."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """How a system is run in the comparison.

    Attributes:
        options: of the system, where they are not its defaults.
        choices: what the search begins with; four trials in all.
        kind: of the simulator's strategy; None for the system's name.
        system: that averages the gradients, or optimizer; None for the candidate's name.
        tuned_as: candidate whose search says what this one runs with; None for one of its own.
    """

    title: str
    options: dict[str, Any] = field(default_factory=dict)
    choices: tuple[Choice, ...] = (ADAM, SGD)
    kind: str | None = None
    system: str | None = None
    tuned_as: str | None = None

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
SIGNUM: tuple[Choice, ...] = (({"optimizer": "sgd", "momentum": 0.0}, (1e-3, 3e-3, 1e-2, 3e-2)),)
REMEDIES: dict[str, tuple[str, dict[str, Any]]] = {
    "one_bit_sgd": ("local momentum", LOCAL_MOMENTUM),
    "sign_sgd": ("local momentum (Signum)", LOCAL_MOMENTUM),
    "ef_sign_sgd": ("local momentum", LOCAL_MOMENTUM),
    "marsit": ("local momentum, residual times 0.5", LOCAL_MOMENTUM | {"residual_decay": 0.5}),
    **dict.fromkeys(
        ("top_k", "ms_top_k", "random_k"),
        ("masked local momentum, warm-up of the ratio", LOCAL_MOMENTUM | {"warmup_steps": WARMUP_STEPS}),
    ),
}
"""By system: what is known against its weakness, in words, and the options that it adds to the others."""


def _plain(system: type[System]) -> Candidate:
    """Return how a system that averages gradients is run without a remedy."""
    suffix, options = OPTIONS.get(system.name, ("", dict(system.usual_options)))
    choices = BY_SIGNS if system.name == "sign_sgd" else (ADAM, SGD)
    return Candidate(title=", ".join(filter(None, (system.title, suffix))), options=options, choices=choices)


def _averaging(system: type[System]) -> Candidate:
    """Return the same with its remedy, if it has one."""
    plain = _plain(system)
    if system.name not in REMEDIES:
        return plain
    choices = SIGNUM if system.name == "sign_sgd" else AFTER_MOMENTUM
    return replace(plain, options=plain.options | REMEDIES[system.name][1], choices=choices)


def _one_bit_adam(name: str, *values: Any, **more: Any) -> Candidate:
    common = {"optimizer": "one_bit_adam", "dense_share": 0.2}
    settings = ({**common, name: value, **more} for value in values)
    return Candidate(title=OneBitAdam.title, choices=tuple((setting, (3e-3, 1e-2)) for setting in settings))


LATER = {"byte_grad": "adam"}
"""Systems that came after the search, with the candidate whose settings they run with: a byte loses next to nothing."""
_SEARCHED = [system for system in STUDIED if system.name not in LATER]
CANDIDATES: dict[str, Candidate] = {
    "adam": Candidate(title="dense, Adam", kind="all_reduce", choices=((ADAM[0], (1e-3, 3e-3, 1e-2, 3e-2)),)),
    "sgd": Candidate(title="dense, SGD", kind="all_reduce", choices=((SGD[0], (1e-2, 3e-2, 1e-1, 3e-1)),)),
    "binsgdm": Candidate(
        title=BinSGDM.title,
        options={"rounding": "shaped", "average": "gradients"},
        choices=tuple(({**SHAPED, "gain": gain}, (3e-3, 1e-2)) for gain in (2.0, 3.0)),
    ),
    "one_bit_adam": _one_bit_adam("variance_floor", 1e-3, 1e-2, scales_momenta=True),
    **{system.name: _averaging(system) for system in _SEARCHED},
}
"""By name, in the order of the tables: two dense optimizers, both 1-bit optimizers, and every system studied."""
REMEDY_TEXTS = {
    "binsgdm": "shaped rounding, gain, gradients averaged in the node",
    "one_bit_adam": "a floor of v, scaled momenta",
    **{name: text for name, (text, _) in REMEDIES.items()},
}
"""By candidate, in words: what PLAIN runs without."""
PLAIN: dict[str, Candidate] = {
    f"{name}_plain": replace(plain, title=f"{plain.title}, plain", kind=name, system=name)
    for name, plain in {
        "binsgdm": Candidate(
            title=BinSGDM.title,
            options={"rounding": "random"},
            choices=tuple(({**DRAWN, "beta": beta}, (3e-3, 1e-2)) for beta in (0.9, 0.95)),
        ),
        "one_bit_adam": _one_bit_adam("eps", 1e-8, 1e-4),
        **{system.name: _plain(system) for system in STUDIED if system.name in REMEDIES},
    }.items()
}
"""By name: candidates as they were before their remedies, for comparison alone."""


TOPOLOGIES = {
    "gather": "gather",
    "scatter_reduce": "scatter-reduce",
    "hierarchical": "hierarchical",
    "hierarchical_scatter_reduce": "hierarchical scatter-reduce",
}
"""In words, in the order of the tables."""
OF_OPTIMIZERS: dict[tuple[str, str], tuple[str, str, dict[str, Any]]] = {
    ("binsgdm", "scatter_reduce"): ("binsgdm_flat", "flat", {"rounding": "shaped", "topology": "flat"}),
    ("binsgdm", "hierarchical"): (
        "binsgdm_updates",
        "updates averaged in the node",
        {"rounding": "shaped", "average": "updates"},
    ),
    ("one_bit_adam", "hierarchical"): ("one_bit_adam_hierarchical", "hierarchical", {"topology": "hierarchical"}),
}
"""Other forms of the 1-bit optimizers, by candidate and what the form is like: name, title and options.

A flat exchange of theirs is a scatter-reduce of signs. BinSGDM's own form here averages gradients in the node."""


def other_topologies(system: type[System]) -> list[str]:
    """Return the topologies of a system whose arithmetic is not that of its own.

    Example:
        >>> [other_topologies(one) for one in STUDIED if one.name in ("sign_sgd", "qsgd")]
        [['hierarchical'], ['scatter_reduce', 'hierarchical', 'hierarchical_scatter_reduce']]
    """
    first, *others = system.topologies
    # Between nodes, `hierarchical` has the system's own exchange.
    same = "hierarchical_scatter_reduce" if first == "scatter_reduce" else first
    return [topology for topology in TOPOLOGIES if topology in others and topology != same]


_LATER_SYSTEMS = [system for system in STUDIED if system.name in LATER]
_BASES = CANDIDATES | {system.name: _plain(system) for system in _LATER_SYSTEMS}
_OTHER_FORMS: dict[tuple[str, str], tuple[str, str, dict[str, Any]]] = OF_OPTIMIZERS | {
    (system.name, topology): (
        f"{system.name}_{topology}",
        TOPOLOGIES[topology],
        _BASES[system.name].options | {"topology": topology},
    )
    for system in [*_SEARCHED, *_LATER_SYSTEMS]
    for topology in other_topologies(system)
}
NAMES_IN_TOPOLOGY = {key: name for key, (name, _, _) in _OTHER_FORMS.items()}
"""By candidate and topology: the name of that candidate in it, in `IN_TOPOLOGY`."""
IN_TOPOLOGY: dict[str, Candidate] = {
    system.name: replace(_BASES[system.name], tuned_as=LATER[system.name]) for system in _LATER_SYSTEMS
} | {
    name: replace(
        _BASES[base],
        title=f"{_BASES[base].title}, {form}",
        options=options,
        kind=base,
        system=base,
        tuned_as=LATER.get(base, base),
    )
    for (base, _), (name, form, options) in _OTHER_FORMS.items()
}
"""By name: candidates in topologies other than their own, with the settings that the search found for their own, and
systems that came later."""
ALL = CANDIDATES | PLAIN | IN_TOPOLOGY


def strategy_of(system: str) -> dict[str, Any]:
    """Return kind and options of a system as a scenario of simnet has them.

    The topology is named where it is not the default on nodes of several ranks.
    """
    candidate = ALL[system]
    kind = candidate.kind or system
    is_named = kind in SYSTEMS and SYSTEMS[kind].averages_in_node and "topology" not in candidate.options
    topology = {"topology": SYSTEMS[kind].topologies[0]} if is_named else {}
    return {"kind": kind, **candidate.options, **topology}

"""What a group of parameters says about its decays and its rounding."""

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal, TypedDict, get_args

import numpy as np

Rounding = Literal["random", "shaped"]
NEEDED = ("lr", "beta", "weight_decay", "maximize", "seed", "step")
"""What every version has in each group."""
COMMON = (*NEEDED, "beta_b", "nesterov", "rounding", "gain", "num_skipped")
"""What must be alike on all ranks in each step."""
PAPER: dict[str, Any] = {"beta_b": None, "nesterov": False, "rounding": "random", "gain": 1.0}
"""Settings of `BinSGDM` that make it the optimizer of the paper: `BinSGDM(params, lr, beta=0.95, **PAPER)`."""
FORMER: dict[str, Any] = PAPER | {"slices": "", "saved_by": "", "residual_layout": ""}
"""What a group of a former version, which had none of these settings, stands for."""

LEAST_GAIN = 2.0
_ROUNDED_TO_0 = 2.0**-150
"""The largest number whose nearest in fp32 is 0; the half of the smallest, a tie."""
_ROUNDED_TO_INFINITY = (2.0 - 2.0**-24) * 2.0**127
"""The smallest whose nearest in fp32 would be 2^128."""


_HIGHEST_SCHEDULED = 0.95  # by OneCycleLR and CyclicLR, unless they are told otherwise


def take_momentum(groups: Iterable[dict[str, Any]]) -> None:
    """Let beta be what a scheduler of momentum has set: OneCycleLR and CyclicLR know it by that name alone."""
    for group in groups:
        if "momentum" in group:
            group["beta"] = group.pop("momentum")


class Momenta(TypedDict):
    """How m, b and their ratio follow the gradients, by the names that kernels take."""

    beta: float
    beta_b: float
    nesterov: bool


def momenta_of(group: Mapping[str, Any]) -> Momenta:
    """Return what a group says of m and b."""
    beta, beta_b = float(group["beta"]), group.get("beta_b")
    of_b = beta if beta_b is None else float(beta_b)
    return {"beta": beta, "beta_b": of_b, "nesterov": bool(group.get("nesterov", False))}


def usual_gain(num_updates: int) -> float:
    """Return the gain where none was given, by how many updates are averaged.

    Each is a momentum over its own noise, which is sqrt(num_updates) times that of the mean: the gain makes up for that
    (docs/explanation/algorithm.md).
    """
    return max(LEAST_GAIN, math.sqrt(num_updates))


def gain_of(group: Mapping[str, Any], step: int, num_updates: int = 1) -> float:
    """Return by how much m / b is multiplied before it is rounded.

    Args:
        group: of parameters.
        step: its number, from 1.
        num_updates: that are averaged, for the usual gain.
    """
    given, how = group.get("gain", 1.0), momenta_of(group)
    gain = usual_gain(num_updates) if given is None else float(given)
    of_m, of_b = how["beta"], how["beta_b"]
    # From zeros both averages are too small, each by a factor of its own. With one decay the factors cancel in m / b;
    # else they are one number for all elements, so they go into the gain. Looking ahead is as if m had seen a step
    # more; with one decay the ratio then begins at 1 + beta, which the clip takes.
    return gain if of_m == of_b else gain * (1.0 - of_b**step) / (1.0 - of_m ** (step + how["nesterov"]))


def ratio_limit(group: Mapping[str, Any]) -> float:
    """Return what |m| / b has not exceeded, however schedulers have moved beta; infinity where nothing is known."""
    if group["beta_b"] is None:
        return 1.0
    beta, beta_b = float(group["beta"]), float(group["beta_b"])
    # Where m forgets faster, the newest gradient weighs most: 1 - beta, at most 1, in m, and 1 - beta_b in b. Where m
    # forgets more slowly, of a gradient long ago b has nothing left. Schedulers take beta up to 0.95.
    return 1.0 / (1.0 - beta_b) if beta_b >= max(beta, _HIGHEST_SCHEDULED) else math.inf


def is_shaped(group: Mapping[str, Any]) -> bool:
    """Tell whether rounding keeps what it loses."""
    return bool(group.get("rounding", "random") == "shaped")


def is_rounding(value: Any) -> bool:
    """Tell whether a setting names a rounding."""
    return isinstance(value, str) and value in get_args(Rounding)


def is_gain(value: Any) -> bool:
    """Tell whether a setting is a number above 0, and finite, in fp32 as well; None is the usual gain."""
    if value is None:
        return True
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return False
    with suppress(OverflowError):  # of a whole number that no float holds
        return _ROUNDED_TO_0 < float(value) < _ROUNDED_TO_INFINITY
    return False

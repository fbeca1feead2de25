"""What BinSGDM is set to: how a group of parameters decays and rounds, and how ranks agree on the signs."""

import math
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from binsgdm.errors import BinsgdmError

Topology = Literal["hierarchical", "flat"]
IntraNode = Literal["fp32", "bf16", "one_bit"]
Average = Literal["updates", "gradients"]
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
_HIGHEST_SCHEDULED = 0.95  # by OneCycleLR and CyclicLR, unless they are told otherwise


def take_momentum(groups: Iterable[dict[str, Any]]) -> None:
    """Let beta be what a scheduler of momentum has set: OneCycleLR and CyclicLR know it by that name alone."""
    for group in groups:
        if "momentum" in group:
            group["beta"] = group.pop("momentum")


def momenta_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return how m, b and their ratio follow the gradients, by the names that kernels take."""
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
    """Return by how much m / b is multiplied before it is rounded in a step, from 1, of so many averaged updates."""
    chosen, how = group.get("gain", 1.0), momenta_of(group)
    gain = usual_gain(num_updates) if chosen is None else float(chosen)
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


def is_gain(value: Any) -> bool:
    """Tell whether a setting is a number above 0, and finite, in fp32 as well; None is the usual gain."""
    if value is None:
        return True
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return False
    with suppress(OverflowError):  # of a number that fp32 does not hold
        return bool(0 < struct.unpack("f", struct.pack("f", float(value)))[0] < math.inf)
    return False


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How the ranks agree on the signs.

    Attributes:
        topology: average inside nodes first, or treat all ranks alike.
        intra_node_dtype: what travels inside a node (hierarchical only).
        average: what is averaged inside a node (hierarchical only).
    """

    topology: Topology = "hierarchical"
    intra_node_dtype: IntraNode = "fp32"
    average: Average = "updates"

    def __post_init__(self) -> None:
        dtype, average = self.intra_node_dtype, self.average
        settings = {"topology": self.topology, "intra_node_dtype": dtype, "average": average}
        for (name, value), kind in zip(settings.items(), (Topology, IntraNode, Average), strict=True):
            if value not in get_args(kind):
                known = ", ".join(map(repr, get_args(kind)))
                raise BinsgdmError(f"attach: {name}={value!r}: unknown: give one of {known}; see help(binsgdm.attach)")
        for name, value in (("intra_node_dtype", dtype), ("average", average)):
            # Without nodes there is nothing that either could change.
            if self.topology == "flat" and value not in ("fp32", "updates"):
                raise BinsgdmError(f"attach: {name}={value!r}: has no effect with topology='flat'; drop one of them")
        if (dtype, average) == ("one_bit", "gradients"):
            raise BinsgdmError(
                "attach: average='gradients': needs intra_node_dtype='fp32' or 'bf16'; one bit is drawn from an update"
            )


SCHEMES = (
    Scheme(),
    Scheme(intra_node_dtype="bf16"),
    Scheme(intra_node_dtype="one_bit"),
    Scheme(average="gradients"),
    Scheme(average="gradients", intra_node_dtype="bf16"),
    Scheme(topology="flat"),
)

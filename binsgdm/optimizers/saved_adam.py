"""Refuse saved states of 1-bit Adam that no run leaves behind."""

from collections.abc import Mapping, Sequence
from typing import Any

from binsgdm.errors import BinsgdmError
from binsgdm.optimizers import kept_residuals, saved_state
from binsgdm.optimizers.base import is_finite_from_0
from binsgdm.optimizers.saved_state import check_average, check_count

AVERAGES = ("exp_avg", "exp_avg_sq")
_NEEDED = ("lr", "betas", "eps", "weight_decay", "dense_steps", "topology", "step", "format")
"""Settings that every version has in each group."""
_COUNTS = ("step", "dense_end", "num_skipped")
_WHERE = "load_state_dict"
_REPAIR = "load what state_dict() returned, undamaged"


def check_form(state_dict: Mapping[str, Any], own: Sequence[Mapping[str, Any]]) -> None:
    """Refuse what is not built like the state of an optimizer with these groups."""
    saved_state.check_form(state_dict, [len(group["params"]) for group in own])
    groups, states = state_dict["param_groups"], state_dict["state"]
    for number, group in enumerate(groups):
        if missing := sorted(set(_NEEDED) - set(group)):
            raise BinsgdmError(f"{_WHERE}: group {number} without {', '.join(missing)}: must have them; {_REPAIR}")
        if type(group["format"]) is not int:
            raise BinsgdmError(f"{_WHERE}: group {number}: format: {group['format']!r}: must be a number; {_REPAIR}")
        if not all(type(one) in (int, str) for one in group["params"]):
            raise BinsgdmError(f"{_WHERE}: group {number}: params: must be a list of numbers; {_REPAIR}")
    for number, state in states.items():
        if not isinstance(state, Mapping):
            kind = type(state).__name__
            raise BinsgdmError(f"{_WHERE}: parameter {number}: a {kind}: must be a dictionary; {_REPAIR}")
        for name in set(AVERAGES) & set(state):
            check_average(f"{_WHERE}: parameter {number}", name, state[name], getattr(state[name], "shape", ()))


def check_values(groups: Sequence[Mapping[str, Any]], states: Sequence[Mapping[str, Any]]) -> None:
    """Refuse groups and states of parameters with values that no run has.

    Args:
        groups: of the saved state.
        states: of its parameters, with averages of the right shapes.
    """
    first = groups[0]
    for number, group in enumerate(groups):
        where = f"{_WHERE}: group {number}"
        for name in _COUNTS:
            check_count(f"{name} of group {number}", group.get(name))
            if group[name] != first[name]:
                raise BinsgdmError(f"{where}: {name}: {group[name]!r}: must be group 0's {first[name]!r}; {_REPAIR}")
        if not is_finite_from_0(group.get("variance_norm")):
            raise BinsgdmError(f"{where}: variance_norm: {group.get('variance_norm')!r}: must be 0 or more; {_REPAIR}")
        if group["dense_end"] > group["step"]:
            raise BinsgdmError(
                f"{where}: dense_end: {group['dense_end']}: must be at most the step, {group['step']}; {_REPAIR}"
            )
    for number, state in enumerate(states):
        _check_state(number, state, first["step"])


def _check_state(number: int, state: Mapping[str, Any], step: int) -> None:
    where = f"{_WHERE}: parameter {number}"
    for name in ("step", "variance_step"):
        check_count(f"{name} of parameter {number}", state.get(name))
        if state[name] > step:
            raise BinsgdmError(f"{where}: {name}: {state[name]}: must be at most the step, {step}; {_REPAIR}")
    scale = state.get("momentum_scale", 1.0)
    if not is_finite_from_0(scale) or not scale > 0:
        raise BinsgdmError(f"{where}: momentum_scale: {scale!r}: must be above 0, and finite; {_REPAIR}")
    if (state["exp_avg_sq"] < 0).any():
        raise BinsgdmError(f"{where}: exp_avg_sq: a value below 0: must be 0 or more; {_REPAIR}")
    for name in kept_residuals.NAMES.values():
        if name in state:
            kept_residuals.check_residual(number, name, state[name])

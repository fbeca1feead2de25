"""What a state that was saved must be, so that an optimizer can go on from it."""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from binsgdm.errors import BinsgdmError, shown

_REPAIR = "load what state_dict() returned, undamaged"
_ROUNDED = 1.001
_SMALL = 1e-30
MOST_STEPS = 2**48
"""More than any training takes; a number beyond is a damaged one."""


def check_mapping(state_dict: object) -> None:
    """Refuse what is no dictionary."""
    if not isinstance(state_dict, Mapping):
        raise BinsgdmError(f"load_state_dict: state_dict: a {_type(state_dict)}: must be a dictionary; {_REPAIR}")


def check_form(state_dict: Mapping[str, Any], sizes: Sequence[int]) -> None:
    """Refuse what has not the form of the state of an optimizer whose groups have so many parameters each."""
    check_mapping(state_dict)
    for name in ("state", "param_groups"):
        if name not in state_dict:
            raise BinsgdmError(f"load_state_dict: a state without {name!r}: must have it; {_REPAIR}")
    states, groups = state_dict["state"], state_dict["param_groups"]
    if not isinstance(states, Mapping):
        raise BinsgdmError(f"load_state_dict: state: a {_type(states)}: must be a dictionary; {_REPAIR}")
    if not _is_list(groups):
        raise BinsgdmError(f"load_state_dict: param_groups: a {_type(groups)}: must be a list; {_REPAIR}")
    if len(groups) != len(sizes):
        raise BinsgdmError(
            f"load_state_dict: {len(groups)} groups of parameters: the optimizer has {len(sizes)}; make it with the "
            "same groups"
        )
    for number, (group, size) in enumerate(zip(groups, sizes, strict=True)):
        if not isinstance(group, Mapping) or not _is_list(group.get("params")):
            raise BinsgdmError(f"load_state_dict: group {number}: must have a list of params; {_REPAIR}")
        if len(group["params"]) != size:
            raise BinsgdmError(
                f"load_state_dict: group {number}: {len(group['params'])} parameters: the optimizer has {size}; make "
                "it with the same groups"
            )
    names = [name for group in groups for name in group["params"]]
    if not all(isinstance(name, Hashable) for name in names) or len(set(names)) < len(names):
        raise BinsgdmError(f"load_state_dict: params of the groups: must be different numbers; {_REPAIR}")


def check_count(name: str, value: object) -> None:
    """Refuse what counts no steps."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_STEPS:
        raise BinsgdmError(f"load_state_dict: {name}: {shown(value)}: must be a whole number from 0 to 2^48; {_REPAIR}")


def check_text(name: str, value: object) -> None:
    """Refuse what is no text."""
    if not isinstance(value, str):
        raise BinsgdmError(f"load_state_dict: {name}: {shown(value)}: must be a text; {_REPAIR}")


def check_averages(number: int, names: Sequence[str], state: object, shape: Sequence[int]) -> None:
    """Refuse the state of a parameter that has not its averages, of its shape."""
    where = f"load_state_dict: parameter {number}"
    if not isinstance(state, Mapping):
        raise BinsgdmError(f"{where}: a {_type(state)}: must be a dictionary of {' and '.join(names)}; {_REPAIR}")
    averages = {name: state[name] for name in names if name in state}
    forms = {
        name: tuple(average.shape) if isinstance(average, torch.Tensor) else _type(average)
        for name, average in averages.items()
    }
    if forms != dict.fromkeys(names, tuple(shape)):
        raise BinsgdmError(f"{where}: {forms}: must be {' and '.join(names)} of shape {tuple(shape)}; {_REPAIR}")
    for name in names:
        check_average(where, name, state[name], shape)


def check_average(where: str, name: str, average: object, shape: Sequence[int]) -> None:
    """Refuse what is no average of gradients: a tensor of this shape of finite real numbers."""
    if not isinstance(average, torch.Tensor):
        raise BinsgdmError(f"{where}: {name}: a {_type(average)}: must be a tensor of shape {tuple(shape)}; {_REPAIR}")
    if tuple(average.shape) != tuple(shape) or not average.is_floating_point() or average.layout != torch.strided:
        raise BinsgdmError(
            f"{where}: {name} of {average.dtype} and shape {tuple(average.shape)}: must be float32 of shape "
            f"{tuple(shape)}, and dense; {_REPAIR}"
        )
    if not bool(torch.isfinite(_local(average)).all()):
        raise BinsgdmError(f"{where}: {name}: NaN or infinity: must be finite; {_REPAIR}")


def check_magnitudes(number: int, m: torch.Tensor, b: torch.Tensor, limit: float) -> None:
    """Refuse averages of gradients, m, and of their magnitudes, b, that cannot be of the same gradients.

    |m| / b does not exceed the limit of a parameter, which is infinity where nothing is known.
    """
    where, m, b = f"load_state_dict: parameter {number}", _local(m), _local(b)
    if bool((b < 0).any()):
        raise BinsgdmError(f"{where}: b below 0: must be an average of magnitudes; {_REPAIR}")
    # Rounding goes beyond it by a little, and numbers so small that b is 0.
    if limit < math.inf and bool((m.abs() > b * (limit * _ROUNDED) + _SMALL).any()):
        raise BinsgdmError(f"{where}: |m| above {limit:g} b: must be averages of the same gradients; {_REPAIR}")


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a sharded tensor, any other as it is."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _type(value: object) -> str:
    return type(value).__name__

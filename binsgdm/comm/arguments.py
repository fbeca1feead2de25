"""The types of arguments that several public functions take."""

import numbers
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from binsgdm.errors import BinsgdmError, shown


def _is_count(value: object) -> bool:
    return value is None or (isinstance(value, numbers.Integral) and not isinstance(value, bool))


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "overlap": (lambda value: isinstance(value, bool), "must be True or False"),
    "ranks_per_node": (_is_count, "must be a whole number, or None"),
    "mesh": (lambda value: value is None or isinstance(value, DeviceMesh), "must be a DeviceMesh, or None"),
    "timeout": (
        lambda value: value is None or (isinstance(value, timedelta) and value > timedelta(0)),
        "must be a datetime.timedelta above 0, or None",
    ),
    "on_sent": (lambda value: value is None or callable(value), "must be a function of one argument, or None"),
}


def check_arguments(where: str, **given: Any) -> None:
    """Refuse arguments of another type."""
    for name, value in given.items():
        holds, rule = _RULES[name]
        if not holds(value):
            raise BinsgdmError(f"{where}: {name}={shown(value)}: {rule}")

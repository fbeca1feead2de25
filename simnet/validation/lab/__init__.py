"""Nodes on one Linux machine: network namespaces behind a switch, with NICs of a set bandwidth.

The names here are what a script needs that runs programs in a lab.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simnet.core.units import Bandwidth
    from simnet.validation.lab.lab import Lab
    from simnet.validation.lab.plan import LabSpec

__all__ = ["Bandwidth", "Lab", "LabSpec"]

# Loaded on first use: a plan touches no machine.
_HOMES = {
    "Bandwidth": "simnet.core.units",
    "Lab": "simnet.validation.lab.lab",
    "LabSpec": "simnet.validation.lab.plan",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'simnet.validation.lab' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

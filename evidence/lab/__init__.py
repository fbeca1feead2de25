"""Nodes on one Linux machine: network namespaces behind a switch, with NICs of a set bandwidth.

The names here are what a script needs that runs programs in a lab.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evidence.lab.lab import Lab
    from evidence.lab.plan import LabSpec
    from simnet.core.units import Bandwidth

__all__ = ["Bandwidth", "Lab", "LabSpec"]

# Loaded on first use: a plan touches no machine.
_HOMES = {
    "Bandwidth": "simnet.core.units",
    "Lab": "evidence.lab.lab",
    "LabSpec": "evidence.lab.plan",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'evidence.lab' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

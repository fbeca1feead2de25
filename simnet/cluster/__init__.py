"""GPUs, nodes, links, faults and their calibration, and what they come to: the topology.

The names here are what the author of a fault needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simnet.cluster.hardware import FAULTS, Fault

__all__ = ["FAULTS", "Fault"]

# Loaded on first use: a module of this room loads no other with it.
_HOMES = {
    "FAULTS": "simnet.cluster.hardware",
    "Fault": "simnet.cluster.hardware",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'simnet.cluster' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

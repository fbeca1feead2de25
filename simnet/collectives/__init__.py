"""Collective algorithms as pure data (`Schedule`), what they load, and how a cluster runs them.

The names here are what the author of an all-reduce needs, beside the modules `algorithms`, which lists them, and
`closed_form`, `direct` and `ring`, which have parts of other algorithms.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simnet.cluster.schedule import Schedule
    from simnet.collectives.algorithms import Algorithm

__all__ = ["Algorithm", "Schedule"]

# Loaded on first use: a module of this room loads no other with it.
_HOMES = {
    "Algorithm": "simnet.collectives.algorithms",
    "Schedule": "simnet.cluster.schedule",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'simnet.collectives' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

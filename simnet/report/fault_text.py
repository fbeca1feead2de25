"""A fault in words: what it is, where, and by how much."""

from collections.abc import Iterator

from msgspec.structs import fields

from simnet.cluster.hardware import Cluster, Fault
from simnet.core.registry import tag_of
from simnet.core.units import Quantity
from simnet.report.text import printable, value_text

MOST_VALUES = 4
"""Values of a list that are written out."""


def fault_at(cluster: Cluster, key: str) -> Fault:
    """Return the fault of a dotted key, such as "cluster.faults.0"."""
    _, name, place = key.split(".")
    found: Fault = getattr(cluster, name)[int(place)]
    return found


def fault_text(fault: Fault) -> str:
    """Return a fault in words: "slow rank: node 3, compute slowdown 1.3"."""
    title = fault.title or tag_of(fault).replace("_", " ")
    settings = ", ".join(_settings(fault))
    return printable(f"{title}: {settings}" if settings else title)


def _settings(fault: Fault) -> Iterator[str]:
    """Yield what a fault says beyond its defaults."""
    for field in fields(fault):
        value = getattr(fault, field.name)
        if value != field.default:
            yield f"{field.encode_name.replace('_', ' ')} {_value(value)}"


def _value(value: object) -> str:
    if isinstance(value, Quantity):
        return value.text()
    if isinstance(value, tuple | list):
        return f"({len(value)} values)" if len(value) > MOST_VALUES else " ".join(map(_value, value))
    return f"{value:g}" if isinstance(value, float) else value_text(value)

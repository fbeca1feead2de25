"""Choose the swept key along which a figure is drawn, and name its points."""

from collections.abc import Sequence
from typing import Any

from simnet.show.document import WORKLOAD_KEYS, Document, Point
from simnet.show.text import bandwidth_text, key_text, nodes_text, value_text
from simnet.units import Bandwidth, Duration, Quantity, Size

# Whose values say by themselves what they are the value of.
PART_KEYS = ("cluster", "calibration", "strategy", "baseline")
# The largest number that an axis can be drawn for.
MOST = 1e30
QUANTITIES: tuple[type[Quantity], ...] = (Bandwidth, Size, Duration)


def main_key(document: Document) -> str:
    """Return the key to draw along: the last one that varies and has numbers as values, or else the last one."""
    numeric = [key for key in document.varied if numbers(document.points, key) is not None]
    return (numeric or document.varied)[-1]


def numbers(points: Sequence[Point], key: str) -> list[float] | None:
    """Return what a key is set to at each point, as SI numbers; None where one of them is no number."""
    values: list[Any] = [point.set.get(key) for point in points]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return [float(value) for value in values] if all(abs(value) <= MOST for value in values) else None
    for quantity in QUANTITIES:
        try:
            return [quantity.parse(value) for value in values]
        except ValueError:
            continue
    return None


def value_label(point: Point, key: str) -> str:
    """Return what a key is set to at a point, for people."""
    value: Any = point.set.get(key)
    if key not in WORKLOAD_KEYS:
        return value_text(value)
    changes = {name: given for name, given in value.items() if name != "use"} if isinstance(value, dict) else {}
    return ", ".join(filter(None, [point.workload, value_text(changes)]))


def label(point: Point, keys: Sequence[str]) -> str:
    """Return what several keys are set to at a point, each with its name where the value does not tell."""
    named = (*WORKLOAD_KEYS, *PART_KEYS)
    return ", ".join(
        value_label(point, key) if key in named else f"{key_text(key)} {value_label(point, key)}" for key in keys
    )


def grouped(points: Sequence[Point], keys: Sequence[str]) -> dict[str, list[Point]]:
    """Return the points by what these keys are set to, in file order."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(label(point, keys), []).append(point)
    return groups


def context(points: Sequence[Point]) -> str:
    """Return what is the same for all points: the workload, and the network."""
    workloads = {point.workload for point in points}
    networks = {f"{nodes_text(point.num_nodes)} at {bandwidth_text(point.nic_gbit_per_s)}" for point in points}
    return ", ".join(next(iter(texts)) for texts in (workloads, networks) if len(texts) == 1)

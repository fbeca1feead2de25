"""Numbers, or arrays of them over lanes such as draws and points of a sweep: one arithmetic for both."""

from collections.abc import Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

Number = float
"""A float, or an array of floats, one a lane, which stands in its place: sums, products and quotients are the same."""
T = TypeVar("T")


def largest(*values: Number) -> Number:
    """Return the largest of some values, in every lane."""
    try:
        return max(values)
    except ValueError:  # an array is neither more nor less than another
        import numpy as np

    most = values[0]
    for value in values[1:]:
        most = np.maximum(most, value)
    return most


def least(*values: Number) -> Number:
    """Return the least of some values, in every lane."""
    try:
        return min(values)
    except ValueError:
        import numpy as np

    lowest = values[0]
    for value in values[1:]:
        lowest = np.minimum(lowest, value)
    return lowest


def smallest(value: Number) -> float:
    """Return the least of all lanes."""
    return value if isinstance(value, float | int) else float(value.min())


class UnlikeLanesError(Exception):
    """Values that differ in more than numbers."""


def stacked(values: Sequence[T]) -> T:
    """Return structs that differ in numbers as one whose numbers are arrays; numbers that all share stay as they are.

    Raises:
        UnlikeLanesError: they differ in something else.
    """
    struct: T = _stacked(values)
    return struct


def _stacked(values: Sequence[Any]) -> Any:
    first = values[0]
    if all(value is first or value == first for value in values):
        return first
    if all(isinstance(value, float | int) and not isinstance(value, bool) for value in values):
        import numpy as np

        return np.array(values, dtype=float)
    # Two kinds of fault or strategy have other programs, which no array can hold.
    if any(type(value) is not type(first) for value in values):
        raise UnlikeLanesError
    if isinstance(first, Struct):
        names = first.__struct_fields__
        return replace(first, **{name: _stacked([getattr(value, name) for value in values]) for name in names})
    if isinstance(first, tuple) and all(len(value) == len(first) for value in values):
        parts = [_stacked(part) for part in zip(*values, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    raise UnlikeLanesError

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

    found = values[0]
    for one in values[1:]:
        found = np.maximum(found, one)
    return found


def least(*values: Number) -> Number:
    """Return the least of some values, in every lane."""
    try:
        return min(values)
    except ValueError:
        import numpy as np

    found = values[0]
    for one in values[1:]:
        found = np.minimum(found, one)
    return found


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
    found: T = _stacked(values)
    return found


def _stacked(values: Sequence[Any]) -> Any:
    first = values[0]
    if all(one is first or one == first for one in values):
        return first
    if all(isinstance(one, float | int) and not isinstance(one, bool) for one in values):
        import numpy as np

        return np.array(values, dtype=float)
    if any(type(one) is not type(first) for one in values):
        raise UnlikeLanesError
    if isinstance(first, Struct):
        names = first.__struct_fields__
        return replace(first, **{name: _stacked([getattr(one, name) for one in values]) for name in names})
    if isinstance(first, tuple) and all(len(one) == len(first) for one in values):
        parts = [_stacked(part) for part in zip(*values, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    raise UnlikeLanesError

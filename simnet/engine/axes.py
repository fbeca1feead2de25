"""What a sweep varies: keys with lists of values, whose grid is swept, and a list of points."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from simnet.core.errors import SimnetError, shown
from simnet.core.parsing import KeyPath

POINTS = "points"
"""Key of a [sweep] under which the list of points stands; no scenario has a key of this name."""
_LIST_RULE = "write a list of at least one value, such as [1, 2, 4]"
_POINTS_RULE = 'write a list of tables, each a [[sweep.points]] with keys such as "cluster.num_nodes" = 8'
# What tells a whole part in a point from keys that TOML has nested because nobody quoted them.
_WHOLE = ("use", "kind", "name", "title")


class Override(Struct, frozen=True, kw_only=True):
    """A value for a dotted key, the place that it was given at, and where relative paths of files start there."""

    key: str
    value: object
    origin: str = "--set"
    directory: Path = Path()

    @property
    def path(self) -> KeyPath:
        """The keys from the top."""
        return tuple(self.key.split("."))


class Axis(Struct, frozen=True, kw_only=True):
    """A dotted key, and the values that it takes in a sweep."""

    key: str
    values: tuple[object, ...]
    origin: str = "--set"
    directory: Path = Path()

    def override(self, value: object) -> Override:
        """Return the override that sets this axis to one value."""
        return Override(key=self.key, value=value, origin=self.origin, directory=self.directory)


class PointList(Struct, frozen=True, kw_only=True):
    """Points that are listed one by one: dotted keys, and at each point a value for every key.

    Attributes:
        keys: at least one, each once.
        rows: the values of each point, in the order of the keys.
        origin: how messages call the place of the list.
        directory: where relative paths of files start there.
    """

    keys: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    origin: str
    directory: Path = Path()

    def points(self) -> Iterator[dict[str, object]]:
        """Yield the values of each point by key."""
        return (dict(zip(self.keys, row, strict=True)) for row in self.rows)

    def overrides(self, values: Mapping[str, object]) -> Iterator[Override]:
        """Yield the overrides that set those of the keys that have a value."""
        for key in self.keys:
            if key in values:
                yield Override(key=key, value=values[key], origin=self.origin, directory=self.directory)

    def values_of(self, key: str) -> tuple[object, ...]:
        """Return the values of a key at all points; none where it is not one of the keys."""
        return tuple(row[self.keys.index(key)] for row in self.rows) if key in self.keys else ()

    def without(self, keys: Collection[str]) -> "PointList | None":
        """Return the list without some keys, points that are then the same once; None if no key is left."""
        kept = [index for index, key in enumerate(self.keys) if key not in keys]
        if len(kept) == len(self.keys):
            return self
        rows = {repr(row): row for row in (tuple(row[index] for index in kept) for row in self.rows)}
        left = tuple(self.keys[index] for index in kept)
        if not left:
            return None
        return PointList(keys=left, rows=tuple(rows.values()), origin=self.origin, directory=self.directory)


def point_list(points: Sequence[Mapping[str, object]], where: Sequence[str], origin: str, directory: Path) -> PointList:
    """Return points as a list.

    Args:
        points: values by dotted key; at least one point.
        where: how messages call each of the points.
        origin: how they call the list.
        directory: where relative paths of files start.

    Raises:
        SimnetError: a point has no key, or not those of the first point.
    """
    keys = tuple(points[0])
    for place, point in zip(where, points, strict=True):
        lacking = next((key for key in keys if key not in point), None)
        further = next((key for key in point if key not in keys), None)
        if not point:
            raise SimnetError(f"{place}: no key: {_POINTS_RULE}")
        if lacking is not None:
            raise SimnetError(f"{place}: no {shown(lacking)}: every point has the same keys; add it")
        if further is not None:
            rule = "every point has the same keys; add it there, or drop it here"
            raise SimnetError(f"{place}: {shown(further)}: {where[0]} has none: {rule}")
    rows = tuple(tuple(point[key] for key in keys) for point in points)
    return PointList(keys=keys, rows=rows, origin=origin, directory=directory)


def read_sweep(table: object, where: str, directory: Path) -> tuple[dict[str, Axis], PointList | None]:
    """Read the [sweep] of an experiment.

    Returns:
        The axes of the grid by key, and the list of points if there is one.

    Raises:
        SimnetError: it is no table, an axis has no values, a point is no table of keys, or a key stands in both.
    """
    if not isinstance(table, Mapping):
        raise SimnetError(f"{where}: sweep: {shown(table)}: write a table of keys with lists of values")
    origin = f"{where}: sweep"
    axes = {}
    for key, values in table.items():
        if key == POINTS:
            continue
        if not isinstance(values, list) or not values:
            rule = _quoted(key, values) if isinstance(values, Mapping) and values else _LIST_RULE
            raise SimnetError(f"{origin}.{key}: {shown(values)}: {rule}")
        axes[key] = Axis(key=key, values=tuple(values), origin=origin, directory=directory)
    listed = _points(table[POINTS], origin, directory) if POINTS in table else None
    if listed is not None:
        check_apart(axes, listed, f"{origin}.{POINTS}")
    return axes, listed


def check_apart(keys: Iterable[str], listed: PointList, where: str) -> None:
    """Check that no key is both in a list of points and elsewhere."""
    for key in keys:
        if key in listed.keys:
            raise SimnetError(f"{where}: {shown(key)}: is a key of the points, too; drop one of the two")


def _points(points: object, origin: str, directory: Path) -> PointList:
    if not isinstance(points, list) or not points:
        raise SimnetError(f"{origin}.{POINTS}: {shown(points)}: {_POINTS_RULE}")
    where = [f"{origin}.{POINTS}.{number}" for number in range(len(points))]
    for place, point in zip(where, points, strict=True):
        if not isinstance(point, Mapping):
            raise SimnetError(f"{place}: {shown(point)}: {_POINTS_RULE}")
        for key, value in point.items():
            if isinstance(value, Mapping) and not any(name in value for name in _WHOLE) and "." not in key:
                raise SimnetError(f"{place}.{key}: {shown(value)}: {_quoted(key, value)}")
    return point_list(points, where, origin, directory)


def _quoted(key: str, table: Mapping[str, object]) -> str:
    """Say how to write keys that TOML has nested."""
    inner = next(iter(table), "...")
    whole = f", or a whole {key} with a name or title" if key in {"cluster", "workload", "calibration"} else ""
    return f'write dotted keys in quotes, such as "{key}.{inner}"{whole}'

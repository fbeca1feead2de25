"""Plain tables in tables, as TOML and JSON give them: merge them, and get at values by the path of their keys."""

from collections.abc import Mapping

from simnet.core.errors import SimnetError
from simnet.core.parsing import DEEP, MAX_DEPTH

KeyPath = tuple[str, ...]


def merged(base: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """Return `base` with `changes`: tables are merged, all else is replaced."""
    whole = dict(base)
    for key, value in changes.items():
        old = whole.get(key)
        whole[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return whole


def leaves(table: Mapping[str, object]) -> list[KeyPath]:
    """Return the path of every value of a table that is not itself a table with keys."""
    paths: list[KeyPath] = []
    for key, value in table.items():
        # An empty table is a value: it has no leaf that would stand for it.
        inner = leaves(value) if isinstance(value, Mapping) else []
        paths.extend([(key, *path) for path in inner] or [(key,)])
    return paths


def first_missing(table: object, path: KeyPath) -> KeyPath:
    """Return the shortest start of `path` at which no key stands; all of it where values or lists end the tables."""
    for length, key in enumerate(path, 1):
        if not isinstance(table, Mapping):
            break
        if key not in table:
            return path[:length]
        table = table[key]
    return path


def replaced(data: object, path: KeyPath, value: object, where: str) -> object:
    """Return `data` with `value` at `path`; lists are entered by index; `data` itself is not changed."""
    if len(path) > MAX_DEPTH:
        raise SimnetError(f"{where}: {DEEP}")
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(data, Mapping):
        return {**data, key: replaced(data.get(key, {}), rest, value, where)}
    if isinstance(data, list | tuple):
        indices = [str(index) for index in range(len(data))]
        if key not in indices:
            known = f"write an index from 0 to {len(data) - 1}" if indices else "there is no item"
            raise SimnetError(f"{where}: unknown key {key!r}: a list of {len(data)}: {known}, or set the whole list")
        return [replaced(item, rest, value, where) if i == key else item for i, item in zip(indices, data, strict=True)]
    raise SimnetError(f"{where}: unknown key {key!r}: {data!r} there has no such key; set the whole value")

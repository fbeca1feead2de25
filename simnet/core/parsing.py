"""Text to plain data, read strictly and within limits; values in tables by the path of their keys."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping

from simnet.core.errors import SimnetError

# Results are nested 7 levels deep; beyond some hundred, what walks through data recursively ends in a traceback.
MAX_DEPTH = 50
# No float is larger; and Python writes no whole number of more than 4,300 digits.
MAX_BITS = 1024
LONG_NUMBER = "a whole number of more than 300 digits; write a shorter one"
DEEP = f"nested deeper than {MAX_DEPTH} levels; write fewer levels"
_DELIMITERS = ",;\t"


def parse_toml(text: str, where: str) -> dict[str, object]:
    """Read TOML.

    Raises:
        SimnetError: it is no TOML, is nested too deep, or holds a number that is too long.
    """
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused(error, where, "TOML") from error
    check_plain(data, where)
    return data


def parse_json(data: bytes, where: str, *, unique: bool = True) -> object:
    """Read JSON as strictly as TOML is read: no key twice, no half of a character, UTF-8.

    Without `unique` a key may come twice in an object: other programs write such, and mean the last.

    Raises:
        SimnetError: it is no JSON, is nested too deep, or holds a number that is too long.
    """
    import json  # which a scenario in TOML need not load

    try:
        text = data.decode("utf-8-sig")
        value = json.loads(text, object_pairs_hook=_table if unique else None)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise _refused(error, where, "JSON") from error
    check_plain(value, where)
    return value


def csv_rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines of a table with cells between commas, semicolons or tabs; comments begin with "#".

    Yields:
        The number of each line that is not empty, and its cells; the first is the head. A torn line has no cells.

    Example:
        >>> list(csv_rows('nodes; batch'))
        [(1, ['nodes', 'batch'])]
    """
    import csv  # which most runs need not load

    delimiter = ""
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        delimiter = delimiter or max(_DELIMITERS, key=line.count)
        try:
            cells = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))
        except (csv.Error, StopIteration):
            cells = []
        yield number, [cell.strip() for cell in cells]


def check_plain(data: object, where: str) -> None:
    """Check data that were just parsed: how deep they are nested, and how long their whole numbers are."""
    level = [data]
    for _ in range(MAX_DEPTH + 1):
        if any(_is_long(value) for value in level):
            raise SimnetError(f"{where}: {'.'.join(_long_number(data))}: {LONG_NUMBER}")
        level = [item for value in level for _, item in _items(value)]
        if not level:
            return
    raise SimnetError(f"{where}: {DEEP}")


def _is_long(value: object) -> bool:
    return type(value) is int and value.bit_length() > MAX_BITS


def _long_number(value: object) -> list[str]:
    """Return the keys to the first number that is too long, outermost first, or none."""
    for key, item in _items(value):
        if _is_long(item):
            return [str(key)]
        if inner := _long_number(item):
            return [str(key), *inner]
    return []


def _items(value: object) -> Iterable[tuple[object, object]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def _table(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r} comes twice in one object; drop one of them")
    return table


def _refused(error: ValueError | RecursionError, where: str, language: str) -> SimnetError:
    """Return what a parser has refused as a sentence, where Python's own words are for programmers."""
    import json

    match error:
        case RecursionError():
            return SimnetError(f"{where}: {DEEP}")
        case UnicodeDecodeError():
            text = f"not UTF-8 text (byte {error.start}); save it as UTF-8"
        case UnicodeEncodeError():
            text = f"{error.object[error.start : error.end]!r}: half a character; write it whole, or drop it"
        case json.JSONDecodeError():
            text = f"{error}; fix it, or copy the file again from its source"
        case _ if str(error).startswith("Exceeds the limit"):
            return SimnetError(f"{where}: {LONG_NUMBER}")
        case _:
            text = str(error)
    return SimnetError(f"{where}: not {language}: {text}")


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

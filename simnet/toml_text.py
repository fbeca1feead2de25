"""Plain data to TOML text, which the standard library only reads."""

import json
import re
from collections.abc import Iterator, Mapping

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 100


def to_toml(table: Mapping[str, object]) -> str:
    """Return a table as TOML; `tomllib.loads` gives an equal one back.

    Example:
        >>> print(to_toml({"run": {"steps": 3}, "question": "Why?"}), end="")
        question = "Why?"
        <BLANKLINE>
        [run]
        steps = 3
    """
    return "\n".join(_lines(table, ())) + "\n"


def _lines(table: Mapping[str, object], path: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a table: its own values first, then its tables under their headers."""
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    if path and (len(tables) < len(table) or not tables):
        yield from ("", f"[{'.'.join(map(_key, path))}]")
    for key, value in table.items():
        if key not in tables:
            yield f"{_key(key)} = {_value(value)}"
    for key, inner in tables.items():
        yield from _lines(inner, (*path, key))


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key)


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        items = [_value(item) for item in value]
        text = f"[{', '.join(items)}]"
        return text if len(text) <= _WIDTH else "[\n" + "".join(f"    {item},\n" for item in items) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")

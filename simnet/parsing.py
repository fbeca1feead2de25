"""Text to plain data: TOML and JSON, read alike strictly, and within limits that every part of the program can bear."""

import json
import tomllib

from simnet.errors import SimnetError

# Results are nested 7 levels deep; beyond some hundred, what walks through data recursively ends in a traceback.
MAX_DEPTH = 50
# No float is larger; and Python writes no whole number of more than 4,300 digits.
MAX_BITS = 1024
LONG_NUMBER = "a whole number of more than 300 digits; write a shorter one"
_DEEP = f"nested deeper than {MAX_DEPTH} levels; write it flatter"


def parse_toml(text: str, where: str) -> dict[str, object]:
    """Read TOML.

    Args:
        text: as it stands in the file.
        where: how messages call it.

    Raises:
        SimnetError: it is no TOML, is nested too deep, or holds a number that is too long.
    """
    try:
        data = tomllib.loads(text)
        check_plain(data)
    except (ValueError, RecursionError) as error:
        raise SimnetError(f"{where}: not TOML: {_reason(error)}") from error
    return data


def parse_json(data: bytes, where: str) -> object:
    """Read JSON as strictly as TOML is read: no key twice, no half of a character, UTF-8.

    Args:
        data: as it stands in the file.
        where: how messages call it.

    Raises:
        SimnetError: it is no JSON, is nested too deep, or holds a number that is too long.
    """
    try:
        text = data.decode("utf-8-sig")
        value = json.loads(text, object_pairs_hook=_table)
        check_plain(value)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise SimnetError(f"{where}: not JSON: {_reason(error)}") from error
    return value


def check_plain(data: object) -> None:
    """Check data that were just parsed: how deep they are nested, and how long their whole numbers are.

    Raises:
        ValueError: nested too deep, or a whole number too long.
    """
    level = [data]
    for _ in range(MAX_DEPTH + 1):
        if any(type(value) is int and value.bit_length() > MAX_BITS for value in level):
            raise ValueError(LONG_NUMBER)
        level = [item for value in level if isinstance(value, dict | list) for item in _items(value)]
        if not level:
            return
    raise ValueError(_DEEP)


def _items(value: dict[str, object] | list[object]) -> list[object]:
    return value if isinstance(value, list) else list(value.values())


def _table(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r} comes twice in one object; drop one of them")
    return table


def _reason(error: ValueError | RecursionError) -> str:
    """Say what a parser has refused, where Python's own words are for programmers."""
    if isinstance(error, UnicodeDecodeError):
        return f"no text in UTF-8 (byte {error.start}); save it as UTF-8"
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object[error.start : error.end]!r}: is half of a character; write it whole, or drop it"
    if isinstance(error, RecursionError):
        return _DEEP
    return LONG_NUMBER if str(error).startswith("Exceeds the limit") else str(error)

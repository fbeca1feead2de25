"""Damage files in the ways that disks, editors, programs and people do."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import tomli_w

DEEP = json.loads("[" * 100 + "]" * 100)
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2.5, -0.0, 1e308, 1e-308, 5e-324, float("inf"), float("nan"), 10**20, 10**299,
    10**400, "", " ", "x", "x" * 3000, "25", "25 Gbit/s", "5 us", "4 MiB", "0 s", "-1 us", "1e400 GB/s", "9" * 400,
    "none", "true", "../../etc/passwd", "/dev/zero", "a\x00b", "\x1b]0;title\x07", "\x9b2J", "\u202eabc", "\ud800",
    "a\nb", "`$.a`", "{x}", "%s", [], {}, [[]], {"a": 1}, {"\x1b[2J": 1}, [1, "a", None], ["25 Gbit/s"], DEEP,
    {"use": "x"},
)  # fmt: skip
KEYS = ("", "x", "kind", "name", "\x1b[31m", "a.b", "\u202e", "k" * 500)
BYTES = (b"", b"\x00", b"\xff\xfe", b"\x1b]0;t\x07", b"\x9b", b"\xc2\x9b", b"\xe2\x80\xae", b"9" * 5000, b"[" * 400,
         b"{", b"}", b'"', b"'", b"\n", b"\r", b"=", b"a = ", b"-", b".", b"inf", b"nan", b"null", b"\xef\xbb\xbf",
         b"\x1f\x8b", b"#")  # fmt: skip


def places(data: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in nested data."""
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def damaged_data(data: Any, rng: random.Random) -> Any:
    """Return a copy of nested data with one to three values replaced, dropped, renamed, doubled or swapped."""
    data = copy.deepcopy(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        path = rng.choice(list(places(data))[1:] or [()])
        if not path:
            return rng.choice(VALUES)
        holder = data
        for key in path[:-1]:
            holder = holder[key]
        _change(holder, path[-1], data, rng)
    return data


def _change(holder: Any, key: Any, whole: Any, rng: random.Random) -> None:
    match rng.randrange(8):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[rng.choice(KEYS)] = holder.pop(key)
        case 1 | 2 if isinstance(holder, list):
            holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
        case 3:
            other: Any = whole
            for step in rng.choice(list(places(whole))[1:]):
                other = other[step]
            holder[key] = copy.deepcopy(other)
        case 4 if isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            holder[key] = holder[key] * rng.choice((-1, 0, 1e-9, 1e9, 1e300, 10**6, 0.5))
        case _:
            holder[key] = copy.deepcopy(rng.choice(VALUES))  # may be damaged itself


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with one to three stretches cut out, put in, doubled or replaced."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice((0, 1, 2, 8, 40, 400)))
        match rng.randrange(5):
            case 0:
                data = data[:start]
            case 1:
                data = data[:start] + data[end:]
            case 2:
                data = data[:end] + data[start:end] + data[end:]
            case 3:
                data = data[:start] + bytes(rng.randrange(256) for _ in range(end - start)) + data[end:]
            case _:
                data = data[:start] + rng.choice(BYTES) + data[end:]
    return data


def as_json(data: Any) -> bytes:
    """Return data as JSON, also what JSON has no word for."""
    return json.dumps(data).encode()


def as_toml(data: Any) -> bytes:
    """Return data as TOML as far as TOML has words for it."""
    whole = {str(key): value for key, value in data.items()} if isinstance(data, dict) else {"value": data}
    return tomli_w.dumps(_writable(whole)).encode("utf-8", "surrogatepass")


def _writable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _writable(item) for key, item in value.items() if item is not None}
    return [_writable(item) for item in value if item is not None] if isinstance(value, list) else value


def damaged(data: Any, write: Callable[[Any], bytes], rng: random.Random) -> bytes:
    """Return a file of damaged data, or the damaged file of whole data."""
    return write(damaged_data(data, rng)) if rng.random() < 0.7 else damaged_bytes(write(data), rng)

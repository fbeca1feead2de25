"""Compare two texts number by number: tables of CSV, documents of JSON or TOML, and prose."""

import csv
import difflib
import io
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

NUMBER = re.compile(r"(?<![A-Za-z_])[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")
RULER = re.compile(r"\| ?:?-{3,}:?(?: (?=\|))?")
"""A column of the line below the titles of a table, which some makers of tables write with blanks."""
IGNORED = "version"
RENAMED = {"iterations_s.0": "iteration_s", "args.bytes": "args.message_bytes"}
"""Keys of documents that have had two names."""
NAMES = ("system", "name", "title", "label", "key")
"""Keys that identify the items of a list, so that another order of items makes no number differ."""


@dataclass(kw_only=True)
class Finding:
    """What the comparison of two texts found.

    Attributes:
        numbers: how many numbers stand on both sides.
        largest: largest relative difference of a number, 0 if all are the same.
        differing: a line for each number that differs.
        texts: a line for each text that differs in its words, or stands on one side only.
    """

    numbers: int = 0
    largest: float = 0.0
    differing: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def within(self, name: str) -> "Finding":
        """Return the same with the name of the document before every line."""
        differing, texts = ([f"{name}: {line}" for line in lines] for lines in (self.differing, self.texts))
        return Finding(numbers=self.numbers, largest=self.largest, differing=differing, texts=texts)

    def add(self, other: "Finding") -> None:
        """Add what another comparison found."""
        self.numbers += other.numbers
        self.largest = max(self.largest, other.largest)
        self.differing += other.differing
        self.texts += other.texts


def compare(before: str, after: str, form: str, tolerance: float = 0.0) -> Finding:
    """Compare two texts.

    Args:
        before: one text.
        after: the other.
        form: "csv", "json", "toml" or "prose".
        tolerance: largest relative difference that counts as none; `Finding.largest` has it all the same.
    """
    if form == "prose":
        return compare_prose(before, after, tolerance)
    leaves = LEAVES[form]
    return compare_leaves(leaves(before), leaves(after), tolerance)


def compare_leaves(before: Mapping[str, str], after: Mapping[str, str], tolerance: float = 0.0) -> Finding:
    """Compare named texts."""
    found = Finding()
    for where in (name for name in before if name in after):
        found.add(compare_leaf(where, before[where], after[where], tolerance))
    found.texts += [f"{where}: only before" for where in before if where not in after]
    found.texts += [f"{where}: only after" for where in after if where not in before]
    return found


def compare_leaf(where: str, before: str, after: str, tolerance: float = 0.0) -> Finding:
    """Compare two short texts: numbers by value, where the words around them are the same.

    Where the words differ and a text is a bare number, its number differs; else the texts differ.
    """
    words = masked(before), masked(after)
    if words[0] != words[1]:
        changes = [f"{where}: {before!r} -> {after!r}"]
        return Finding(largest=math.inf, differing=changes) if "#" in words else Finding(texts=changes)
    found = Finding(numbers=len(numbers(before)))
    for old, new in zip(numbers(before), numbers(after), strict=True):
        if old != new:
            found.largest = max(found.largest, relative(old, new))
            if not relative(old, new) <= tolerance:
                found.differing.append(f"{where}: {old!r} -> {new!r}")
    if not found.largest and NUMBER.findall(before) != NUMBER.findall(after):  # 2 and 2.0, say
        found.texts.append(f"{where}: {before!r} -> {after!r}")
    return found


def compare_prose(before: str, after: str, tolerance: float = 0.0) -> Finding:
    """Compare pages line by line; lines whose words are the same belong together."""
    found = Finding()
    old, new = before.splitlines(), after.splitlines()
    matcher = difflib.SequenceMatcher(None, [*map(masked, old)], [*map(masked, new)], autojunk=False)
    for kind, i1, i2, j1, j2 in matcher.get_opcodes():
        if kind == "equal":
            for number, (one, other) in enumerate(zip(old[i1:i2], new[j1:j2], strict=True), i1 + 1):
                found.add(compare_leaf(f"line {number}", one, other, tolerance))
        else:
            found.texts.append(f"line {i1 + 1}: {' / '.join(old[i1:i2])!r} -> {' / '.join(new[j1:j2])!r}")
    return found


def csv_leaves(text: str) -> dict[str, str]:
    """Return every cell of a table by its row and column."""
    rows = csv.DictReader(io.StringIO(text))
    return {
        f"row {number}, {column}": cell or ""
        for number, row in enumerate(rows, 1)
        for column, cell in row.items()
        if column != IGNORED
    }


def json_leaves(text: str) -> dict[str, str]:
    """Return every value of a JSON document by the keys that lead to it; numbers as they are written, no nulls."""
    return _named(json.loads(text, parse_float=str, parse_int=str))


def toml_leaves(text: str) -> dict[str, str]:
    """Return every value of a TOML document by the keys that lead to it."""
    return _named(tomllib.loads(text, parse_float=str))


LEAVES = {"csv": csv_leaves, "json": json_leaves, "toml": toml_leaves}


def _named(data: dict[str, object]) -> dict[str, str]:
    """Return the values of a document under one name each; older ones had the strategy's metrics at the top."""
    inner = data.pop("result", None)
    whole = {**data, **inner} if isinstance(inner, dict) else data
    return {_renamed(path): text for path, text in _leaves(whole, ())}


def _renamed(path: str) -> str:
    return next((path.removesuffix(old) + new for old, new in RENAMED.items() if path.endswith(old)), path)


def _leaves(data: object, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if isinstance(data, dict):
        for key, value in data.items():
            if key != IGNORED:
                yield from _leaves(value, (*path, str(key)))
    elif isinstance(data, list):
        for label, item in zip(_labels(data), data, strict=True):
            yield from _leaves(item, (*path, label))
    elif data is not None:
        yield ".".join(path), str(data)


def _labels(items: list[object]) -> list[str]:
    """Return a label of each item of a list: a name that each has and no two share, else the index."""
    for key in NAMES:
        labels = [str(item.get(key)) if isinstance(item, dict) else "" for item in items]
        if all(labels) and len(set(labels)) == len(items):
            return labels
    return [str(index) for index in range(len(items))]


def numbers(text: str) -> list[float]:
    """Return the numbers in a text.

    Example:
        >>> numbers("1,606 GB, 5.53x, 1e-3")
        [1606.0, 5.53, 0.001]
    """
    return [float(found.replace(",", "")) for found in NUMBER.findall(text)]


def masked(text: str) -> str:
    """Return a text without its numbers, and without the widths that they give a table.

    Example:
        >>> masked("| 5.53x |  12 |")
        '| #x | # |'
    """
    return RULER.sub("|---", " ".join(NUMBER.sub("#", text).split()))


def relative(before: float, after: float) -> float:
    """Return the relative difference of two numbers that are not the same."""
    largest = max(abs(before), abs(after))
    return abs(before - after) / largest if math.isfinite(largest) else math.inf

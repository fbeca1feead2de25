"""Compare two texts number by number: tables of CSV, documents of JSON or TOML, and prose."""

import csv
import difflib
import io
import json
import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field

NUMBER = re.compile(r"(?<![A-Za-z_])[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")
RULER = re.compile(r"\| ?:?-{3,}:?(?: (?=\|))?")
"""A column of the line below the titles of a table, which some makers of tables write with blanks."""
IGNORED = "version"
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

    def add(self, other: "Finding", where: str = "") -> None:
        """Add what another comparison found, with the name of its document before every line."""
        self.numbers += other.numbers
        self.largest = max(self.largest, other.largest)
        self.differing += [where + line for line in other.differing]
        self.texts += [where + line for line in other.texts]


def compare(before: str, after: str, form: str, tolerance: float = 0.0) -> Finding:
    """Compare two texts.

    Args:
        before: one text.
        after: the other.
        form: "csv", "json", "toml" or "prose".
        tolerance: largest relative difference that counts as none; `Finding.largest` has it all the same.
    """
    found = Finding()
    if form == "prose":
        # Lines whose words are the same belong together.
        old, new = before.splitlines(), after.splitlines()
        matcher = difflib.SequenceMatcher(None, [*map(masked, old)], [*map(masked, new)], autojunk=False)
        for kind, i1, i2, j1, j2 in matcher.get_opcodes():
            if kind == "equal":
                for number, (one, other) in enumerate(zip(old[i1:i2], new[j1:j2], strict=True), i1 + 1):
                    found.add(compare_leaf(f"line {number}", one, other, tolerance))
            else:
                found.texts.append(f"line {i1 + 1}: {' / '.join(old[i1:i2])!r} -> {' / '.join(new[j1:j2])!r}")
        return found
    ours, theirs = (leaves(text, form) for text in (before, after))
    for where in (name for name in ours if name in theirs):
        found.add(compare_leaf(where, ours[where], theirs[where], tolerance))
    found.texts += [f"{where}: only before" for where in ours if where not in theirs]
    found.texts += [f"{where}: only after" for where in theirs if where not in ours]
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
            largest = max(abs(old), abs(new))
            relative = abs(old - new) / largest if math.isfinite(largest) else math.inf
            found.largest = max(found.largest, relative)
            if not relative <= tolerance:
                found.differing.append(f"{where}: {old!r} -> {new!r}")
    if not found.largest and NUMBER.findall(before) != NUMBER.findall(after):  # 2 and 2.0, say
        found.texts.append(f"{where}: {before!r} -> {after!r}")
    return found


def leaves(text: str, form: str) -> dict[str, str]:
    """Return every cell of a table by its row and column, or every value of a document by the keys that lead to it."""
    if form == "csv":
        rows = csv.DictReader(io.StringIO(text))
        cells = ((f"row {n}, {column}", cell or "") for n, row in enumerate(rows, 1) for column, cell in row.items())
        return {where: cell for where, cell in cells if not where.endswith(f", {IGNORED}")}
    # Numbers as they are written, no nulls.
    data = tomllib.loads(text, parse_float=str) if form == "toml" else json.loads(text, parse_float=str, parse_int=str)
    return dict(_leaves(data, ()))


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

"""Measured tables: every row in a file of CSV."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from simnet.report.table import Table

Cells = dict[str, str]
HEADS = ("table", "what", "time", "before", "after / before", "of the first", "ASTRA-sim 2; SimGrid", "target")
"""Of a file; the last where a row has a target."""


def read(path: Path) -> dict[str, list[Cells]]:
    """Return the rows of a file by their table; nothing without a file."""
    found: dict[str, list[Cells]] = {}
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                found.setdefault(row.pop("table", ""), []).append(row)
    return found


def write(path: Path, found: Mapping[str, list[Cells]], titles: Sequence[str]) -> None:
    """Write tables in the order of their titles; others that the file has stay."""
    every = {**read(path), **found}
    kept = {title: every[title] for title in titles if title in every}
    path.parent.mkdir(exist_ok=True)
    heads = HEADS if any(row.get("target") for of in kept.values() for row in of) else HEADS[:-1]
    rows = [[title, *(row.get(head, "") for head in heads[1:])] for title, of in kept.items() for row in of]
    path.write_text(Table(heads, rows).csv(), encoding="utf-8")

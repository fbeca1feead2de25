"""Measured tables: every row in a CSV file beside the page, the first and the slowest row of each on the page."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from simnet.report.table import Table

Cells = dict[str, str]
HEADS = ("table", "what", "time", "before", "after / before", "of the first", "ASTRA-sim 2; SimGrid")


def read(path: Path) -> dict[str, list[Cells]]:
    """Return the rows of a file by their table; nothing without a file."""
    found: dict[str, list[Cells]] = {}
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                found.setdefault(row.pop("table"), []).append(row)
    return found


def write(path: Path, found: Mapping[str, list[Cells]], titles: Sequence[str]) -> str:
    """Write tables in the order of their titles, others that the file has stay; return the table for the page."""
    every = {**read(path), **found}
    kept = {title: every[title] for title in titles if title in every}
    path.parent.mkdir(exist_ok=True)
    rows = [[title, *(row.get(head, "") for head in HEADS[1:])] for title, of in kept.items() for row in of]
    path.write_text(Table(HEADS, rows).csv(), encoding="utf-8")
    return summary(kept)


def summary(tables: Mapping[str, list[Cells]]) -> str:
    """Return the first and the slowest row of each table."""
    rows = []
    for title, of in tables.items():
        most = max(of, key=lambda row: float(row["of the first"]))
        rows.append((title, *(f"{row['what']}: {row['time']}" for row in (of[0], most)), most["of the first"]))
    return Table(("table", "its first row", "its slowest row", "of the first"), rows).markdown()

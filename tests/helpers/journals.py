"""What the journal of a sweep holds, read without the code that wrote it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from simnet.analysis.journal import NAME


class Row(NamedTuple):
    """A point in a journal, as it stands there."""

    key: str
    result: str | None
    refused: str | None
    point: str | None


def rows(out: Path) -> list[Row]:
    """Return the points of a journal that no sweep has open, in the order in which they were written.

    A sweep that is killed while it makes the journal leaves a file without the table.
    """
    with closing(sqlite3.connect(out / NAME)) as database:
        if not database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'points'").fetchone()[0]:
            return []
        return [Row(*row) for row in database.execute("SELECT key, result, refused, point FROM points ORDER BY place")]


def num_written(out: Path) -> int:
    """Return how many points a sweep that goes on has committed by now; 0 while it commits more."""
    # Of a commit that goes on, the head of the rollback journal is not yet zero.
    undo = out / f"{NAME}-journal"
    try:
        with closing(sqlite3.connect(f"file:{out / NAME}?immutable=1", uri=True)) as database:
            written = int(database.execute("SELECT count(*) FROM points").fetchone()[0])
        return 0 if undo.exists() and any(undo.read_bytes()[:8]) else written
    except sqlite3.Error:  # there is none yet, or it is just being written
        return 0


def change(out: Path, question: str, *arguments: object) -> None:
    """Change a journal by a statement of SQL."""
    with closing(sqlite3.connect(out / NAME)) as database, database:
        database.execute(question, arguments)

"""The record of what was run: rows in a JSON file, one row a line."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simnet.core.files import write_file

Row = dict[str, Any]


class Ledger:
    """The rows of one file, which is replaced as a whole after every run, so that a study can be stopped at any time.

    Args:
        path: of the file; may not be there yet.
        member: of the file's object that holds the rows; "" where the file is a list of rows.
        head: returns the other members of the object, given the rows.
        order: by which the rows are sorted when they are written; as they came if None.
    """

    def __init__(
        self,
        path: Path,
        member: str = "",
        *,
        head: Callable[[list[Row]], Row] = lambda _: {},
        order: Callable[[Row], Any] | None = None,
    ) -> None:
        self.path = path
        self._member, self._head, self._order = member, head, order
        self._rows: list[Row] | None = None

    @property
    def rows(self) -> list[Row]:
        """All rows, as read first and added since."""
        if self._rows is None:
            self._rows = self._read()
        return self._rows

    def having(self, values: Mapping[str, object]) -> list[Row]:
        """Return the rows that have these values; None also stands for a value that a row does not name."""
        return having(self.rows, values)

    def put(self, key: Row, result: Row) -> None:
        """Add a row of a key and a result, or replace the one with this key; other processes may do so, too."""
        with self._locked():
            # Read again: another process may have added rows since.
            rows = [row for row in self._read() if not having([row], key)]
            self.write([*rows, {**key, **result}])

    def write(self, rows: list[Row], head: Row | None = None) -> None:
        """Replace the file by these rows under this head, or that which `head` returns."""
        self._rows = rows if self._order is None else sorted(rows, key=self._order)
        text = "[\n" + ",\n".join(map(json.dumps, self._rows)) + "\n]"
        if self._member:
            members = {**(self._head(self._rows) if head is None else head)}
            lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in members.items()]
            text = "{\n" + ",\n".join([*lines, f"{json.dumps(self._member)}: {text}"]) + "\n}"
        write_file(self.path, f"{text}\n".encode())

    def read_head(self) -> Row:
        """Return the members of the file's object other than the rows, as they are in the file."""
        document = json.loads(self.path.read_text(encoding="utf-8"))
        return {name: value for name, value in document.items() if name != self._member}

    def _read(self) -> list[Row]:
        if not self.path.exists():
            return []
        document = json.loads(self.path.read_text(encoding="utf-8"))
        rows: list[Row] = document[self._member] if self._member else document
        return rows

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes out of the folder: the file itself is no lock, since it is replaced."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


def having(rows: list[Row], values: Mapping[str, object]) -> list[Row]:
    """Return the rows that have these values; None also stands for a value that a row does not name."""
    return [row for row in rows if all(row.get(name) == value for name, value in values.items())]

"""Read the rows of a table of losses: CSV, a list of JSON objects, JSON lines, or what trainers put around them."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from simnet.core.errors import SimnetError, shown
from simnet.core.parsing import parse_json

DELIMITERS = ",;\t"
MAX_ROWS = 1_000_000


class Row(NamedTuple):
    """One row: its place for messages, and its cells by column; an empty cell is left out."""

    where: str
    cells: Mapping[str, object]


class LogTable(NamedTuple):
    """The rows of a file, and all its columns."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def from_csv(text: str, path: Path) -> LogTable:
    """Read text separated by commas, semicolons or tabs, whichever its head has most of.

    Raises:
        SimnetError: it has no head or no rows, two columns of one name, or a row of another width.
    """
    head = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=head.count)
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, skipinitialspace=True)
    try:
        columns = tuple(cell.strip() for cell in next(reader, []))
        _check_columns(columns, path)
        rows = []
        for cells in reader:
            where = f"{path}:{reader.line_num}"
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(columns):
                raise SimnetError(
                    f"{where}: {len(cells)} cells: the head has {len(columns)} columns; restore the line or drop it"
                )
            rows.append(
                Row(where, {name: cell.strip() for name, cell in zip(columns, cells, strict=True) if cell.strip()})
            )
            _check_number(len(rows), path)
    except csv.Error as error:
        raise SimnetError(f"{path}:{reader.line_num}: no CSV: {error}; save the table as CSV") from error
    return _whole(path, columns, rows)


def from_json(data: bytes, path: Path) -> LogTable:
    """Read objects of one list, or a line each; those of a trainer's state (`log_history`) and of W&B's tables, too."""
    if are_json_lines(data):
        lines = [line for line in data.splitlines() if line.strip()]
        _check_number(len(lines), path)
        found: object = [parse_json(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]
    else:
        found = _listed(parse_json(data, str(path), unique=False))
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise SimnetError(f"{path}: no table: must hold a list of objects, one a step; save the run's history as CSV")
    _check_number(len(found), path)
    rows = [
        Row(f"{path}: row {number}", {str(name): value for name, value in item.items() if value is not None})
        for number, item in enumerate(found, start=1)
    ]
    return _whole(path, tuple(dict.fromkeys(name for row in rows for name in row.cells)), rows)


def are_json_lines(data: bytes) -> bool:
    """Tell whether data hold several lines, the first of them an object."""
    first, _, rest = data.strip().partition(b"\n")
    return first.startswith(b"{") and first.rstrip().endswith(b"}") and bool(rest)


def is_trainer_state(found: Mapping[str, object]) -> bool:
    """Tell whether an object is the state of a trainer (transformers), or a table of W&B."""
    return "log_history" in found or {"columns", "data"} <= found.keys()


def _listed(found: object) -> object:
    """Return the rows within what surrounds them, if anything known does."""
    if not isinstance(found, dict) or not is_trainer_state(found):
        return found
    columns, data = found.get("columns"), found.get("data")
    if isinstance(columns, list) and isinstance(data, list) and all(isinstance(row, list) for row in data):
        return [dict(zip(map(str, columns), row, strict=False)) for row in data]
    return found.get("log_history")


def _check_columns(columns: tuple[str, ...], path: Path) -> None:
    if not any(columns):
        raise SimnetError(f"{path}: is empty; its first line must name columns, such as step,loss")
    twice = next((name for name in columns if name and columns.count(name) > 1), None)
    if twice is not None:
        raise SimnetError(f"{path}: column {shown(twice)}: is there twice; rename one")


def _check_number(number: int, path: Path) -> None:
    if number > MAX_ROWS:
        raise SimnetError(f"{path}: more than {MAX_ROWS} rows; keep the steps at which the loss was evaluated")


def _whole(path: Path, columns: tuple[str, ...], rows: list[Row]) -> LogTable:
    if not rows:
        raise SimnetError(f"{path}: no row; add one for each step at which the loss was logged")
    return LogTable(path, columns, tuple(rows))

"""Read the loss curves of a training log: CSV or JSON lines with named columns, or event files of TensorBoard."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from simnet.analysis.loss_curve import Counted, LoggedCurve, Point, checked, of_last_life
from simnet.core import files
from simnet.core.errors import SimnetError, cut, install, shown
from simnet.core.parsing import parse_json

TABLES = (".csv", ".jsonl")
EVENTS = "tfevents"
LOSS = "loss"
OF_A_TRAINING = ("system", "seed", "ranks")
MAX_ROWS = 1_000_000


class _Row(NamedTuple):
    """One row: its place for messages, and its cells by column; an empty cell is left out."""

    where: str
    cells: Mapping[str, object]


def read_curves(path: Path, metric: str | None) -> tuple[LoggedCurve, ...]:
    """Return the curves of a table, or the one of an event file or of the folder of a run.

    Args:
        path: of the file or folder.
        metric: the column or tag to take; default "loss".

    Raises:
        SimnetError: it cannot be read, is of another kind, or its curves do not hold together.
    """
    if is_folder(path) or EVENTS in path.name:
        return (_of_events(path, metric or LOSS),)
    if path.suffix not in TABLES:
        rule = "CSV (.csv) and JSON lines (.jsonl) with 'step' or 'samples' and 'loss', and TensorBoard's events"
        raise SimnetError(f"{path}: not read; of logs are read {rule}: save it as one of these")
    rows = (_csv_rows if path.suffix == ".csv" else _json_rows)(path, files.read_bytes(path))
    return _of_rows(path, rows, metric or LOSS)


def is_there(path: Path) -> bool:
    """Tell whether there is something at a path, which may be no name of a file at all."""
    try:
        return path.exists()
    except OSError:  # too long
        return False


def is_folder(path: Path) -> bool:
    """Tell whether there is a folder at a path."""
    return is_there(path) and path.is_dir()


def _csv_rows(path: Path, data: bytes) -> list[_Row]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SimnetError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    reader = csv.reader(io.StringIO(text), skipinitialspace=True)
    rows: list[_Row] = []
    try:
        columns = [cell.strip() for cell in next(reader, [])]
        if len(set(columns)) < len(columns):
            raise SimnetError(f"{path}: two columns of one name; rename one: {_listed(columns)}")
        for cells in filter(any, reader):
            where = f"{path}:{reader.line_num}"
            if len(cells) != len(columns):
                rule = f"the head has {len(columns)} columns; restore the line or drop it"
                raise SimnetError(f"{where}: {len(cells)} cells: {rule}")
            pairs = zip(columns, map(str.strip, cells), strict=True)
            rows.append(_Row(where, {name: cell for name, cell in pairs if cell}))
    except csv.Error as error:
        raise SimnetError(f"{path}:{reader.line_num}: no CSV: {error}; save the table as CSV") from error
    return rows


def _json_rows(path: Path, data: bytes) -> list[_Row]:
    rows = []
    for number, line in enumerate(data.splitlines(), start=1):
        if line.strip():
            where = f"{path}:{number}"
            cells = parse_json(line, where)
            if not isinstance(cells, dict):
                raise SimnetError(f"{where}: {shown(cells)}: must be an object, one a step; save a line for each step")
            rows.append(_Row(where, {name: value for name, value in cells.items() if value is not None}))
    return rows


def _of_rows(path: Path, rows: Sequence[_Row], metric: str) -> tuple[LoggedCurve, ...]:
    """Return a curve for each system, seed and number of ranks that rows name."""
    if not rows:
        raise SimnetError(f"{path}: no row; name columns in its head, such as step,loss, and add a row for each step")
    if len(rows) > MAX_ROWS:
        raise SimnetError(f"{path}: more than {MAX_ROWS} rows; keep the steps at which the loss was evaluated")
    columns = list(dict.fromkeys(name for row in rows for name in row.cells))
    counted: Counted = "steps" if "step" in columns else "samples"
    position = "step" if counted == "steps" else counted
    if position not in columns:
        raise SimnetError(f"{path}: columns {_listed(columns)}: none is 'step' or 'samples'; rename the one of steps")
    if metric not in columns:
        raise SimnetError(f"{path}: no column {shown(metric)}; name one with --metric: {_listed(columns)}")
    trainings: dict[tuple[object, ...], list[_Row]] = {}
    for row in rows:
        if metric in row.cells:  # left out where something else was logged
            trainings.setdefault(tuple(row.cells.get(name) for name in OF_A_TRAINING), []).append(row)
    return tuple(_curve(path, metric, position, counted, logged) for logged in trainings.values())


def _curve(path: Path, metric: str, position: str, counted: Counted, rows: Sequence[_Row]) -> LoggedCurve:
    first = rows[0]
    points, notes = of_last_life([_point(row, position, metric) for row in rows], str(path))
    positions, values = checked(points, str(path), metric, counted)
    cells = first.cells
    return LoggedCurve(
        where=str(path),
        metric=metric,
        counted=counted,
        positions=positions,
        values=values,
        system=str(cells.get("system", "")),
        seed=_whole(cells["seed"], f"{first.where}: seed") if "seed" in cells else None,
        ranks=_whole(cells["ranks"], f"{first.where}: ranks", least=1) if "ranks" in cells else None,
        notes=tuple(notes),
    )


def _point(row: _Row, position: str, metric: str) -> Point:
    if position not in row.cells:
        raise SimnetError(f"{row.where}: {shown(position)}: missing in a row with a loss; add it, or drop the row")
    at = _whole(row.cells[position], f"{row.where}: {shown(position)}")
    return Point(row.where, at, _number(row.cells[metric], f"{row.where}: {shown(metric)}"))


def _whole(value: object, where: str, least: int = 0) -> int:
    number = _number(value, where)
    if not (math.isfinite(number) and number == int(number) and number >= least):
        raise SimnetError(f"{where}: {shown(value)}: must be a whole number from {least} on; correct it")
    return int(number)


def _number(value: object, where: str) -> float:
    """Return a number; NaN and infinity stand for a training that has diverged."""
    # `float` also takes "1_0", digits of other scripts and True, none of which is meant.
    is_text = isinstance(value, str) and value.isascii() and "_" not in value
    if is_text or (isinstance(value, int | float) and not isinstance(value, bool)):
        with suppress(ValueError, OverflowError):
            return float(value)  # type: ignore[arg-type]
    raise SimnetError(f"{where}: {shown(value)}: must be a number with a decimal point; correct it")


def _of_events(path: Path, metric: str) -> LoggedCurve:
    """Return the scalars of a tag, of a file or of all event files in a folder, which are those of one run."""
    if not is_there(path):
        raise SimnetError(f"{path}: cannot be read: no such file; name an event file of TensorBoard, or its folder")
    if is_folder(path) and not any(EVENTS in inner.name for inner in path.iterdir()):
        rule = "name the folder of one run, in which events.out.tfevents.* lie"
        raise SimnetError(f"{path}: no event file of TensorBoard in it; {rule}")
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        rule = f"it reads event files; {install('tensorboard')}; or save the curve as CSV"
        raise SimnetError(f"{path}: tensorboard is missing: {rule}") from error
    # 0: all of them are kept.
    events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    try:
        events.Reload()
    except Exception as error:  # of many kinds, by what is damaged
        raise SimnetError(f"{path}: no events of TensorBoard ({error}); copy the file again") from error
    scalars = _scalars(events)
    if metric not in scalars:
        known = _listed(scalars) if scalars else "none; log it with SummaryWriter.add_scalar"
        raise SimnetError(f"{path}: no tag {shown(metric)}; name one with --metric: {known}")
    points: list[Point] = []
    for step, value in scalars[metric]:
        # A run that was resumed logs again what it had lost, from its checkpoint on.
        while points and points[-1].position >= step:
            points.pop()
        points.append(Point(f"{path}: {shown(metric)}", step, value))
    lost = len(scalars[metric]) - len(points)
    notes = (f"{path}: values of steps that were logged again later are left out: {lost}",) if lost else ()
    positions, values = checked(points, str(path), metric)
    return LoggedCurve(where=str(path), metric=metric, counted="steps", positions=positions, values=values, notes=notes)


def _scalars(events: Any) -> dict[str, list[tuple[int, float]]]:
    """Return steps and values by tag: written as numbers, as torch does, or as tensors of one number, as Keras does."""
    from tensorboard.util.tensor_util import make_ndarray

    tags = events.Tags()
    scalars = {tag: [(event.step, float(event.value)) for event in events.Scalars(tag)] for tag in tags["scalars"]}
    for tag in tags["tensors"]:
        if events.SummaryMetadata(tag).plugin_data.plugin_name == "scalars":
            tensors = ((event.step, make_ndarray(event.tensor_proto)) for event in events.Tensors(tag))
            scalars[tag] = [(step, float(value)) for step, value in tensors if value.size == 1]
    return scalars


def _listed(names: Iterable[str]) -> str:
    """Return names as a message lists them, not all of many."""
    return cut(", ".join(map(repr, names)), 160)

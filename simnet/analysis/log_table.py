"""Find the loss curves in a table: one below the other, or a column a run as W&B exports a chart."""

import math
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from simnet.analysis.log_rows import LogTable, Row
from simnet.analysis.loss_curve import Counted, LoggedCurve, Point, checked, of_last_life
from simnet.core.errors import SimnetError, cut, shown

# In this order: W&B's own "_step" counts calls of wandb.log, so a trainer's counter goes before it.
STEPS = ("global_step", "trainer/global_step", "train/global_step", "step", "steps", "iteration", "iter", "_step")
SAMPLES = ("samples", "num_samples", "samples_seen", "consumed_samples", "train/consumed_samples")
OF_A_TRAINING = ("system", "seed", "ranks", "run")
CLOCKS = ("wall time", "wall_time", "_timestamp", "timestamp")
"""Columns of the time at which a row was logged [s]."""
LOSSES = ("loss", "value")
"""Columns that are taken without being asked for; TensorBoard's own CSV calls it "Value"."""
NO_METRICS = {*STEPS, *SAMPLES, *OF_A_TRAINING, "epoch", "wall time", "relative time (process)", "relative time (wall)"}
# A column of a chart that W&B exports: "RUN - METRIC", and its extremes in what was drawn as one point.
BETWEEN, EXTREMES = " - ", ("__MIN", "__MAX", "__step")
_NUMBER = re.compile(r"[-+]?([0-9]{1,18}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][-+]?[0-9]{1,3})?")
_NO_NUMBER = {"nan", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"}


class _LossColumn(NamedTuple):
    """A column of losses, and the run that it belongs to, where columns are runs."""

    name: str
    metric: str
    run: str = ""


def curves_in(table: LogTable, metric: str | None) -> tuple[LoggedCurve, ...]:
    """Return the curves of a table.

    Args:
        table: as it was read.
        metric: column to take; default "loss", or the only one there is.

    Raises:
        SimnetError: no column has steps or losses, several could be meant, or a curve does not hold together.
    """
    by_lower = {name.lower(): name for name in reversed(table.columns)}
    position, counted = _positions(table, by_lower)
    columns = _losses(table, metric, position)
    keys = [by_lower[name] for name in OF_A_TRAINING if name in by_lower]
    return tuple(
        _curve(table, column, position, counted, dict(zip(keys, key, strict=True)), rows)
        for column in columns
        for key, rows in _by_training(table.rows, column, keys).items()
    )


def _positions(table: LogTable, by_lower: dict[str, str]) -> tuple[str, Counted]:
    for names, counted in ((STEPS, "steps"), (SAMPLES, "samples")):
        found = next((by_lower[name] for name in names if name in by_lower), None)
        if found is not None:
            return found, counted  # type: ignore[return-value]
    raise SimnetError(
        f"{table.path}: columns {_listed(table.columns)}: none of steps; needs 'step' or 'samples', and 'loss'; rename "
        "one"
    )


def _losses(table: LogTable, metric: str | None, position: str) -> tuple[_LossColumn, ...]:
    """Return the columns of losses: one, or one for each run."""
    names = [name for name in table.columns if name and name != position and not name.endswith(EXTREMES)]
    of_runs = [_LossColumn(name, *reversed(name.rsplit(BETWEEN, 1))) for name in names if BETWEEN in name]
    if metric is not None:
        whole = [_LossColumn(name, name) for name in names if name == metric]
        found = whole or [
            _LossColumn(name, metric, name.removesuffix(BETWEEN + metric))
            for name in names
            if name.endswith(BETWEEN + metric)
        ]
        if not found:
            raise SimnetError(f"{table.path}: no column {shown(metric)}; name one with --metric: {_listed(names)}")
        return tuple(found)
    plain = [
        name for name in names if name.lower() not in NO_METRICS and not name.startswith("_") and BETWEEN not in name
    ]
    usual = next(filter(None, ([name for name in plain if name.lower() == loss] for loss in LOSSES)), [])
    if len(usual) == 1 or (len(plain) == 1 and not of_runs):
        name = (usual or plain)[0]
        return (_LossColumn(name, "" if name.lower() == "value" else name),)
    if of_runs and not plain and len({column.metric for column in of_runs}) == 1:
        return tuple(of_runs)
    known = list(dict.fromkeys([*plain, *(column.metric for column in of_runs)]))
    if not known:
        raise SimnetError(f"{table.path}: columns {_listed(table.columns)}: none of losses; needs 'loss'; rename one")
    raise SimnetError(f"{table.path}: several columns may be the loss: choose one with --metric: {_listed(known)}")


def _by_training(rows: Iterable[Row], column: _LossColumn, keys: Sequence[str]) -> dict[tuple[object, ...], list[Row]]:
    """Return the rows that have the loss, by training; a file of W&B leaves it out where something else was logged."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if column.name in row.cells:
            found.setdefault(tuple(row.cells.get(key) for key in keys), []).append(row)
    return found or {(None,) * len(keys): []}


def _curve(  # noqa: PLR0913, PLR0917
    table: LogTable, column: _LossColumn, position: str, counted: Counted, of: dict[str, object], rows: Sequence[Row]
) -> LoggedCurve:
    given = {name.lower(): value for name, value in of.items() if value is not None}
    run = column.run or str(given.get("run", ""))
    where = ": ".join(filter(None, [str(table.path), run]))
    points, notes = of_last_life([_point(row, position, column.name) for row in _as_logged(rows, position)], where)
    positions, values = checked(points, where, column.name, counted)
    first = rows[0].where
    return LoggedCurve(
        where=where,
        metric=column.metric,
        counted=counted,
        positions=positions,
        values=values,
        run=run,
        system=str(given.get("system", "")),
        seed=_whole(given["seed"], f"{first}: seed") if "seed" in given else None,
        ranks=_whole(given["ranks"], f"{first}: ranks", least=1) if "ranks" in given else None,
        notes=(
            *notes,
            *(
                [f"{table.path}: steps are those of '_step', which counts calls of wandb.log: right if each made one"]
                if position == "_step"
                else []
            ),
        ),
    )


def _as_logged(rows: Sequence[Row], position: str) -> Sequence[Row]:
    """Return rows in the order in which they were logged: of a table that was sorted by step, by its clock."""
    clock = next((name for name in (rows[0].cells if rows else ()) if name.lower() in CLOCKS), None)
    try:
        steps = [float(row.cells[position]) for row in rows]  # type: ignore[arg-type]
        times = [_seconds(row.cells[clock]) for row in rows] if clock else []
    except (KeyError, TypeError, ValueError):  # no clock in each row; a step that is none is refused where it is read
        return rows
    if not times or not all(map(math.isfinite, times)) or any(a > b for a, b in pairwise(steps)):
        return rows
    return [row for _, row in sorted(zip(times, rows, strict=True), key=itemgetter(0))]


def _seconds(time: object) -> float:
    """Return a time of a clock [s], given as a number or as ISO 8601."""
    try:
        return float(time)  # type: ignore[arg-type]
    except ValueError:
        return datetime.fromisoformat(str(time)).timestamp()


def _point(row: Row, position: str, loss: str) -> Point:
    if position not in row.cells:
        raise SimnetError(f"{row.where}: {shown(position)}: missing in a row with a loss; add it, or drop the row")
    at = _whole(row.cells[position], f"{row.where}: {shown(position)}")
    return Point(row.where, at, _number(row.cells[loss], f"{row.where}: {shown(loss)}"))


def _whole(value: object, where: str, least: int = 0) -> int:
    number = _number(value, where)
    if not (math.isfinite(number) and number == int(number) and number >= least):
        raise SimnetError(f"{where}: {shown(value)}: must be a whole number from {least} on; correct it")
    return int(number)


def _number(value: object, where: str) -> float:
    # `float` also takes "1_0" and digits of other scripts, none of which is meant; JSON's numbers are of its types.
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    text = value.strip() if isinstance(value, str) else ""
    if text.lower() in _NO_NUMBER:
        return math.nan
    if not _NUMBER.fullmatch(text):
        raise SimnetError(f"{where}: {shown(value)}: must be a number with a decimal point; correct it")
    return float(text)


def _listed(names: Iterable[str]) -> str:
    """Return names as a message lists them, not all of many."""
    return cut(", ".join(repr(name) for name in names), 160)

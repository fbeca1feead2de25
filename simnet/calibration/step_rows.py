"""Read tables of step times (CSV): a row for each training that was timed."""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simnet.core.bounded_types import MAX_RANKS
from simnet.core.errors import SimnetError, did_you_mean, shown
from simnet.core.parsing import csv_rows

MAX_ROWS = 2000
"""Every row costs some simulations; a longer table is no table of settings but a log of steps."""
MAX_COUNT = 1_000_000_000
MIN_S, MAX_S = 1e-9, 1e6
COUNTS = {
    "nodes": "nodes", "num_nodes": "nodes", "ranks_per_node": "ranks_per_node", "gpus_per_node": "ranks_per_node",
    "batch": "batch", "batch_per_rank": "batch", "batch_per_gpu": "batch",
    "grad_accumulation": "grad_accumulation", "accumulation": "grad_accumulation",
}  # fmt: skip
TEXTS = {"strategy": "strategy", "workload": "workload"}
NUMBERS = {"bucket_cap_mb": "bucket_cap_mb"}
REQUIRED = ("nodes", "ranks_per_node", "batch", "strategy")
UNITS = {
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "millisecond": 1e-3, "milliseconds": 1e-3,
    "us": 1e-6, "microsecond": 1e-6, "microseconds": 1e-6,
}  # fmt: skip
_TIMES = ("", "step", "time", "step_time", "iteration", "iteration_time")
_TIME_RULE = "name it with its unit: seconds, step_s or step_ms"


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """One row of a table.

    Attributes:
        where: file and line, for messages.
        num_nodes: nodes.
        ranks_per_node: ranks on each.
        batch: samples of a micro-batch on each rank.
        strategy: name of the strategy, with options after a colon or without.
        step_s: time of a step [s].
        grad_accumulation: micro-batches of a step.
        bucket_cap_mb: MiB of a DDP bucket; None if the table does not say.
        workload: name of the workload; empty if the table does not say.
    """

    where: str
    num_nodes: int
    ranks_per_node: int
    batch: int
    strategy: str
    step_s: float
    grad_accumulation: int = 1
    bucket_cap_mb: float | None = None
    workload: str = ""

    @property
    def world_size(self) -> int:
        """Ranks of all nodes."""
        return self.num_nodes * self.ranks_per_node

    @property
    def setting(self) -> tuple[object, ...]:
        """What was run: rows with one setting are repetitions."""
        return (self.num_nodes, *self.curve)

    @property
    def curve(self) -> tuple[object, ...]:
        """The setting without the number of nodes: rows with one curve differ in it alone."""
        return (self.workload, self.ranks_per_node, self.batch, self.grad_accumulation, self.bucket_cap_mb,
                self.strategy)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StepTable:
    """A table: its rows, the columns that are not read, and a hash of its content."""

    path: Path
    rows: tuple[TimedStep, ...]
    unread: tuple[str, ...]
    digest: str


def looks_like(text: str) -> bool:
    """Return whether a text is a table of step times: its head names nodes and a strategy, or a step's time."""
    names = _names(next(csv_rows(text), (1, []))[1])
    return len(names) > 1 and bool({"nodes", "num_nodes"} & set(names) or "strategy" in names)


def parse(text: str, path: Path) -> StepTable:
    """Read a table; separated by commas, semicolons or tabs, comments behind "#".

    Raises:
        SimnetError: a column is missing, twice there or without a unit, a row is torn or holds no valid number, or
            nodes decrease along a curve.
    """
    lines = csv_rows(text)
    names = _names(next(lines, (1, []))[1])
    columns, unread, unit_s = _columns(names, str(path))
    rows: list[TimedStep] = []
    for number, cells in lines:
        if len(rows) == MAX_ROWS:
            raise SimnetError(f"{path}: more than {MAX_ROWS} rows; give the median of each setting")
        rows.append(_row(cells, columns, len(names), f"{path}:{number}", unit_s))
    if not rows:
        raise SimnetError(f"{path}: no row below the head; add one for each training that was timed")
    _check_order(rows)
    # By it a table that is given twice is found, under whatever name.
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    return StepTable(path=path, rows=tuple(rows), unread=unread, digest=digest)


def _names(head: Sequence[str]) -> list[str]:
    """Return the normalized names: "Step [ms]" is step_ms."""
    return [re.sub(r"[^a-z0-9]+", "_", cell.lower()).strip("_") for cell in head]


def _columns(names: Sequence[str], where: str) -> tuple[dict[str, int], tuple[str, ...], float]:
    """Return the place of each column, the columns that are not read, and the unit of the time [s]."""
    known = COUNTS | TEXTS | NUMBERS | dict.fromkeys(_times(), "time")
    columns: dict[str, int] = {}
    unread: list[str] = []
    for place, name in enumerate(names):
        if name in _TIMES and name:
            raise SimnetError(f"{where}: {name}: a time without a unit: {_TIME_RULE}")
        if name not in known:
            near = did_you_mean(name, known) if name else ""
            # A near name is a typing error; any other column is of something else, and only named.
            if "mean" in near:
                raise SimnetError(f"{where}: {shown(name)}: unknown column.{near}")
            unread.append(name or f"column {place + 1}")
        elif known[name] in columns:
            raise SimnetError(f"{where}: {name}: two columns for {known[name]}; drop one")
        else:
            columns[known[name]] = place
    for name in REQUIRED:
        if name not in columns:
            raise SimnetError(f"{where}: no column {name!r}: needs {', '.join(REQUIRED)} and seconds")
    if "time" not in columns:
        raise SimnetError(f"{where}: no column of times: {_TIME_RULE}")
    return columns, tuple(unread), _times()[names[columns["time"]]]


def _times() -> dict[str, float]:
    """Return every name of a column of times, with its unit [s]."""
    return {"_".join(filter(None, (what, unit))): unit_s for what in _TIMES for unit, unit_s in UNITS.items()}


def _row(cells: Sequence[str], columns: Mapping[str, int], width: int, where: str, unit_s: float) -> TimedStep:
    if len(cells) != width:
        raise SimnetError(f"{where}: {len(cells)} cells: the head has {width} columns; restore the line or drop it")
    by_name = {name: cells[place] for name, place in columns.items()}
    counts = {name: _count(by_name[name], f"{where}: {name}") for name in set(COUNTS.values()) & by_name.keys()}
    step_s = _number(by_name["time"], f"{where}: time") * unit_s
    if not MIN_S <= step_s <= MAX_S:
        raise SimnetError(f"{where}: a step of {step_s:g} s: must be from {MIN_S:g} to {MAX_S:g} s; check the unit")
    if counts["nodes"] * counts["ranks_per_node"] > MAX_RANKS:
        raise SimnetError(f"{where}: {counts['nodes']} x {counts['ranks_per_node']} ranks: at most {MAX_RANKS}")
    if not by_name["strategy"]:
        raise SimnetError(f"{where}: strategy: is empty; name one, such as all_reduce")
    cap = by_name.get("bucket_cap_mb", "")
    return TimedStep(
        where=where,
        num_nodes=counts["nodes"],
        ranks_per_node=counts["ranks_per_node"],
        batch=counts["batch"],
        strategy=by_name["strategy"],
        step_s=step_s,
        grad_accumulation=counts.get("grad_accumulation", 1),
        bucket_cap_mb=_bucket_cap(cap, f"{where}: bucket_cap_mb") if cap else None,
        workload=by_name.get("workload", ""),
    )


def _count(text: str, where: str) -> int:
    number = _number(text, where)
    if not (1 <= number <= MAX_COUNT and number == int(number)):
        raise SimnetError(f"{where}: {shown(text)}: must be a whole number from 1 on")
    return int(number)


def _bucket_cap(text: str, where: str) -> float:
    number = _number(text, where)
    if not 1e-6 <= number <= MAX_COUNT:
        raise SimnetError(f"{where}: {shown(text)}: must be a number of MiB above 0")
    return number


def _number(text: str, where: str) -> float:
    # `float` also takes "nan", "1_0" and digits of other scripts, none of which a table of times holds on purpose.
    if not re.fullmatch(r"[-+]?[0-9]{1,18}(\.[0-9]{0,18})?([eE][-+]?[0-9]{1,3})?|[-+]?\.[0-9]{1,18}", text):
        raise SimnetError(f"{where}: {shown(text)}: must be a number with a decimal point and without a unit")
    number = float(text)
    if not math.isfinite(number):
        raise SimnetError(f"{where}: {shown(text)}: must be finite")
    return number


def _check_order(rows: Sequence[TimedStep]) -> None:
    """Refuse nodes that decrease along a curve, as where two columns were exchanged."""
    largest: dict[tuple[object, ...], int] = {}
    for row in rows:
        before = largest.get(row.curve, 0)
        if row.num_nodes < before:
            raise SimnetError(f"{row.where}: {row.num_nodes} nodes after {before}: must not decrease; sort the rows")
        largest[row.curve] = row.num_nodes

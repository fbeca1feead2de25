"""Logs of trainings as measured convergence: CSV or JSON lines with named columns, or event files of TensorBoard."""

import csv
import io
import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from simnet.analysis.convergence import MAX_METRIC, VERSION, Convergence, TrainedSystem, TrainingCurve
from simnet.core import files
from simnet.core.errors import SimnetError, cut, install, shown
from simnet.core.parsing import parse_json
from simnet.engine.scenario import Scenario
from simnet.strategies import STRATEGIES, Strategy
from simnet.strategies.base import strategy_from_text

# "SYSTEM=LOG" or "SYSTEM:KEY=VALUE,...=LOG"; no other "=" is meant, and a path may hold some.
_WITH_SYSTEM = re.compile(r"(\w+(?::\w+=[^,=/]+(?:,\w+=[^,=/]+)*)?)=(.+)", re.DOTALL)
DENSE = "all_reduce"
TABLES = (".csv", ".jsonl")
EVENTS = "tfevents"
LOSS = "loss"
OF_A_TRAINING = ("system", "seed", "ranks")
MAX_ROWS = 1_000_000
# More than steps may be: of samples.
MAX_POSITION = 10**15


class LoggedCurve(Struct, frozen=True, kw_only=True):
    """One training's loss, over steps or samples.

    Attributes:
        where: the file, for messages.
        metric: name of the column or tag.
        counted: what the positions are: steps, or samples of all ranks together.
        positions: at which values were logged, ascending, from 1 on.
        values: None from where the training had diverged.
        system: the strategy with its options; empty where neither the command line nor the file names it.
        seed: as the file says; None if it does not.
        ranks: as the file says; None if it does not.
        notes: what a reader should know of how it was read.
    """

    where: str
    metric: str
    counted: Literal["steps", "samples"]
    positions: tuple[int, ...]
    values: tuple[float | None, ...]
    system: str = ""
    seed: int | None = None
    ranks: int | None = None
    notes: tuple[str, ...] = ()

    def by_step(self, batch: int) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
        """Return steps and values; of several numbers of samples within one step the last counts."""
        if self.counted == "steps":
            return self.positions, self.values
        values = {math.ceil(at / batch): value for at, value in zip(self.positions, self.values, strict=True)}
        return tuple(values), tuple(values.values())


def names_a_log(text: str) -> bool:
    """Tell whether an argument names a log; else it is a shipped name, or the path of a convergence file."""
    system, path = _reference(text)
    if system or _is_folder(path) or EVENTS in path.name or path.suffix in TABLES:
        return True
    return path.suffix not in {".json", ".toml"} and text not in files.names("convergence") and _is_there(path)


def load_logs(
    texts: Sequence[str], scenario: Scenario, *, metric: str | None = None, ranks: int | None = None
) -> tuple[Convergence, tuple[str, ...]]:
    """Return the trainings of logs, and what a reader should know of how they were read.

    A log names its system in front of "=" or in a column, as a strategy and its options; a bare name stands for the
    scenario's own strategy or baseline of that kind. One log of one training without a system is of DDP.

    Args:
        texts: arguments of the command line.
        scenario: whose strategies bare names stand for; its ranks and batch are those of logs that do not say.
        metric: column or tag to take.
        ranks: on which the trainings ran, where a log does not say; default those of the scenario.

    Raises:
        SimnetError: a log cannot be read, does not hold together, or does not say of which system it is.
    """
    curves = [
        replace(curve, system=_tagged(system or curve.system))
        for system, path in map(_reference, texts)
        for curve in read_curves(path, metric)
    ]
    _check_names(curves, texts)
    ranks = ranks or scenario.cluster.world_size
    batch = scenario.workload.batch_per_rank * scenario.grad_accumulation * ranks
    systems = {curve.system or DENSE: _system(curve, scenario) for curve in curves}
    if all(system.strategy.compresses for system in systems.values()):
        raise SimnetError(
            f"{texts[0]}: {', '.join(systems)}: none without compression, with which others are compared; add the log "
            f"of such a training as {DENSE}=LOG"
        )
    convergence = Convergence(
        format="simnet-convergence",
        version=VERSION,
        task=cut(", ".join(dict.fromkeys(curve.where for curve in curves)), 80),
        metric=metric or LOSS,
        better="lower",
        batch=batch,
        source="logs of trainings",
        systems=systems,
        curves=_numbered(curves, ranks, batch),
    )
    read_as = dict.fromkeys(note for curve in curves for note in curve.notes)
    return convergence, (*read_as, *_assumed(curves, systems, ranks, batch))


def _reference(text: str) -> tuple[str, Path]:
    """Return the system that an argument names, or "", and its path."""
    match = _WITH_SYSTEM.fullmatch(text)
    # A file may have a name with "=" in it.
    if match and not _is_there(Path(text)):
        return match[1], Path(match[2])
    return "", Path(text)


def _tagged(system: str) -> str:
    """Return a strategy and its options by the tag of the strategy, for which a log may have another word."""
    kind, *options = system.split(":", 1)
    return ":".join([STRATEGIES.tag(kind), *options])


def _check_names(curves: Sequence[LoggedCurve], texts: Sequence[str]) -> None:
    """Check that no log comes twice, and that each has a system; one training alone is DDP, with all its seeds."""
    if twice := next((text for text in texts if texts.count(text) > 1), None):
        raise SimnetError(f"{twice}: named twice: a training counts once; drop one")
    nameless = [curve for curve in curves if not curve.system]
    if nameless and (len(texts) > 1 or len(nameless) < len(curves)):
        where = nameless[0].where
        raise SimnetError(
            f"{where}: one of {len(curves)} trainings, without a system: name it in front, such as {DENSE}={where}, or "
            "in a column 'system'"
        )


def _system(curve: LoggedCurve, scenario: Scenario) -> TrainedSystem:
    name = curve.system or DENSE
    strategy: Strategy = strategy_from_text(
        name, f"{curve.where}: system {shown(name)}", (scenario.strategy, scenario.baseline)
    )
    title = ", ".join(filter(None, [strategy.title, name.partition(":")[2].replace(",", ", ")]))
    return TrainedSystem(title=title, strategy=strategy)


def _numbered(curves: Sequence[LoggedCurve], ranks: int, batch: int) -> tuple[TrainingCurve, ...]:
    """Return the curves over steps; trainings without a seed are numbered."""
    trainings: dict[tuple[str, int, int], TrainingCurve] = {}
    numbers: Counter[tuple[str, int]] = Counter()
    for curve in curves:
        system, on = curve.system or DENSE, curve.ranks or ranks
        seed = numbers[system, on] if curve.seed is None else curve.seed
        numbers[system, on] += 1
        if (system, on, seed) in trainings:
            raise SimnetError(
                f"{curve.where}: {system}: seed {seed} on {on} ranks: two trainings; give each a seed of its own"
            )
        steps, values = curve.by_step(batch)
        trainings[system, on, seed] = TrainingCurve(system=system, ranks=on, seed=seed, steps=steps, values=values)
    return tuple(trainings.values())


def _assumed(
    curves: Sequence[LoggedCurve], systems: Mapping[str, TrainedSystem], ranks: int, batch: int
) -> Iterable[str]:
    """Yield what was assumed where logs do not say."""
    if any(curve.ranks is None for curve in curves):
        yield f"logs do not say on how many ranks they were trained: taken as {ranks} (--ranks)"
    for name, system in systems.items():
        if getattr(system.strategy, "dense_steps", None) == 0:
            yield f"{name}: no dense steps at its start are counted; name those of the log: {name}:dense_steps=1000"
    if any(curve.counted == "samples" for curve in curves):
        yield f"steps are samples / {batch}, the batch of all ranks"
    if not any(curve.system for curve in curves):
        yield f"the log names no system: taken as DDP ({DENSE})"


class _Point(NamedTuple):
    """One logged value, after a number of steps or samples; `where` names its place in messages."""

    where: str
    at: int
    value: float


class _Row(NamedTuple):
    """One row: its place for messages, and its cells by column; an empty cell is left out."""

    where: str
    cells: Mapping[str, object]


def read_curves(path: Path, metric: str | None) -> tuple[LoggedCurve, ...]:
    """Return the curves of a table, or the one of an event file or of the folder of a run, of a column or tag.

    Raises:
        SimnetError: it cannot be read, is of another kind, or its curves do not hold together.
    """
    metric = metric or LOSS
    if _is_folder(path) or EVENTS in path.name:
        return (_curve(path, metric, "step", _event_rows(path, metric), is_one_run=True),)
    if path.suffix not in TABLES:
        rule = "CSV (.csv) and JSON lines (.jsonl) with 'step' or 'samples' and 'loss', and TensorBoard's events"
        raise SimnetError(f"{path}: not read; of logs are read {rule}: save it as one of these")
    return _of_rows(path, (_csv_rows if path.suffix == ".csv" else _json_rows)(path, files.read_bytes(path)), metric)


def _is_there(path: Path) -> bool:
    """Tell whether there is something at a path, which may be no name of a file at all."""
    try:
        return path.exists()
    except OSError:  # too long
        return False


def _is_folder(path: Path) -> bool:
    return _is_there(path) and path.is_dir()


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
    position = next((name for name in ("step", "samples") if name in columns), None)
    if position is None:
        raise SimnetError(f"{path}: columns {_listed(columns)}: none is 'step' or 'samples'; rename the one of steps")
    if metric not in columns:
        raise SimnetError(f"{path}: no column {shown(metric)}; name one with --metric: {_listed(columns)}")
    trainings: dict[tuple[object, ...], list[_Row]] = {}
    for row in rows:
        if metric in row.cells:  # left out where something else was logged
            trainings.setdefault(tuple(row.cells.get(name) for name in OF_A_TRAINING), []).append(row)
    return tuple(_curve(path, metric, position, logged) for logged in trainings.values())


def _curve(path: Path, metric: str, position: str, rows: Sequence[_Row], *, is_one_run: bool = False) -> LoggedCurve:
    """Return the curve of one training; what was logged at step 0 is left out: nothing was trained until then.

    A value that is no number (NaN, infinity) is a training that has diverged if none of those after it is one.
    """
    logged = [_point(row, position, metric) for row in rows]
    kept = _last_life(logged, position, is_one_run=is_one_run)
    lost = len(logged) - len(kept)
    points = [point for point in kept if point.at > 0]
    numbers = [index for index, point in enumerate(points) if math.isfinite(point.value)]
    if not numbers:
        raise SimnetError(f"{path}: {shown(metric)}: no number after step 0; give a training with losses")
    for where, _, value in points[: numbers[-1] + 1]:
        if not math.isfinite(value):
            raise SimnetError(
                f"{where}: {shown(metric)} is {value:g} and later a number: must be a number until the training "
                "diverges; drop the row, or all after it"
            )
        if abs(value) > MAX_METRIC:
            raise SimnetError(f"{where}: {value:g}: must be at most {MAX_METRIC:g}; drop it")
    first = rows[0]
    return LoggedCurve(
        where=str(path),
        metric=metric,
        counted="steps" if position == "step" else "samples",
        positions=tuple(point.at for point in points),
        values=tuple(point.value if math.isfinite(point.value) else None for point in points),
        system=str(first.cells.get("system", "")),
        seed=_whole_cell(first, "seed"),
        ranks=_whole_cell(first, "ranks", least=1),
        notes=(f"{path}: values of steps that were logged again later are left out: {lost}",) if lost else (),
    )


def _point(row: _Row, position: str, metric: str) -> _Point:
    if position not in row.cells:
        raise SimnetError(f"{row.where}: {shown(position)}: missing in a row with a loss; add it, or drop the row")
    at = _whole(row.cells[position], f"{row.where}: {shown(position)}")
    if at > MAX_POSITION:
        raise SimnetError(f"{row.where}: {position} {at}: must be at most {MAX_POSITION}; correct it")
    return _Point(row.where, at, _number(row.cells[metric], f"{row.where}: {shown(metric)}"))


def _last_life(points: Sequence[_Point], position: str, *, is_one_run: bool) -> list[_Point]:
    """Return what counts of a training that was resumed from a checkpoint: steps logged again, as logged last.

    Raises:
        SimnetError: steps go back, and do not come again: rows that may be of two trainings, or shuffled.
    """
    kept: list[_Point] = []
    for place, point in enumerate(points):
        if kept and point.at <= kept[-1].at:
            before = bisect_left(kept, point.at, key=attrgetter("at"))
            end = next((end for end in range(place + 1, len(points)) if points[end].at <= points[end - 1].at), None)
            life = {other.at for other in points[place:end]}
            again = [dropped.at in life for dropped in kept[before:] if dropped.at <= max(life)]
            # A run whose last life ended early logs fewer steps again; another training begins at the first one.
            if not is_one_run and not (before and 2 * sum(again) >= len(again)):
                raise SimnetError(
                    f"{point.where}: {position} {point.at} after {kept[-1].at}: must increase; write each training "
                    "with a seed or a system of its own; sort the rows of one that was shuffled"
                )
            del kept[before:]
        kept.append(point)
    return kept


def _whole_cell(row: _Row, column: str, least: int = 0) -> int | None:
    return _whole(row.cells[column], f"{row.where}: {column}", least) if column in row.cells else None


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


def _event_rows(path: Path, metric: str) -> list[_Row]:
    """Return the scalars of a tag, of a file or of all event files in a folder, which are those of one run."""
    if not _is_there(path):
        raise SimnetError(f"{path}: cannot be read: no such file; name an event file of TensorBoard, or its folder")
    if _is_folder(path) and not any(EVENTS in inner.name for inner in path.iterdir()):
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
    return [_Row(f"{path}: {shown(metric)}", {"step": step, metric: value}) for step, value in scalars[metric]]


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

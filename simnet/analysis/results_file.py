"""Results of a sweep as files: results.json is read, results.parquet is written and read, a group of rows at a time."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Struct

from simnet.core import files, schema
from simnet.core.errors import NotInstalledError, SimnetError, install, shown
from simnet.core.parsing import check_plain, parse_json
from simnet.engine.result import (
    FORMAT,
    LARGEST,
    SMALLEST,
    PointResult,
    RefusedPoint,
    RunResult,
    SweepResult,
    SweptAxis,
    to_json,
)

NAME, PARQUET = "results.json", "results.parquet"
# A sweep may have 100,000 points of some ten kilobytes.
MAX_BYTES = 2**32
# Rows of a Parquet file that are in memory at a time: with the JSON of their results 20 MB.
ROWS_PER_GROUP = 2_000
# Most points of a Parquet file that are read with their whole results, as figures need them.
MOST_READ = 100_000
# The column of a Parquet file that has a point as results.json has it.
WHOLE = "point_json"
Kind = Literal["text", "whole", "number", "truth"]
"""What a column holds."""
_HEAD = b"simnet"
_REPAIR = "name the {} of a sweep, or its folder"


class _DocumentHead(Struct):
    """The keys that tell results from other files; a measurement file has `what`, and a format of its own."""

    format: Any = UNSET
    what: Any = UNSET


class ParquetHead(Struct, frozen=True, kw_only=True):
    """What a Parquet file says of the sweep as a whole, under the key "simnet" of its metadata, as results.json does.

    Attributes:
        num_refused: how many points are refused, which have no row; `refused` has the first of them.
    """

    format: int = FORMAT
    version: str
    name: str
    question: str
    axes: tuple[SweptAxis, ...]
    num_refused: int
    refused: tuple[RefusedPoint, ...]


class FlatPoint(NamedTuple):
    """A point with its row: a plain value for each column."""

    row: Mapping[str, object]
    result: PointResult


def read(results: Path) -> SweepResult:
    """Read the results of a sweep from a file, or from the folder in which it has left them."""
    repair = _REPAIR.format(NAME)
    try:
        path = file_in(results)
        data = b"" if is_parquet(path) else files.read_bytes(path, MAX_BYTES)
    except OSError as error:
        raise SimnetError(f"{results}: cannot be read: {error.strerror}: {repair}") from error
    except SimnetError as error:
        raise SimnetError(f"{error}: {repair}") from error
    if is_parquet(path):
        found = _read_parquet(path)
        _check_rates(found, str(path))
        return found
    if not data.strip():
        raise SimnetError(f"{path}: is empty; run the sweep again")
    return decode(data, str(path))


def file_in(results: Path) -> Path:
    """Return the file of results: the given one, or that of a folder that was written last."""
    if not results.is_dir():
        return results
    plain, flat = results / NAME, results / PARQUET
    is_newer = flat.exists() and not (plain.exists() and plain.stat().st_mtime_ns >= flat.stat().st_mtime_ns)
    return flat if is_newer else plain


def is_parquet(path: Path) -> bool:
    """Return whether a file is one of Parquet, by its ending."""
    return path.suffix == ".parquet"


def read_run(path: Path) -> RunResult | None:
    """Read the JSON of one run, as `simnet simulate --format json` writes it; None if a file holds something else."""
    if not path.is_file() or is_parquet(path):
        return None
    data = files.read_bytes(path, MAX_BYTES)
    # A sweep has scenarios, too, but each in a point.
    if b'"points"' in data or b'"world_size"' not in data:
        return None
    return schema.decode(RunResult, data, str(path))


def decode(data: bytes, where: str = NAME) -> SweepResult:
    """Return the results that JSON holds."""
    _check_format(data, where)
    try:
        found = schema.decode(SweepResult, data, where)
        check_plain([point.set for point in found.points], where)
        _check_rates(found, where)
    except NotInstalledError as error:
        raise SimnetError(error.in_data) from error
    except SimnetError as error:
        raise SimnetError(f"{error}: the file is damaged; run the sweep again") from error
    if not found.points:
        raise SimnetError(f"{where}: points: []: must not be empty; run the sweep again")
    return found


def _check_rates(sweep: SweepResult, where: str) -> None:
    """Check that an axis of bandwidths can be drawn."""
    for number, point in enumerate(sweep.points):
        if not SMALLEST <= point.nic_gbit_per_s <= LARGEST:
            given = f"points.{number}.scenario.cluster: {point.nic_gbit_per_s} Gbit/s a node"
            raise SimnetError(f"{where}: {given}: must be at least {SMALLEST}, at most {LARGEST}")


def _check_format(data: bytes, where: str) -> None:
    """Check that a document is the results of a sweep, of the newest format."""
    try:
        head = msgspec.json.decode(data, type=_DocumentHead)
    except msgspec.ValidationError:
        head = _DocumentHead()
    except (ValueError, RecursionError):
        plain = parse_json(data, where)  # whose message says where the JSON is wrong
        head = msgspec.convert(plain, _DocumentHead) if isinstance(plain, dict) else _DocumentHead()
    if head.what is not UNSET:
        raise SimnetError(f"{where}: holds {shown(head.what)}, no results of a sweep: {_REPAIR.format(NAME)}")
    if head.format is UNSET:
        raise SimnetError(f"{where}: no 'format' key: not results of simnet sweep; name its results.json")
    if head.format != FORMAT:
        other = f"written by another version of simnet; this one reads {FORMAT}; run the sweep again with it"
        raise SimnetError(f"{where}: format {shown(head.format)}: {other}")


def write_parquet(
    file: IO[bytes], kinds: Mapping[str, Kind], points: Iterable[FlatPoint], head: Callable[[int], ParquetHead]
) -> None:
    """Write points to a Parquet file as they come, a row each with a column of each kind; some are in memory at a time.

    The head is asked for at the end, with the number of points.
    """
    arrow, parquet = _pyarrow()
    types = {"text": arrow.string(), "whole": arrow.int64(), "number": arrow.float64(), "truth": arrow.bool_()}
    columns = list(kinds)
    layout = arrow.schema([*((name, types[kind]) for name, kind in kinds.items()), (WHOLE, types["text"])])
    # Whole points hardly ever repeat: a dictionary of them, or the least and the largest of them, helps nobody.
    writer = parquet.ParquetWriter(file, layout, compression="zstd", use_dictionary=columns, write_statistics=columns)
    num_points = 0
    try:
        # Cells at once: whole points and their rows take three times as much memory.
        waiting = ((*(point.row[name] for name in columns), to_json(point.result)) for point in points)
        while group := list(itertools.islice(waiting, ROWS_PER_GROUP)):
            arrays = [arrow.array(*pair) for pair in zip(zip(*group, strict=True), layout.types, strict=True)]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=layout))
            num_points += len(group)
        writer.add_key_value_metadata({_HEAD: msgspec.json.encode(head(num_points))})
        writer.close()
    finally:
        # What is not finished is thrown away: else it would be ended once more when the file is closed.
        writer.is_open = False


def check_parquet() -> None:
    """Check that Parquet can be written, before anything is computed."""
    _pyarrow()


def _read_parquet(path: Path) -> SweepResult:
    head, file = _opened(path)
    num_points = file.metadata.num_rows
    if num_points > MOST_READ:
        rule = f"at most {MOST_READ} are read whole; choose some by simnet.report.frame.read_frame"
        raise SimnetError(f"{path}: {num_points} points: {rule}")
    with _damage_explained(path):
        batches = file.iter_batches(ROWS_PER_GROUP, columns=[WHOLE])
        texts = itertools.chain.from_iterable(batch.column(0).to_pylist() for batch in batches)
        points = tuple(schema.decode(PointResult, text.encode(), str(path)) for text in texts)
    about = {name: getattr(head, name) for name in ("version", "name", "question", "axes", "refused")}
    return SweepResult(**about, points=points)


def read_columns(path: Path) -> Any:
    """Return the flat rows of a Parquet file as a table of pyarrow, without the whole results."""
    _, file = _opened(path)
    names = [name for name in file.schema_arrow.names if name != WHOLE]
    with _damage_explained(path):
        return file.read(columns=names)


def _opened(path: Path) -> tuple[ParquetHead, Any]:
    """Return what a Parquet file says of its sweep, and the file."""
    _, parquet = _pyarrow()
    if not path.is_file():
        raise SimnetError(f"{path}: no such file: {_REPAIR.format(PARQUET)}")
    files.file_stamp(path)  # it counts as read
    with _damage_explained(path):
        file = parquet.ParquetFile(path)
        head = (file.metadata.metadata or {}).get(_HEAD)
    if head is None or WHOLE not in file.schema_arrow.names:
        raise SimnetError(f"{path}: not results of simnet sweep: {_REPAIR.format(PARQUET)}")
    found = schema.decode(ParquetHead, head, str(path))
    if found.format != FORMAT:
        raise SimnetError(f"{path}: format {found.format}: this version reads format {FORMAT}; run the sweep again")
    return found, file


@contextmanager
def _damage_explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # pyarrow's own errors are such
        first = (str(error).splitlines() or ["no Parquet"])[0]
        raise SimnetError(f"{path}: the file is damaged ({first}); run the sweep again") from error


def _pyarrow() -> tuple[Any, Any]:
    """Return pyarrow, and its module for this format, which take a third of a second to load."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise SimnetError(f"{PARQUET}: pyarrow is missing: a Parquet file needs it; {install('dask')}") from error
    return pyarrow, parquet

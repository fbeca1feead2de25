"""The results.parquet of a sweep: a flat row a point, and the whole point as JSON; written and read group by group."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Self

import msgspec
from msgspec import Struct

from simnet.core import files, schema
from simnet.core.errors import SimnetError
from simnet.engine.result import (
    FORMAT,
    PointResult,
    RefusedPoint,
    SweepResult,
    SweptAxis,
    to_json,
)

NAME = "results.parquet"
ROWS_PER_GROUP = 2_000
"""Rows that are in memory at a time: with the JSON of their results 20 MB."""
MOST_READ = 100_000
"""Most points that are read with their whole results, as figures need them."""
WHOLE = "point_json"
"""The column that has a point as results.json has it."""
Kind = Literal["text", "whole", "number", "truth"]
"""What a column holds."""
_HEAD = b"simnet"
_REPAIR = f"name the {NAME} of a sweep, or its folder"


class ParquetHead(Struct, frozen=True, kw_only=True):
    """What the file says of the sweep as a whole, under the key "simnet" of its metadata.

    Attributes:
        format: of the results, as in results.json.
        version: of simnet.
        name: of the experiment.
        question: what the experiment asks.
        axes: what was swept as a grid.
        num_refused: how many points are refused, which have no row.
        refused: the first of them.
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


class ParquetTable:
    """A file that is being written.

    Example: `with files.writing(path) as file, ParquetTable(file, kinds) as table: table.add(points)`, then
    `table.finish(head)`.
    """

    def __init__(self, file: IO[bytes], kinds: Mapping[str, Kind]) -> None:
        """Begin a file.

        Args:
            file: to write to.
            kinds: what each column holds, in their order.

        Raises:
            SimnetError: pyarrow is missing.
        """
        self._arrow, parquet = _pyarrow()
        types = {
            "text": self._arrow.string(),
            "whole": self._arrow.int64(),
            "number": self._arrow.float64(),
            "truth": self._arrow.bool_(),
        }
        self._kinds = kinds
        fields = {name: types[kind] for name, kind in kinds.items()}
        self._schema = self._arrow.schema([*fields.items(), (WHOLE, types["text"])])
        # Whole points hardly ever repeat: a dictionary of them, or the least and the largest of them, helps nobody.
        columns = list(kinds)
        self._writer = parquet.ParquetWriter(
            file, self._schema, compression="zstd", use_dictionary=columns, write_statistics=columns
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # What is not finished is thrown away: else it would be ended once more when the file is closed.
        self._writer.is_open = False

    def add(self, points: Iterable[FlatPoint]) -> int:
        """Write points, of which a group is in memory at a time, and return their number."""
        count = 0
        # Cells at once: whole points and their rows take three times as much memory.
        waiting = ((*(point.row[name] for name in self._kinds), to_json(point.result)) for point in points)
        while group := list(itertools.islice(waiting, ROWS_PER_GROUP)):
            columns = zip(*group, strict=True)
            arrays = [self._arrow.array(*pair) for pair in zip(columns, self._schema.types, strict=True)]
            self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))
            count += len(group)
        return count

    def finish(self, head: ParquetHead) -> None:
        """Write what the file says of the whole sweep, and its end."""
        self._writer.add_key_value_metadata({_HEAD: msgspec.json.encode(head)})
        self._writer.close()


def check_installed() -> None:
    """Check that Parquet can be written, before anything is computed.

    Raises:
        SimnetError: pyarrow is missing.
    """
    _pyarrow()


def read(path: Path) -> SweepResult:
    """Read the whole results of a sweep.

    Raises:
        SimnetError: there is no such file, it is none of a sweep, or it holds more than figures can be drawn of.
    """
    head, file = _opened(path)
    num_points = file.metadata.num_rows
    if num_points > MOST_READ:
        rule = f"at most {MOST_READ} are read whole; choose some by simnet.report.frame.read_frame"
        raise SimnetError(f"{path}: {num_points} points: {rule}")
    return SweepResult(
        version=head.version,
        name=head.name,
        question=head.question,
        axes=head.axes,
        points=tuple(_points(file, path)),
        refused=head.refused,
    )


def read_columns(path: Path) -> Any:
    """Return the flat rows as a table of pyarrow, without the whole results.

    Raises:
        SimnetError: as `read`, but of any number of points.
    """
    _, file = _opened(path)
    names = [name for name in file.schema_arrow.names if name != WHOLE]
    with _damage_explained(path):
        return file.read(columns=names)


def _points(file: Any, path: Path) -> Iterator[PointResult]:
    with _damage_explained(path):
        for batch in file.iter_batches(ROWS_PER_GROUP, columns=[WHOLE]):
            for point in batch.column(0).to_pylist():
                yield schema.decode(PointResult, point.encode(), str(path))


def _opened(path: Path) -> tuple[ParquetHead, Any]:
    """Return what a file says of its sweep, and the file."""
    _, parquet = _pyarrow()
    if not path.is_file():
        raise SimnetError(f"{path}: no such file: {_REPAIR}")
    files.file_stamp(path)  # it counts as read
    with _damage_explained(path):
        file = parquet.ParquetFile(path)
        head = (file.metadata.metadata or {}).get(_HEAD)
    if head is None or WHOLE not in file.schema_arrow.names:
        raise SimnetError(f"{path}: not results of simnet sweep: {_REPAIR}")
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
    """Return pyarrow, and its module for this format, which take a third of a second to load.

    Raises:
        SimnetError: it is missing.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        rule = "a Parquet file needs it; pip install 'binsgdm[dask]'"
        raise SimnetError(f"{NAME}: pyarrow is missing: {rule}") from error
    return pyarrow, parquet

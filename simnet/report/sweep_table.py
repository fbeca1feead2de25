"""The points of a sweep as a Parquet file: their rows, written as they come."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from simnet.analysis.results_file import FlatPoint, ParquetHead, write_parquet
from simnet.analysis.sweeps import swept_axes
from simnet.core import files
from simnet.core.errors import SimnetError
from simnet.core.version import VERSION
from simnet.engine.result import PointResult, RefusedPoint
from simnet.engine.scenario import Experiment
from simnet.report.rows import kinds, plain, row

MOST_REFUSED = 1_000
"""Refused points that the file names; the journal has all of them."""


class WrittenTable(Struct, frozen=True, kw_only=True):
    """What a file holds.

    Attributes:
        path: of the file.
        num_points: how many points were simulated, a row each.
        num_refused: how many are refused.
        refused: the first of them.
    """

    path: Path
    num_points: int
    num_refused: int
    refused: tuple[RefusedPoint, ...]


def write_table(
    path: Path, experiment: Experiment, points: Iterable[PointResult | RefusedPoint], inside: Path | None = None
) -> WrittenTable:
    """Write the points of an experiment to a Parquet file; some of them are in memory at a time.

    Args:
        path: of the file.
        experiment: what was swept.
        points: in their order; refused ones have no row.
        inside: a folder that no link may lead out of.

    Raises:
        SimnetError: all points are refused, the file cannot be written, or pyarrow is missing.
    """
    columns = kinds({key: experiment.values_of(key) for key in experiment.swept_keys})
    refused: list[RefusedPoint] = []
    num_points = num_refused = 0

    def flat() -> Iterator[FlatPoint]:
        nonlocal num_refused
        for point in points:
            if isinstance(point, PointResult):
                yield FlatPoint(plain(row(point, point.set), columns), point)
                continue
            num_refused += 1
            if len(refused) < MOST_REFUSED:
                refused.append(point)

    def head(num_written: int) -> ParquetHead:
        nonlocal num_points
        num_points = num_written
        if not num_points:
            raise SimnetError(f"{refused[0].reason} (all {num_refused} points are refused)")
        return ParquetHead(
            version=VERSION,
            name=experiment.name,
            question=experiment.question,
            axes=swept_axes(experiment),
            num_refused=num_refused,
            refused=tuple(refused),
        )

    with files.writing(path, inside) as file:
        write_parquet(file, columns, flat(), head)
    return WrittenTable(path=path, num_points=num_points, num_refused=num_refused, refused=tuple(refused))

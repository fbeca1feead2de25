"""The points of a sweep as a Parquet file: their rows, written as they come."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from simnet.analysis.parquet_file import FlatPoint, ParquetHead, ParquetTable
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


class _RefusedPoints:
    """Refused points, taken out of others on the way: all are counted, the first kept."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[RefusedPoint] = []

    def left_out(self, points: Iterable[PointResult | RefusedPoint]) -> Iterator[PointResult]:
        """Yield the points that are not refused."""
        for point in points:
            if isinstance(point, PointResult):
                yield point
                continue
            self.count += 1
            if len(self.first) < MOST_REFUSED:
                self.first.append(point)


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
    refused = _RefusedPoints()
    with files.writing(path, inside) as file, ParquetTable(file, columns) as table:
        flat = (FlatPoint(plain(row(one, one.set), columns), one) for one in refused.left_out(points))
        num_points = table.add(flat)
        if not num_points:
            first = refused.first[0]
            raise SimnetError(f"{first.reason} (all {refused.count} points are refused)")
        table.finish(_head(experiment, refused))
    return WrittenTable(path=path, num_points=num_points, num_refused=refused.count, refused=tuple(refused.first))


def _head(experiment: Experiment, refused: _RefusedPoints) -> ParquetHead:
    return ParquetHead(
        version=VERSION,
        name=experiment.name,
        question=experiment.question,
        axes=swept_axes(experiment),
        num_refused=refused.count,
        refused=tuple(refused.first),
    )

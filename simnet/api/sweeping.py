"""Sweeps whose results go to a Parquet file as they come, of up to ten million points."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from simnet.analysis import results_file
from simnet.analysis.journal import Journal
from simnet.analysis.results_file import FlatPoint, ParquetHead, write_parquet
from simnet.analysis.sweeps import MAX_STREAMED, check_size, each_values, streamed, swept_axes
from simnet.analysis.workers import Pool, pool_of
from simnet.api.questions import (
    Asked,
    Axes,
    Draws,
    Jobs,
    Progress,
    Settings,
    Watched,
    advancing,
    experiment_to_sweep,
    unwatched,
)
from simnet.core import files
from simnet.core.arguments import File, checked
from simnet.core.errors import SimnetError
from simnet.core.version import VERSION
from simnet.engine.result import PointResult, RefusedPoint
from simnet.engine.scenario import Experiment
from simnet.report.rows import kinds, plain, row

Point = TypeVar("Point")
SIMULATING = "simulating"
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


class StreamedSweep(Struct, frozen=True, kw_only=True):
    """A sweep that was simulated and written.

    Attributes:
        table: the file, and what it holds.
        num_before: how many points the journal had before.
    """

    table: WrittenTable
    num_before: int


def stream(
    experiment: Experiment, directory: Path, jobs: int = 1, pool: Pool | None = None, bar: Watched = unwatched
) -> StreamedSweep:
    """Simulate every point of an experiment into the journal of a directory, and write results.parquet from there.

    Args:
        experiment: what to sweep.
        directory: of both files; made if it is not there.
        jobs: processes at most, without a pool.
        pool: simulates all points.
        bar: makes a bar of a number of points and a label; it yields the function that is called with the number of
            further points that are done.

    Raises:
        SimnetError: there is nothing to sweep, too much of it, or all of it is refused; or a file cannot be written:
            the journal keeps what is finished.
    """
    with Journal(directory) as journal:
        sweep = streamed(experiment, journal)
        with bar(sweep.num_points, SIMULATING) as advance:
            sweep.simulate(jobs, advance, pool)
        with bar(sweep.num_points, "writing") as advance:
            results = _counted(sweep.each_result(each_values(experiment)), advance)
            table = write_table(directory / results_file.PARQUET, experiment, results, directory)
    return StreamedSweep(table=table, num_before=sweep.num_before)


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


def _counted(points: Iterable[Point], advance: Callable[[int], object]) -> Iterator[Point]:
    for point in points:
        yield point
        advance(1)


@checked
def sweep_to_parquet(  # noqa: PLR0913 - the options of the command
    scenario: Asked,
    axes: Axes | None = None,
    *,
    output: File,
    points: Sequence[Settings] | None = None,
    settings: Settings | None = None,
    draws: Draws | None = None,
    jobs: Jobs = 1,
    executor: Any | None = None,
    progress: Progress = True,
) -> Path:
    """Simulate every point as `sweep` does, and write a row each to a Parquet file; memory hardly grows with them.

    Args:
        scenario: as in `sweep`.
        axes: as in `sweep`.
        output: folder of results.parquet and of the journal, from which the same sweep goes on after it was stopped.
        points: as in `sweep`.
        settings: as in `sweep`.
        draws: as in `sweep`.
        jobs: as in `sweep`.
        executor: as in `sweep`.
        progress: as in `sweep`.

    Returns:
        The file, which `simnet.report.frame.read_frame` and any reader of Parquet takes.

    Raises:
        SimnetError: as in `sweep`, or pyarrow is missing, or a file cannot be written.
    """
    experiment = experiment_to_sweep(scenario, axes, points, settings, draws)
    pool = None if executor is None else pool_of(executor)
    check_size(experiment, MAX_STREAMED)
    results_file.check_parquet()

    def bar(total: int, label: str) -> AbstractContextManager[Callable[[int], object]]:
        # A function of the caller counts what is simulated, and that once.
        shown = progress if label == SIMULATING or not callable(progress) else False
        return advancing(shown, total, label)

    return stream(experiment, Path(output), jobs, pool, bar).table.path

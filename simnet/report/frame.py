"""Rows as a pandas data frame, for notebooks."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from simnet.analysis import results_file
from simnet.core.arguments import File, checked
from simnet.core.errors import SimnetError
from simnet.report.rows import is_interval, row

if TYPE_CHECKING:
    import pandas


def frame_of(rows: Iterable[Mapping[str, object]]) -> "pandas.DataFrame":
    """Return rows as a data frame."""
    try:
        import pandas  # only here, so that a simulate run does not pay for it
    except ImportError as error:
        raise SimnetError("to_frame: pandas is missing: a data frame needs it; pip install pandas") from error

    return pandas.DataFrame(list(rows))


@checked
def read_frame(results: File) -> "pandas.DataFrame":
    """Return one row a point: the swept keys, then every metric with its unit in the column's name.

    Args:
        results: `results.json` or `results.parquet` of a sweep, or the directory that holds it; of both the one that
            was written last. In rows of the latter, swept values that are tables or lists are JSON text.

    Raises:
        SimnetError: the file is missing, damaged, empty or of a format that is not read.
    """
    path = results_file.file_in(Path(results))
    if results_file.is_parquet(path):
        return _frame_of_parquet(path)
    return frame_of(row(point, point.set) for point in results_file.read(path).points)


def _frame_of_parquet(path: Path) -> "pandas.DataFrame":
    """Return the rows of a file without the columns of intervals that no point has."""
    columns = results_file.read_columns(path)
    empty = [
        name
        for name in columns.column_names
        if is_interval(name) and not columns[name].length() > columns[name].null_count
    ]
    frame: pandas.DataFrame = columns.drop_columns(empty).to_pandas()
    return frame

"""Rows as a pandas data frame, for notebooks, and as a Parquet file of one."""

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING

from simnet.analysis import results_file
from simnet.core import files
from simnet.core.arguments import File, checked
from simnet.core.errors import SimnetError, install
from simnet.report.rows import parquet_column, row

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
        return _read_parquet(path)
    return frame_of(row(point, point.set) for point in results_file.read(path).points)


def write_parquet(rows: Iterable[Mapping[str, object]], file: IO[bytes]) -> None:
    """Write rows as Parquet: fields of their kind; any other column that holds no numbers is text, or JSON."""
    frame = frame_of(rows)
    for name in frame.columns[frame.dtypes.map(str) == "object"]:
        frame[name] = parquet_column(name, frame[name])
    frame.to_parquet(file, engine="pyarrow", compression="zstd", index=False)


def check_parquet(where: str) -> None:
    """Check that pandas can write and read Parquet, before anything is computed."""
    if find_spec("pyarrow") is None:
        raise SimnetError(f"{where}: pyarrow is missing: a Parquet file needs it; {install('dask')}")


def _read_parquet(path: Path) -> "pandas.DataFrame":
    import pandas

    check_parquet(str(path))
    files.file_stamp(path)  # it counts as read
    try:
        return pandas.read_parquet(path, engine="pyarrow")
    except FileNotFoundError as error:
        raise SimnetError(f"{path}: no such file: name the results.parquet of a sweep, or its folder") from error
    except (OSError, ValueError) as error:  # pyarrow's own errors are such
        first = (str(error).splitlines() or ["no Parquet"])[0]
        raise SimnetError(f"{path}: the file is damaged ({first}); run the sweep again") from error

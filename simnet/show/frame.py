"""Rows as a pandas data frame, for notebooks."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from simnet import results_file
from simnet.errors import SimnetError
from simnet.show.rows import row

if TYPE_CHECKING:
    import pandas


def frame_of(rows: Iterable[Mapping[str, object]]) -> "pandas.DataFrame":
    """Return rows as a data frame.

    Raises:
        SimnetError: pandas is missing.
    """
    try:
        import pandas  # only here, so that a simulate run does not pay for it
    except ImportError as error:
        raise SimnetError("to_frame: pandas is missing: a data frame needs it; pip install pandas") from error

    return pandas.DataFrame(list(rows))


def read_frame(results: Path | str) -> "pandas.DataFrame":
    """Return one row a point: the swept keys, then every metric with its unit in the column's name.

    Args:
        results: `results.json` of a sweep, or the directory that holds it.

    Raises:
        SimnetError: the file is missing, damaged, empty or of a format that is not read.
    """
    return frame_of(row(point, point.set) for point in results_file.read(Path(results)).points)

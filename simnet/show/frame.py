"""Load the results of a sweep as a pandas data frame, for notebooks."""

from pathlib import Path
from typing import TYPE_CHECKING

from simnet import results_file
from simnet.show.rows import row

if TYPE_CHECKING:
    import pandas


def read_frame(results: Path | str) -> "pandas.DataFrame":
    """Return one row a point: the swept keys, then every metric with its unit in the column's name.

    Args:
        results: `results.json` of a sweep, or the directory that holds it.

    Raises:
        SimnetError: the file is missing, damaged, empty or of a format that is not read.
    """
    import pandas  # only here, so that a simulate run does not pay for it

    return pandas.DataFrame([row(point, point.set) for point in results_file.read(Path(results)).points])

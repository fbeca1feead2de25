"""Load the results of a sweep as a pandas data frame, for notebooks."""

from pathlib import Path
from typing import TYPE_CHECKING

from simnet.show.document import read_raw, to_document
from simnet.show.metrics import to_row

if TYPE_CHECKING:
    import pandas


def read_frame(results: Path | str) -> "pandas.DataFrame":
    """Return one row a point: the swept keys, then every metric with its unit in the column's name.

    Args:
        results: `results.json` of a sweep, or the directory that holds it.

    Raises:
        SimnetError: the file is missing, damaged, empty or of another format.
    """
    import pandas  # only here, so that a simulate run does not pay for it

    raw = read_raw(Path(results))
    to_document(raw, where=str(results))
    return pandas.DataFrame([to_row(point["set"], point) for point in raw["points"]])

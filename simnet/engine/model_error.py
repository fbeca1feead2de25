"""The model's own error: how far predictions are off even where all that they rest on is known."""

from functools import cache
from typing import Annotated

from msgspec import Meta, Struct

from simnet.cluster.hardware import Calibration
from simnet.core import files, schema

FILE = ("published", "model_error.toml")
Spread = Annotated[float, Meta(ge=1.0, le=1000.0)]


class ModelError(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Factors by which predictions are too large or too small at most, at 90 %.

    Attributes:
        time: of a time.
        speedup: of a quotient of two times: errors that both times have cancel.
        source: the predictions that were compared with measurements.
    """

    time: Spread
    speedup: Spread
    source: str


class ModelErrors(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The error by where calibrations come from.

    Attributes:
        published: of calibrations fitted to some rows of a publication, which predict its others.
        measured: of calibrations measured on the cluster itself.
    """

    published: ModelError
    measured: ModelError


@cache
def known() -> ModelErrors:
    """Read the errors that were found.

    Raises:
        SimnetError: the shipped file is missing or damaged.
    """
    path = files.data_path(*FILE)
    return schema.build(ModelErrors, files.read_file(path), files.label(path))


def of(calibration: Calibration) -> ModelError:
    """Return the error of predictions with a calibration.

    The model of an estimate is the same as that of a published calibration; what the estimate does not know is in its
    intervals.
    """
    return known().measured if calibration.kind == "measured" else known().published

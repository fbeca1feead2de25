"""Read files and folders that hold the times of every rank: measurements of one training, or traces of one run."""

import re
from collections.abc import Sequence
from pathlib import Path

from simnet.calibration import measurement_file, rank_samples, run_traces
from simnet.calibration.measurement_file import MeasurementFile
from simnet.calibration.rank_samples import RankSamples
from simnet.calibration.sources import json_object
from simnet.core.errors import SimnetError
from simnet.core.files import gunzipped, read_bytes
from simnet.traces import kineto
from simnet.traces.kineto import Trace

_NAME = re.compile(r"\.json(\.gz)?$")
_GIVE = "files of simnet measure training, or the traces of torch.profiler of all ranks"


def read(paths: Sequence[Path], ranks_per_node: int | None = None) -> RankSamples:
    """Read the times of every rank.

    Args:
        paths: measurement files, or traces; a folder stands for the .json and .json.gz files in it.
        ranks_per_node: of traces that do not say it; None to find it there.

    Raises:
        SimnetError: a file cannot be read or is of another kind, the files do not belong together, hold one rank only,
            or too few steps.
    """
    measured: list[tuple[Path, MeasurementFile]] = []
    traced: list[Trace] = []
    for path in _files(paths):
        _read_one(path, measured, traced)
    if measured and traced:
        raise SimnetError(f"{traced[0].where}: a trace, but {measured[0][0]} is a measurement: give one kind of file")
    if measured and ranks_per_node is not None:
        raise SimnetError(f"--ranks-per-node: has no effect on {measured[0][0]}, which says it; drop it")
    found = rank_samples.of_training(measured) if measured else run_traces.samples_of(traced, ranks_per_node)
    rank_samples.check_enough(found)
    return found


def _files(paths: Sequence[Path]) -> list[Path]:
    """Return the files, those of folders in the order of their names."""
    found = [file for path in paths for file in (_of_folder(path) if path.is_dir() else [path])]
    whole = [path.resolve() for path in found]
    if twice := [path for path, full in zip(found, whole, strict=True) if whole.count(full) > 1]:
        raise SimnetError(f"{twice[0]}: is given twice; give each file once")
    return found


def _of_folder(folder: Path) -> list[Path]:
    try:
        found = sorted(path for path in folder.iterdir() if _NAME.search(path.name) and path.is_file())
    except OSError as error:
        raise SimnetError(f"{folder}: cannot be read: {error.strerror}") from error
    if not found:
        raise SimnetError(f"{folder}: no .json or .json.gz file in it; give {_GIVE}")
    return found


def _read_one(path: Path, measured: list[tuple[Path, MeasurementFile]], traced: list[Trace]) -> None:
    raw = gunzipped(read_bytes(path), path)
    if not raw.strip():
        raise SimnetError(f"{path}: is empty; copy it again from its source")
    if not raw.lstrip().startswith((b"{", b"\xef\xbb\xbf")):
        raise SimnetError(f"{path}: unknown kind of file; give {_GIVE}")
    data = json_object(raw, path)
    if kineto.looks_like(data):
        traced.append(kineto.parse(data, path))
    elif data.get("what") == measurement_file.WHAT:
        measured.append((path, measurement_file.parse(raw, path)))
    else:
        raise SimnetError(f"{path}: unknown kind of file; give {_GIVE}")

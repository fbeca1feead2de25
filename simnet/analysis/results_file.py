"""Results as files: results.json of a sweep and the JSON of a run are read; results.parquet is told apart."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from simnet.core import files, schema
from simnet.core.errors import NotInstalledError, SimnetError, shown
from simnet.core.parsing import check_plain, parse_json
from simnet.engine.result import (
    FORMAT,
    LARGEST,
    SMALLEST,
    RunResult,
    SweepResult,
)

NAME, PARQUET = "results.json", "results.parquet"
# A sweep may have 100,000 points of some ten kilobytes.
MAX_BYTES = 2**32
_REPAIR = "name the results.json of a sweep, or its folder"


class _DocumentHead(Struct):
    """The keys that tell results from other files; a measurement file has `what`, and a format of its own."""

    format: Any = UNSET
    what: Any = UNSET


def read(results: Path) -> SweepResult:
    """Read the results of a sweep from a file, or from the folder in which it has left them."""
    path = file_in(results)
    if is_parquet(path):
        rule = "holds rows alone, for simnet.read_frame"
        raise SimnetError(f"{path}: {rule}; for pages and figures sweep again without --format parquet")
    try:
        data = files.read_bytes(path, MAX_BYTES)
    except OSError as error:
        raise SimnetError(f"{results}: cannot be read: {error.strerror}: {_REPAIR}") from error
    except SimnetError as error:
        raise SimnetError(f"{error}: {_REPAIR}") from error
    if not data.strip():
        raise SimnetError(f"{path}: is empty; run the sweep again")
    return decode(data, str(path))


def file_in(results: Path) -> Path:
    """Return the file of results: the given one, or that of a folder that was written last."""
    if not results.is_dir():
        return results
    plain, flat = results / NAME, results / PARQUET
    is_newer = flat.exists() and not (plain.exists() and plain.stat().st_mtime_ns >= flat.stat().st_mtime_ns)
    return flat if is_newer else plain


def is_parquet(path: Path) -> bool:
    """Return whether a file is one of Parquet, by its ending."""
    return path.suffix == ".parquet"


def read_run(path: Path) -> RunResult | None:
    """Read the JSON of one run, as `simnet simulate --format json` writes it; None if a file holds something else."""
    if not path.is_file() or is_parquet(path):
        return None
    data = files.read_bytes(path, MAX_BYTES)
    # A sweep has scenarios, too, but each in a point.
    if b'"points"' in data or b'"world_size"' not in data:
        return None
    return schema.decode(RunResult, data, str(path))


def decode(data: bytes, where: str = NAME) -> SweepResult:
    """Return the results that JSON holds."""
    _check_format(data, where)
    try:
        sweep = schema.decode(SweepResult, data, where)
        check_plain([point.set for point in sweep.points], where)
        _check_rates(sweep, where)
    except NotInstalledError as error:
        raise SimnetError(error.in_data) from error
    except SimnetError as error:
        raise SimnetError(f"{error}: the file is damaged; run the sweep again") from error
    if not sweep.points:
        raise SimnetError(f"{where}: points: []: must not be empty; run the sweep again")
    return sweep


def _check_rates(sweep: SweepResult, where: str) -> None:
    """Check that an axis of bandwidths can be drawn."""
    for number, point in enumerate(sweep.points):
        if not SMALLEST <= point.nic_gbit_per_s <= LARGEST:
            place = f"points.{number}.scenario.cluster: {point.nic_gbit_per_s} Gbit/s a node"
            raise SimnetError(f"{where}: {place}: must be at least {SMALLEST}, at most {LARGEST}")


def _check_format(data: bytes, where: str) -> None:
    """Check that a document is the results of a sweep, of the newest format."""
    try:
        head = msgspec.json.decode(data, type=_DocumentHead)
    except msgspec.ValidationError:
        head = _DocumentHead()
    except (ValueError, RecursionError):
        plain = parse_json(data, where)  # whose message says where the JSON is wrong
        head = msgspec.convert(plain, _DocumentHead) if isinstance(plain, dict) else _DocumentHead()
    if head.what is not UNSET:
        raise SimnetError(f"{where}: holds {shown(head.what)}, no results of a sweep: {_REPAIR}")
    if head.format is UNSET:
        raise SimnetError(f"{where}: no 'format' key: not results of simnet sweep; name its results.json")
    if head.format != FORMAT:
        other = f"written by another version of simnet; this one reads {FORMAT}; run the sweep again with it"
        raise SimnetError(f"{where}: format {shown(head.format)}: {other}")

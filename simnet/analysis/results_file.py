"""Read the results of a sweep: results.json, of this format and of the two before it, or results.parquet."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from simnet.analysis import parquet_file
from simnet.core import files, schema
from simnet.core.errors import NotInstalledError, SimnetError, shown
from simnet.core.parsing import check_plain, parse_json
from simnet.engine.result import FORMAT, LARGEST, SMALLEST, RunResult, StrategyResult, SweepResult
from simnet.strategies.former_keys import former_keys, with_present_keys

NAME = "results.json"
# A sweep may have 100,000 points of some ten kilobytes.
MAX_BYTES = 2**32
_REPAIR = f"name the {NAME} of a sweep, or its folder"
_FORMER_FORMATS = (1, 2, 3)
# Keys of the whole run in format 1, at one level with the strategy's own keys.
_RUN_KEYS = (
    "set", "scenario", "world_size", "gradient_bytes", "speedup", "end_to_end_speedup", "notes", "intervals", "version",
)  # fmt: skip


class _DocumentHead(Struct):
    """The keys that tell results from other files; a measurement file has `what`, and a format of its own."""

    format: Any = UNSET
    what: Any = UNSET


def read(results: Path) -> SweepResult:
    """Read the results of a sweep.

    Args:
        results: the file, or the folder in which a sweep has left its results.

    Raises:
        SimnetError: there is no such file, or it is damaged, empty, or of a format that is not read.
    """
    try:
        path = file_in(results)
        data = b"" if is_parquet(path) else files.read_bytes(path, MAX_BYTES)
    except OSError as error:
        raise SimnetError(f"{results}: cannot be read: {error.strerror}: {_REPAIR}") from error
    except SimnetError as error:
        raise SimnetError(f"{error}: {_REPAIR}") from error
    if is_parquet(path):
        found = parquet_file.read(path)
        _check_rates(found, str(path))
        return found
    if not data.strip():
        raise SimnetError(f"{path}: is empty; run the sweep again")
    return decode(data, str(path))


def file_in(results: Path) -> Path:
    """Return the file of results: the given one, or that of a folder that was written last.

    Raises:
        OSError: the place cannot be looked at.
    """
    if not results.is_dir():
        return results
    plain, flat = results / NAME, results / parquet_file.NAME
    is_newer = flat.exists() and not (plain.exists() and plain.stat().st_mtime_ns >= flat.stat().st_mtime_ns)
    return flat if is_newer else plain


def is_parquet(path: Path) -> bool:
    """Return whether a file is one of Parquet, by its ending."""
    return path.suffix == ".parquet"


def read_run(path: Path) -> RunResult | None:
    """Read the JSON of one run, as `simnet simulate --format json` writes it; None if a file holds something else.

    Raises:
        SimnetError: the run is damaged.
    """
    if not path.is_file() or is_parquet(path):
        return None
    data = files.read_bytes(path, MAX_BYTES)
    # A sweep has scenarios, too, but each in a point.
    if b'"points"' in data or b'"world_size"' not in data:
        return None
    return schema.decode(RunResult, data, str(path))


def decode(data: bytes, where: str = NAME) -> SweepResult:
    """Return the results that JSON holds.

    Raises:
        SimnetError: it is damaged, or of a format that is not read.
    """
    given = _format(data, where)
    try:
        if given == FORMAT:
            found = schema.decode(SweepResult, data, where)
        else:
            plain = parse_json(data, where)
            found = schema.build(SweepResult, _from_format_3(_from_format_1(plain) if given == 1 else plain), where)
        check_plain([point.set for point in found.points], where)
        _check_rates(found, where)
    except NotInstalledError as error:
        raise SimnetError(error.in_data) from error
    except SimnetError as error:
        old = ", or of an older version whose scenarios this one does not read" if given != FORMAT else ""
        raise SimnetError(f"{error}: the file is damaged{old}; run the sweep again") from error
    if not found.points:
        raise SimnetError(f"{where}: points: []: must not be empty; run the sweep again")
    return found


def _check_rates(sweep: SweepResult, where: str) -> None:
    """Check that an axis of bandwidths can be drawn.

    Raises:
        SimnetError: one is too small or too large.
    """
    for number, point in enumerate(sweep.points):
        if not SMALLEST <= point.nic_gbit_per_s <= LARGEST:
            rule = f"must be at least {SMALLEST}, at most {LARGEST}"
            raise SimnetError(
                f"{where}: points.{number}.scenario.cluster: {point.nic_gbit_per_s} Gbit/s a node: {rule}"
            )


def _format(data: bytes, where: str) -> object:
    """Return the format of the document, 1 to `FORMAT`.

    Raises:
        SimnetError: it is not JSON, not results, or of a format that this version does not read.
    """
    head = _head(data, where)
    given = head.format
    if head.what is not UNSET:
        raise SimnetError(f"{where}: holds {shown(head.what)}, no results of a sweep: {_REPAIR}")
    if given is UNSET:
        raise SimnetError(f"{where}: no 'format' key: not results of simnet sweep; name its results.json")
    if given not in (*_FORMER_FORMATS, FORMAT):
        read = f"this version reads formats {_FORMER_FORMATS[0]} to {FORMAT}"
        raise SimnetError(f"{where}: format {shown(given)}: {read}; run the sweep again with it")
    return given


def _head(data: bytes, where: str) -> _DocumentHead:
    try:
        return msgspec.json.decode(data, type=_DocumentHead)
    except msgspec.ValidationError:
        return _DocumentHead()
    except (ValueError, RecursionError):
        plain = parse_json(data, where)  # whose message says where the JSON is wrong
        return msgspec.convert(plain, _DocumentHead) if isinstance(plain, dict) else _DocumentHead()


def _from_format_1(old: Any) -> Any:
    """Return a document of format 1 in format 2: a point held the run's fields and the strategy's at one level."""
    points = old.get("points")
    if not isinstance(points, list) or not all(isinstance(point, dict) for point in points):
        return old  # `schema.build` says what is wrong with it
    return {**old, "format": 2, "points": [_point_from_format_1(point) for point in points]}


def _from_format_3(old: Any) -> Any:
    """Return a document of format 2 or 3 in this one: keys of strategies had other names (2), or were not there yet."""
    points = old.get("points")
    if not isinstance(points, list) or not all(isinstance(point, dict) for point in points):
        return old
    swept = dict(pair for point in points for pair in _former_swept_keys(point.get("scenario")))
    new = with_present_keys(old)
    for table in (point.get("set") for point in new["points"]):
        _rename(table, swept)
    for axis in new.get("axes") or ():
        if isinstance(axis, dict) and axis.get("key") in swept:
            axis["key"] = swept[axis["key"]]
    return new | {"format": FORMAT}


def _former_swept_keys(scenario: object) -> Iterator[tuple[str, str]]:
    """Yield the dotted former keys of a scenario's strategies, each with its present one."""
    for part in ("strategy", "baseline"):
        table = scenario.get(part) if isinstance(scenario, dict) else None
        names = former_keys(table) if isinstance(table, dict) else {}
        yield from ((f"{part}.{key}", f"{part}.{name}") for key, name in names.items())


def _rename(table: object, names: Mapping[str, str]) -> None:
    """Rename keys of a table in place; their order stays."""
    if isinstance(table, dict):
        for key in list(table):
            table[names.get(key, key)] = table.pop(key)


def _point_from_format_1(point: dict[str, Any]) -> dict[str, Any]:
    baseline = point.get("baseline")
    return {
        **{key: point[key] for key in _RUN_KEYS if key in point},
        "result": _strategy_from_format_1(point),
        "baseline": _strategy_from_format_1(baseline) if isinstance(baseline, dict) else baseline,
    }


def _strategy_from_format_1(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of one strategy: it had the time of its one iteration."""
    kept = {key: metrics[key] for key in StrategyResult.__struct_fields__ if key in metrics}
    return kept | ({"iterations_s": [metrics["iteration_s"]]} if "iteration_s" in metrics else {})

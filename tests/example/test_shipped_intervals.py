"""Every number that is shipped as a calibration says how far it may be off."""

from collections.abc import Iterator

import msgspec
import pytest

from simnet.cluster.hardware import Calibration
from simnet.core import files
from simnet.core.schema import build
from simnet.workload.workload import Workload

CALIBRATIONS = [name for name in files.names("calibrations") if name != "ideal"]
NO_VALUE = {
    "kind",
    "name",
    "title",
    "source",
    "gpu",
    "network",
    "all_reduce",
    "flat_ring_latency",
    "measured_on",
    "intervals",
    "fitted_to",
    "nodes",
}
"""Keys that hold no value to be off."""


@pytest.mark.parametrize("name", CALIBRATIONS)
def test_every_value_of_a_shipped_calibration_has_an_interval(name: str) -> None:
    file = files.read("calibrations", name)
    build(Calibration, {"name": name, **file}, name)
    assert sorted(_without_interval(file)) == []


def _without_interval(given: dict[str, object]) -> Iterator[str]:
    """Yield the dotted keys of values that are not neutral and have no interval."""
    known = set(given.get("intervals", {}))
    by_nodes = {key for point in given.get("by_nodes", []) for key in point.get("intervals", {})}
    neutral = msgspec.to_builtins(Calibration(), enc_hook=float)
    for key, value in _values(given):
        default = neutral
        for part in key.split("."):
            default = default.get(part) if isinstance(default, dict) else None
        is_in_points = key.removeprefix("inter_node.") in by_nodes
        if key not in known and not is_in_points and value != default and not str(value).startswith("0 "):
            yield key
    for where, table in (*_points(given), *given.get("libraries", {}).items()):
        for key, value in table.items():
            if key not in NO_VALUE | {"by_nodes", "carries"} and key not in table.get("intervals", {}):
                yield f"{where}: {key} = {value}"


def _values(given: dict[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in given.items():
        if key in NO_VALUE | {"by_nodes", "libraries"}:
            continue
        if isinstance(value, dict):
            yield from _values(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _points(given: dict[str, object]) -> Iterator[tuple[str, dict[str, object]]]:
    for point in given.get("by_nodes", []):
        yield f"by_nodes {point['nodes']}", point
    for name, library in given.get("libraries", {}).items():
        for point in library.get("by_nodes", []):
            yield f"{name} by_nodes {point['nodes']}", point


@pytest.mark.parametrize("name", files.names("workloads"))
def test_every_compute_row_of_a_shipped_workload_has_an_interval(name: str) -> None:
    built = build(Workload, {"name": name, **files.read("workloads", name)}, name)
    for row in built.compute:
        assert row.interval is not None, row
        assert row.interval[0] < 1 < row.interval[1]

"""A scenario's data before they are checked: parts by name filled in, keys set, and where each key was given."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from simnet.cluster.gpu_models import GpuModel
from simnet.cluster.hardware import Calibration, Cluster, NamedPart
from simnet.core import files, nested_tables, schema
from simnet.core.errors import SimnetError, shown
from simnet.core.nested_tables import KeyPath
from simnet.engine.axes import Override
from simnet.strategies.base import with_paths_at
from simnet.workload.workload import Workload

T = TypeVar("T", bound=msgspec.Struct)
PARTS = {"cluster": "clusters", "workload": "workloads", "calibration": "calibrations"}
PART_TYPES: dict[str, type[NamedPart]] = {
    "clusters": Cluster,
    "workloads": Workload,
    "calibrations": Calibration,
    "gpus": GpuModel,
}


class RawScenario(Struct, frozen=True, kw_only=True):
    """A scenario's data with its parts filled in but not checked, and where each key was given."""

    data: Mapping[str, object]
    origins: Mapping[KeyPath, str]

    def with_overrides(self, overrides: Iterable[Override]) -> "RawScenario":
        """Return the scenario with keys set, whole parts first, so that the order of the overrides does not matter.

        Raises:
            SimnetError: a part is unknown, or a key leads into something that is not a table.
        """
        raw = self
        # "cluster=x" and then "cluster.num_nodes=8": the whole part would undo the key inside it.
        for override in sorted(overrides, key=lambda override: len(override.path)):
            raw = raw._with_override(override)
        return raw

    def _with_override(self, override: Override) -> "RawScenario":
        path = override.path
        where = f"{override.origin}: {override.key}"
        origins = {known: origin for known, origin in self.origins.items() if known[: len(path)] != path}
        value = override.value
        if path[0] in PARTS and path[1:] == ("use",):
            raise SimnetError(f"{where}: {value!r}: a {path[0]} is chosen by the key {path[0]!r} itself; drop '.use'")
        if len(path) == 1:
            value, inner = _fill(override.key, value, override.origin, override.directory)
            origins |= inner
        data = nested_tables.replaced(self.data, path, value, where)
        assert isinstance(data, dict)
        # A table that the key made on its way is the override's too.
        made = nested_tables.first_missing(self.data, path)
        return RawScenario(data=data, origins=origins | {at: origins.get(at, override.origin) for at in (made, path)})

    def converted(self, struct: type[T]) -> T:
        """Check everything against a struct, and return that.

        Raises:
            SimnetError: something does not fit; the message says where it was given.
        """
        return schema.build(struct, self.data, self.origins)


def check_part(kind: str, name: str) -> NamedPart:
    """Check a cluster, workload or calibration on its own, and return it.

    Args:
        kind: key of `PART_TYPES`.
        name: name of a shipped part, or path of a file.

    Raises:
        SimnetError: it cannot be found or read, or something in it does not fit.
    """
    part, label = _named_part(kind, name, "", Path())
    return checked_part(kind, part, label)


def checked_part(kind: str, table: Mapping[str, object], where: str) -> NamedPart:
    """Check the data of a part, and return it.

    Args:
        kind: key of `PART_TYPES`.
        table: the data, filled in.
        where: how messages call the part.
    """
    return RawScenario(data=table, origins={(): where}).converted(PART_TYPES[kind])


def with_parts_filled(data: Mapping[str, object], where: str, directory: Path) -> RawScenario:
    """Fill in the parts of data in file form."""
    filled: dict[str, object] = {}
    origins: dict[KeyPath, str] = {(): where}
    for key, given in data.items():
        filled[key], inner = _fill(key, given, where, directory)
        origins |= inner
    return RawScenario(data=filled, origins=origins)


def _fill(key: str, given: object, where: str, directory: Path) -> tuple[object, dict[KeyPath, str]]:
    """Return the data of a top-level key with names replaced by what they stand for, and where its keys were given."""
    if key in schema.BY_NAME:
        return ({"kind": given} if isinstance(given, str) else with_paths_at(given, directory)), {}
    if key not in PARTS:
        return given, {}
    changes = dict(given) if isinstance(given, Mapping) else {}
    use = changes.pop("use", None) if isinstance(given, Mapping) else given
    if use is None:
        return _with_gradients_at(changes, directory), {}
    if not isinstance(use, str):
        raise SimnetError(f"{where}: {key}: {shown(use)}: write the name of a {key} in quotes, or a table")
    part, label = _named_part(PARTS[key], use, f"{where}: {key}", directory)
    origins = {(key,): label} | {(key, *path): where for path in nested_tables.leaves(changes)}
    return nested_tables.merged(part, changes) if changes else part, origins


def _named_part(kind: str, name: str, where: str, directory: Path) -> tuple[dict[str, object], str]:
    try:
        path = files.locate(kind, name, directory)
    except SimnetError as error:
        raise SimnetError(f"{where}: {error}" if where else str(error)) from error
    return _read_part(path, files.file_stamp(path)), files.label(path)


@lru_cache(maxsize=64)
def _read_part(path: Path, _state: tuple[int, ...]) -> dict[str, object]:
    """Read a part; a sweep asks for the same file at every point, and whoever gets the table does not change it."""
    return {"name": path.stem, **_with_gradients_at(files.read_file(path), path.parent)}


def _with_gradients_at(part: dict[str, object], directory: Path) -> dict[str, object]:
    """Return a part whose relative path of a gradients file, if it has one, starts from the working directory."""
    gradients = part.get("gradients")
    if isinstance(gradients, str) and files.is_path(gradients):
        return part | {"gradients": str(directory / gradients)}
    return part

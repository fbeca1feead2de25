"""Read measurement files (docs/measurement-file.md); needs no torch."""

import math
from datetime import datetime
from pathlib import Path
from typing import Literal, NoReturn

import msgspec

from simnet.errors import SimnetError, nearest
from simnet.files import read_bytes
from simnet.options import Options
from simnet.schema import decode

WHAT = "simnet measurements"
FORMAT = 1
"""The newest format that `read` knows."""

GROUPS = ("world", "intra_node", "inter_node")
_LABELS: dict[str, dict[str, type]] = {
    "kernel": {"num_elements": int, "dtype": str, "kernels": str},
    "model": {"model": str, "batch": int, "dtype": str},
    "collective": {"group": str, "group_size": int, "message_bytes": int, "dtype": str, "lanes": int},
    "training": {
        "model": str, "batch": int, "strategy": str, "topology": str, "intra": str, "overlap": int,
        "bucket_cap_mb": float,
    },
    "interference": {"model": str, "batch": int, "collective": str},
}  # fmt: skip
_MORE_LABELS: dict[tuple[str, str], dict[str, type]] = {
    ("kernel", "merge"): {"num_vectors": int},
    ("kernel", "mean_"): {"num_vectors": int},
    ("model", "gradient_ready"): {"tensor": str, "num_elements": int, "order": int},
    ("model", "optimizer"): {"optimizer": str},
}
_NAMES: dict[str, tuple[str, ...]] = {
    "model": ("forward", "backward", "optimizer", "gradient_ready"),
    "collective": ("all_reduce", "all_gather", "all_to_all", "broadcast", "send"),
    "training": ("step", "forward", "backward", "optimizer"),
    "interference": ("backward_alone", "backward_beside"),
}
_LIMITS = {"s": (1e-12, 1e9), "B": (0.0, 1e18)}
"""Of values: no clock ticks faster than a picosecond, and nobody waits for 30 years."""
_MAY_BE_ZERO = frozenset({"order", "overlap"})
_REPAIR = "measure again, or take the file from where it was written"

Label = str | int | float | dict[str, str | int | float | bool | None]


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the machines, that of rank 0.

    Attributes:
        machine: instruction set, such as "x86_64".
        processor: name, empty if it is not known.
        cores: those that a process may use.
        memory_bytes: of the machine.
        gpu: name, empty without one.
        num_gpus: of the machine.
    """

    machine: str
    processor: str
    cores: int
    memory_bytes: int
    gpu: str = ""
    num_gpus: int = 0


class Software(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Versions; empty where there is none."""

    system: str
    python: str
    torch: str
    numba: str = ""
    nccl: str = ""
    binsgdm: str = ""


class Setup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How processes and network were laid out.

    Attributes:
        backend: "gloo" or "nccl"; empty for a process alone.
        ranks_on_machine: ranks that share the cores of one machine.
        nic_bytes_per_s: of a node, in one direction; None where it is not known.
        network: what else is known of it, for people.
    """

    backend: str
    device: str
    num_nodes: int
    ranks_per_node: int
    threads_per_rank: int
    ranks_on_machine: int
    nic_bytes_per_s: float | None = None
    network: str = ""

    @property
    def world_size(self) -> int:
        """Ranks of all nodes."""
        return self.num_nodes * self.ranks_per_node


class Series(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Repetitions of one measured thing.

    Attributes:
        setup: place in `Measurements.setups`.
        labels: what tells it from others of its kind and name (docs/measurement-file.md).
        values: one a repetition, in the order of time, of the slowest rank.
    """

    kind: Literal["kernel", "model", "collective", "training", "interference"]
    name: str
    setup: int
    unit: Literal["s", "B"]
    labels: dict[str, Label]
    values: tuple[float, ...]

    def count(self, label: str) -> int:
        """Return a label that is a whole number."""
        return int(self.number(label))

    def number(self, label: str) -> float:
        """Return a label that is a number.

        Raises:
            SimnetError: it is not, which `read` does not allow for those of `_LABELS`.
        """
        value = self.labels[label]
        if not isinstance(value, int | float):
            raise SimnetError(f"{self.kind} {self.name}: {label}: {value!r}: must be a number: {_REPAIR}")
        return value

    @property
    def options(self) -> Options:
        """Options of the system that was measured; older files write them as text."""
        return Options.parse(self.labels.get("options", {}))


class Measurements(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file."""

    what: str
    format: int
    created: str
    command: str
    hardware: Hardware
    software: Software
    setups: tuple[Setup, ...]
    series: tuple[Series, ...]


class _Head(msgspec.Struct):
    what: str | None = None
    format: int | None = None


def read(path: Path) -> Measurements:
    """Read a measurement file.

    Raises:
        SimnetError: it cannot be read, is damaged, is of a newer format, or something in it makes no sense; the message
            is one sentence with the file and the place in it.
    """
    return parse(read_bytes(path), path)


def parse(data: bytes, path: Path) -> Measurements:
    """Read the content of a measurement file; see `read`."""
    _check_head(path, data)
    whole = decode(Measurements, data, str(path))
    _check_whole(path, whole)
    return whole


def _check_head(path: Path, data: bytes) -> None:
    """Refuse what is no measurement file, and one of a newer format, before anything else is looked at."""
    head = decode(_Head, data, str(path))
    if head.what != WHAT:
        raise SimnetError(f"{path}: what: {head.what!r}: must be {WHAT!r}; name a file that simnet measure has written")
    if head.format is None or head.format < 1:
        raise SimnetError(f"{path}: format: {head.format!r}: must be a number from 1 on: {_REPAIR}")
    if head.format > FORMAT:
        raise SimnetError(f"{path}: format: {head.format}: this version reads up to {FORMAT}; update simnet")


def _check_whole(path: Path, whole: Measurements) -> None:
    for name in ("cores", "memory_bytes"):
        _require(path, f"hardware.{name}", getattr(whole.hardware, name), "must be above 0", least=1)
    _require(path, "hardware.num_gpus", whole.hardware.num_gpus, "must be 0 or more", least=0)
    try:
        datetime.fromisoformat(whole.created)
    except ValueError as error:
        raise SimnetError(f"{path}: created: {whole.created!r}: must be a date in ISO 8601: {_REPAIR}") from error
    if not whole.series:
        raise SimnetError(f"{path}: series: is empty: {_REPAIR}")
    for index, setup in enumerate(whole.setups):
        _check_setup(path, f"setups[{index}]", setup)
    for index, series in enumerate(whole.series):
        _check_series(path, f"series[{index}]", series, len(whole.setups))


def _check_setup(path: Path, place: str, setup: Setup) -> None:
    for name in ("num_nodes", "ranks_per_node", "threads_per_rank", "ranks_on_machine"):
        _require(path, f"{place}.{name}", getattr(setup, name), "must be above 0", least=1)
    if setup.ranks_on_machine > setup.world_size:
        _refuse(path, f"{place}.ranks_on_machine", setup.ranks_on_machine, f"there are {setup.world_size} ranks")
    rate = setup.nic_bytes_per_s
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        _refuse(path, f"{place}.nic_bytes_per_s", rate, "must be above 0, or null where it is not known")


def _check_series(path: Path, place: str, series: Series, num_setups: int) -> None:
    if not 0 <= series.setup < num_setups:
        _refuse(path, f"{place}.setup", series.setup, f"there are {num_setups} setups")
    known = _NAMES.get(series.kind)
    if (known and series.name not in known) or not series.name:
        _refuse(path, f"{place}.name", series.name, f"unknown {series.kind}.{nearest(series.name, known or ())}")
    _check_labels(path, f"{place}.labels", series)
    if not series.values:
        raise SimnetError(f"{path}: {place}.values: is empty: {_REPAIR}")
    least, most = _LIMITS[series.unit]
    too_small = "must be above 0" if series.unit == "s" else "must be 0 or more"
    for index, value in enumerate(series.values):
        if not least <= value <= most:
            rule = too_small if value < least else f"must be at most {most:g} {series.unit}"
            _refuse(path, f"{place}.values[{index}]", value, rule)


def _check_labels(path: Path, place: str, series: Series) -> None:
    """Check that the labels of the kind and the name are there, and all numbers; others may be there too."""
    for name, kind in (_LABELS[series.kind] | _MORE_LABELS.get((series.kind, series.name), {})).items():
        if name not in series.labels:
            raise SimnetError(f"{path}: {place}: {name!r} is missing: {_REPAIR}")
        given = series.labels[name]
        if type(given) is not kind and not (kind is float and type(given) is int):
            _refuse(
                path,
                f"{place}.{name}",
                given,
                {str: "must be text", int: "must be a whole number"}.get(kind, "must be a number"),
            )
        if isinstance(given, int | float):
            _require(path, f"{place}.{name}", given, "must be above 0", least=0 if name in _MAY_BE_ZERO else None)
    for name, given in series.labels.items():
        if isinstance(given, dict) and name != "options":
            _refuse(path, f"{place}.{name}", given, "must be text or a number")
    try:
        series.options  # noqa: B018 - read to be checked
    except ValueError as error:
        raise SimnetError(f"{path}: {place}.options: {error}: {_REPAIR}") from error
    group = series.labels.get("group")
    if series.kind == "collective" and group not in GROUPS:
        _refuse(path, f"{place}.group", group, f"must be one of {', '.join(GROUPS)}")


def _require(path: Path, place: str, given: float, rule: str, least: int | None) -> None:
    """Refuse a number below `least`, or where that is None, one that is not above 0."""
    if not math.isfinite(given) or (given <= 0 if least is None else given < least):
        _refuse(path, place, given, rule)


def _refuse(path: Path, place: str, given: object, rule: str) -> NoReturn:
    raise SimnetError(f"{path}: {place}: {given!r}: {rule}: {_REPAIR}")

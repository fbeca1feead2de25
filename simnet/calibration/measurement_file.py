"""Read measurement files (docs/reference/files.md#measurements); needs no torch."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from simnet.calibration.series_labels import LABELS, NAMES, Whole
from simnet.core.bounded_types import Count
from simnet.core.errors import SimnetError, did_you_mean, shown
from simnet.core.files import read_bytes
from simnet.core.schema import FieldError, check, decode, type_of
from simnet.core.system_options import SystemOptions

WHAT = "simnet measurements"
FORMAT = 1
"""The newest format that `read` knows."""

_LIMITS = {"s": (1e-12, 1e9), "B": (0.0, 1e18)}
"""Smallest and largest value by unit: no clock resolves a picosecond, and no run takes 30 years."""
_REPAIR = "measure again, or copy the file again from its source"

Label = str | int | float | dict[str, str | int | float | bool | None]


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine of rank 0.

    Attributes:
        machine: instruction set, such as "x86_64".
        processor: may be empty.
        cores: that a process may use.
        memory_bytes: memory of the machine.
        gpu: empty without one.
        num_gpus: GPUs of the machine.
    """

    machine: str
    processor: str
    cores: Whole
    memory_bytes: Whole
    gpu: str = ""
    num_gpus: Annotated[int, msgspec.Meta(ge=0)] = 0


class Software(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Versions; empty where there is none.

    Attributes:
        system: name and version of the operating system.
        python: version of Python.
        torch: version of PyTorch.
        numba: version of numba.
        nccl: version of NCCL.
        binsgdm: version of binsgdm.
    """

    system: str
    python: str
    torch: str
    numba: str = ""
    nccl: str = ""
    binsgdm: str = ""


class Setup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The layout of processes and network.

    Attributes:
        backend: "gloo" or "nccl"; empty for a process alone.
        device: "cpu" or "cuda".
        num_nodes: nodes.
        ranks_per_node: ranks on each.
        threads_per_rank: threads of a rank.
        ranks_on_machine: ranks that share the cores of a machine.
        nic_bytes_per_s: of a node in one direction; null where it is not known.
        nic_latency_s: that a shaper adds to a node's NICs, one way.
        network: what else is known of the network, for people.
    """

    backend: str
    device: str
    num_nodes: Count
    ranks_per_node: Count
    threads_per_rank: Count
    ranks_on_machine: Count
    nic_bytes_per_s: Annotated[float, msgspec.Meta(gt=0.0, le=1e18)] | None = None
    nic_latency_s: Annotated[float, msgspec.Meta(ge=0.0, le=1e3)] = 0.0
    network: str = ""

    def __post_init__(self) -> None:
        if self.ranks_on_machine > self.world_size:
            raise ValueError(f"ranks_on_machine: {self.ranks_on_machine}: there are {self.world_size} ranks")

    @property
    def world_size(self) -> int:
        """Ranks of all nodes."""
        return self.num_nodes * self.ranks_per_node


class Series(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The repetitions of one measurement.

    Attributes:
        kind: what was measured.
        name: of the kernel, phase or collective.
        setup: index in `setups`, from 0.
        unit: seconds or bytes.
        labels: what distinguishes the series from others of its kind and name.
        values: one a repetition, in the order of time, of the slowest rank or the one in the labels, without warm-up.
    """

    kind: Literal[
        "kernel", "model", "collective", "training", "interference", "optimizer_step", "memory", "own_work", "speed"
    ]
    name: str
    setup: int
    unit: Literal["s", "B"]
    labels: dict[str, Label]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        known = NAMES.get(self.kind)
        if (known and self.name not in known) or not self.name:
            raise ValueError(f"name: {shown(self.name)}: unknown {self.kind}.{did_you_mean(self.name, known or ())}")
        labels = LABELS.get(f"{self.kind} {self.name}", LABELS[self.kind])
        try:
            check(type_of(labels), self.labels, ("labels",))
        except FieldError as error:
            raise ValueError(f"{'.'.join(error.path)}: {error.text}") from error
        self._check_values()

    def _check_values(self) -> None:
        if not self.values:
            raise ValueError("values: is empty")
        least, most = _LIMITS[self.unit]
        too_small = "must be above 0" if self.unit == "s" else "must be 0 or more"
        for index, value in enumerate(self.values):
            if not least <= value <= most:
                rule = too_small if value < least else f"must be at most {most:g} {self.unit}"
                raise ValueError(f"values.{index}: {value!r}: {rule}")

    def count(self, label: str) -> int:
        """Return the whole number of a label; see `number`."""
        return int(self.number(label))

    def number(self, label: str) -> float:
        """Return the number of a label.

        Raises:
            SimnetError: the label is no number; `read` refuses this for the labels in `LABELS`.
        """
        value = self.labels[label]
        if not isinstance(value, int | float):
            raise SimnetError(f"{self.kind} {self.name}: {label}: {value!r}: must be a number: {_REPAIR}")
        return value

    @property
    def options(self) -> SystemOptions:
        """Options of the measured system."""
        return SystemOptions.parse(self.labels.get("options", {}))


class Check(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The outcome of comparisons of one kind.

    Attributes:
        name: what was compared.
        passed: whether all of them held.
        count: comparisons.
        detail: what the first that failed found, or what was compared.
    """

    name: str
    passed: bool
    count: Annotated[int, msgspec.Meta(ge=0)] = 1
    detail: str = ""


# A digest of a file without notes and checks is that of one without these keys.
class MeasurementFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A whole file.

    Attributes:
        what: what the file is: "simnet measurements".
        format: of the file; a newer one is refused.
        created: date in ISO 8601.
        command: the command that wrote the file.
        hardware: machine of rank 0.
        software: versions on it.
        setups: how processes and network were laid out.
        series: may be empty if there are notes or checks.
        notes: such as what was left out and why.
        checks: what was compared.
    """

    what: str
    format: int
    created: str
    command: str
    hardware: Hardware
    software: Software
    setups: tuple[Setup, ...]
    series: tuple[Series, ...]
    notes: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()

    def __post_init__(self) -> None:
        try:
            datetime.fromisoformat(self.created)
        except ValueError as error:
            raise ValueError(f"created: {shown(self.created)}: must be a date in ISO 8601") from error
        if not (self.series or self.notes or self.checks):
            raise ValueError("series: is empty")
        for index, series in enumerate(self.series):
            if not 0 <= series.setup < len(self.setups):
                raise ValueError(f"series.{index}.setup: {series.setup}: there are {len(self.setups)} setups")


class _Header(msgspec.Struct):
    what: str | None = None
    format: int | None = None


def read(path: Path) -> MeasurementFile:
    """Read a measurement file.

    Raises:
        SimnetError: the file cannot be read, is damaged, has a newer format, or holds an invalid value; the message is
            one sentence with the file and the key.
    """
    return parse(read_bytes(path), path)


def parse(data: bytes, path: Path) -> MeasurementFile:
    """Read the content of a measurement file; see `read`."""
    _check_header(path, data)
    try:
        return decode(MeasurementFile, data, str(path))
    except SimnetError as error:
        raise SimnetError(f"{error}: {_REPAIR}") from error


def _check_header(path: Path, data: bytes) -> None:
    """Refuse other files and newer formats first, since their further content follows other rules."""
    head = decode(_Header, data, str(path))
    if head.what != WHAT:
        raise SimnetError(f"{path}: what: {head.what!r}: must be {WHAT!r}; name a file that simnet measure has written")
    if head.format is None or head.format < 1:
        raise SimnetError(f"{path}: format: {head.format!r}: must be a number from 1 on: {_REPAIR}")
    if head.format > FORMAT:
        raise SimnetError(f"{path}: format: {head.format}: this version reads up to {FORMAT}; update simnet")

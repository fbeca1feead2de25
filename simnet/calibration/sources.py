"""Read files of measurements, each by its kind: a row of `KINDS`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from simnet.calibration import iperf3, measurement_file, nccl_log, step_rows
from simnet.calibration.fit import FittedPart
from simnet.cluster.hardware import Cluster
from simnet.core.errors import SimnetError
from simnet.core.files import gunzipped, read_bytes
from simnet.core.parsing import parse_json
from simnet.traces import kineto

SNIFFED_BYTES = 4096
"""The first bytes of a file, which show whether it is JSON."""


@dataclass(frozen=True)
class Content:
    """The content of a file, unpacked."""

    path: Path
    raw: bytes

    @cached_property
    def is_json(self) -> bool:
        """Whether it is JSON by its name or its first character; all else is text."""
        return self.path.suffix in {".json", ".gz"} or self.raw[:SNIFFED_BYTES].lstrip()[:1] == b"{"

    @cached_property
    def text(self) -> str:
        """The text; of JSON the first bytes."""
        # A console of Windows writes UTF-16.
        encoding = "utf-16" if self.raw.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
        return (self.raw[:SNIFFED_BYTES] if self.is_json else self.raw).decode(encoding, errors="replace")

    @cached_property
    def table(self) -> dict[str, Any]:
        """The JSON object; of text an empty one."""
        if not self.is_json:
            return {}
        whole = parse_json(self.raw, str(self.path), unique=False)
        if not isinstance(whole, dict):
            raise SimnetError(f"{self.path}: {type(whole).__name__}: must hold one JSON object")
        return whole


class Kind(NamedTuple):
    """A kind of file.

    Attributes:
        name: for messages.
        recognizes: tells whether a content is of this kind.
        attribute: of `Sources` that takes what is read.
        read: returns it.
    """

    name: str
    recognizes: Callable[[Content], bool]
    attribute: str
    read: Callable[[Content], Sequence[object]]


KINDS = (
    # First, since -x of rccl-tests, which it refuses, is no whole JSON.
    Kind(
        "output of nccl-tests",
        lambda content: nccl_log.looks_like(content.text),
        "logs",
        lambda content: nccl_log.parse(content.text, str(content.path)),
    ),
    Kind(
        "output of nccl-tests",
        lambda content: nccl_log.looks_like_json(content.table),
        "logs",
        lambda content: nccl_log.of_json(content.table, str(content.path)),
    ),
    Kind(
        "a measurement file",
        lambda content: "what" in content.table,
        "files",
        lambda content: [(content.path, measurement_file.parse(content.raw, content.path))],
    ),
    Kind(
        "iperf3 -J",
        lambda content: iperf3.looks_like(content.table),
        "alone",
        lambda content: [partial(iperf3.fit_goodput, content.table, content.path)],
    ),
    Kind(
        "a torch.profiler trace",
        lambda content: kineto.looks_like(content.table),
        "traces",
        lambda content: [(kineto.parse(content.table, content.path), content.path)],
    ),
    Kind(
        "a CSV of step times",
        lambda content: (
            not content.is_json
            and (content.path.suffix == ".csv" or step_rows.looks_like(content.text[:SNIFFED_BYTES]))
        ),
        "tables",
        lambda content: [step_rows.parse(content.text, content.path)],
    ),
)
"""In the order in which they are tried. A new kind is a row here, and its own file."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The content of the files, by what becomes of it.

    Attributes:
        files: of simnet measure, with their paths.
        logs: of nccl-tests.
        traces: of torch.profiler, with their paths.
        tables: of step times.
        alone: what each other file gives by itself, where its cluster is given.
        names: of all files.
    """

    files: list[tuple[Path, measurement_file.MeasurementFile]] = field(default_factory=list)
    logs: list[nccl_log.NcclLog] = field(default_factory=list)
    traces: list[tuple[kineto.Trace, Path]] = field(default_factory=list)
    tables: list[step_rows.StepTable] = field(default_factory=list)
    alone: list[Callable[[Cluster | None], FittedPart]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    @property
    def measurements(self) -> list[measurement_file.MeasurementFile]:
        """The measurement files, without their paths."""
        return [whole for _, whole in self.files]

    @property
    def gpu(self) -> str:
        """The measured GPU; empty if files name none or several."""
        gpus = {log.gpu for log in self.logs} | {whole.hardware.gpu for whole in self.measurements}
        return gpus.pop() if len(gpus - {""}) == 1 else ""


def read(paths: Sequence[Path], kinds: Sequence[Kind] = KINDS) -> Sources:
    """Read files of these kinds.

    Raises:
        SimnetError: a file cannot be read, has no known kind, is damaged, or is given twice.
    """
    sources = Sources()
    # A file under two names would count twice in a fit.
    resolved = [path.resolve() for path in paths]
    for path in paths:
        if resolved.count(path.resolve()) > 1:
            raise SimnetError(f"{path}: is given twice; give each file once")
        content = Content(path, gunzipped(read_bytes(path), path))
        if not content.raw.strip():
            raise SimnetError(f"{path}: is empty; copy it again from its source")
        kind = next((kind for kind in kinds if kind.recognizes(content)), None)
        if kind is None:
            names = list(dict.fromkeys(kind.name for kind in kinds))
            others = f"{', '.join(names[:-1])} or " if names[1:] else ""
            raise SimnetError(f"{path}: unknown kind of file; give {others}{names[-1]}")
        getattr(sources, kind.attribute).extend(kind.read(content))
        sources.names.append(path.name)
        if same := [table for table in sources.tables[:-1] if table.digest == sources.tables[-1].digest]:
            raise SimnetError(f"{path}: holds the same as {same[0].path}; give each table once")
    return sources

"""Read files of measurements, each by its kind."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simnet.calibration import iperf3, measurement_file, nccl_log, step_rows
from simnet.core.errors import SimnetError
from simnet.core.files import gunzipped, read_bytes
from simnet.core.parsing import parse_json
from simnet.traces import kineto

SNIFFED_BYTES = 4096
"""The first bytes of a file, which show whether it is JSON."""
KNOWN_KINDS = "a measurement file, output of nccl-tests, iperf3 -J, a torch.profiler trace, or a CSV of step times"


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The content of the files, by kind."""

    files: list[tuple[Path, measurement_file.MeasurementFile]] = field(default_factory=list)
    logs: list[nccl_log.NcclLog] = field(default_factory=list)
    iperf3: list[tuple[dict[str, Any], Path]] = field(default_factory=list)
    traces: list[tuple[kineto.Trace, Path]] = field(default_factory=list)
    tables: list[step_rows.StepTable] = field(default_factory=list)

    names: list[str] = field(default_factory=list)

    @property
    def measurements(self) -> list[measurement_file.MeasurementFile]:
        """The measurement files, without their paths."""
        return [whole for _, whole in self.files]

    @property
    def gpu(self) -> str:
        """The measured GPU; empty if files name none or several."""
        found = {log.gpu for log in self.logs} | {whole.hardware.gpu for whole in self.measurements}
        return found.pop() if len(found - {""}) == 1 else ""


def read(paths: Sequence[Path]) -> Sources:
    """Read files of any known kind.

    Raises:
        SimnetError: a file cannot be read, has no known kind, is damaged, or is given twice.
    """
    found = Sources()
    whole = [path.resolve() for path in paths]
    for path in paths:
        if whole.count(path.resolve()) > 1:
            raise SimnetError(f"{path}: is given twice; give each file once")
        _add(found, path)
        found.names.append(path.name)
    return found


def _add(found: Sources, path: Path) -> None:
    raw = gunzipped(read_bytes(path), path)
    if path.suffix not in {".json", ".gz"} and raw[:SNIFFED_BYTES].lstrip()[:1] != b"{":
        _add_text(found, raw, path)
        return
    if nccl_log.looks_like(raw[:SNIFFED_BYTES].decode(errors="replace")):  # objects of rccl-tests, one a line
        _add_text(found, raw, path)
        return
    whole = parse_json(raw, str(path), unique=False)
    if nccl_log.looks_like_json(whole):
        found.logs.extend(nccl_log.of_json(whole, str(path)))
        return
    data = _object(whole, path)
    if kineto.looks_like(data):
        found.traces.append((kineto.parse(data, path), path))
    elif iperf3.looks_like(data):
        found.iperf3.append((data, path))
    elif "what" in data:
        found.files.append((path, measurement_file.parse(raw, path)))
    else:
        raise SimnetError(f"{path}: unknown kind of file; give {KNOWN_KINDS}")


def _add_text(found: Sources, raw: bytes, path: Path) -> None:
    # A console of Windows writes UTF-16.
    text = raw.decode("utf-16" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig", errors="replace")
    if nccl_log.looks_like(text):
        found.logs.extend(nccl_log.parse(text, str(path)))
    elif path.suffix == ".csv" or step_rows.looks_like(text[:SNIFFED_BYTES]):
        table = step_rows.parse(text, path)
        if same := [one for one in found.tables if one.digest == table.digest]:
            raise SimnetError(f"{path}: holds the same as {same[0].path}; give each table once")
        found.tables.append(table)
    else:
        raise SimnetError(f"{path}: unknown kind of file; give {KNOWN_KINDS}")


def json_object(raw: bytes, path: Path) -> dict[str, Any]:
    """Return the JSON object that another program wrote."""
    return _object(parse_json(raw, str(path), unique=False), path)


def _object(whole: object, path: Path) -> dict[str, Any]:
    if not isinstance(whole, dict):
        raise SimnetError(f"{path}: {type(whole).__name__}: must hold one JSON object")
    return whole

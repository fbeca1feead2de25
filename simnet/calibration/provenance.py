"""The measurements behind a calibration or a workload, named by hash, so that a validation can prove to use others."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from simnet.calibration.measurement_file import MeasurementFile
from simnet.calibration.step_rows import StepTable
from simnet.core.units import Bandwidth


def digest(whole: MeasurementFile) -> str:
    """Return a hash of the content of a file, the same for every order of keys."""
    table = msgspec.to_builtins(whole, order="deterministic")
    for setup in table["setups"]:
        if not setup["nic_latency_s"]:  # so that files from before this key keep their hashes
            del setup["nic_latency_s"]
    content = msgspec.json.encode(table)
    return hashlib.sha256(content).hexdigest()[:32]


def fitted_to(files: Sequence[tuple[Path, MeasurementFile]]) -> list[dict[str, object]]:
    """Return the key `fitted_to` in file form: an entry for every file and setup."""
    return [_row(path, whole, number) for path, whole in files for number in range(len(whole.setups))]


def fitted_to_tables(tables: Sequence[StepTable], nic_bytes_per_s: float) -> list[dict[str, object]]:
    """Return the key `fitted_to` of tables of step times: an entry for every number of nodes and ranks."""
    return [
        {
            "file": table.path.name,
            "digest": table.digest,
            "measured": ["training"],
            "num_nodes": nodes,
            "ranks_per_node": ranks,
            **({"nic": Bandwidth(nic_bytes_per_s).text()} if nodes > 1 else {}),
        }
        for table in tables
        for nodes, ranks in dict.fromkeys((row.num_nodes, row.ranks_per_node) for row in table.rows)
    ]


def _row(path: Path, whole: MeasurementFile, number: int) -> dict[str, object]:
    setup = whole.setups[number]
    kinds = dict.fromkeys(series.kind for series in whole.series if series.setup == number)
    nic = {"nic": Bandwidth(setup.nic_bytes_per_s).text()} if setup.nic_bytes_per_s is not None else {}
    return {
        "file": path.name,
        "digest": digest(whole),
        "measured": list(kinds),
        "num_nodes": setup.num_nodes,
        "ranks_per_node": setup.ranks_per_node,
        **nic,
    }

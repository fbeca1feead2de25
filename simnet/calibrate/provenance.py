"""Which measurements a calibration or a workload was fitted to, so that a validation can prove to use others."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from simnet.calibrate.measurement import Measurements
from simnet.units import Bandwidth


def digest(whole: Measurements) -> str:
    """Return a hash of all that a file says, however it is written."""
    return hashlib.sha256(msgspec.json.encode(whole, order="deterministic")).hexdigest()[:32]


def rows(files: Sequence[tuple[Path, Measurements]]) -> list[dict[str, object]]:
    """Return `fitted_to` in file form: an entry for every file and setup."""
    return [_row(path, whole, number) for path, whole in files for number in range(len(whole.setups))]


def _row(path: Path, whole: Measurements, number: int) -> dict[str, object]:
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

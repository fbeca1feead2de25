"""A record of measurements as a file: read by simnet, whole however the writer ends."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench import ranks
from binsgdm.bench import record as recording
from binsgdm.bench.record import Record, SpeedProbe
from binsgdm.errors import BinsgdmError
from simnet.calibration.measurement_file import FORMAT, read

ROOT = Path(__file__).parents[4]


def record(*, empty: bool = False) -> Record:
    """Return a record of one process with one series."""
    with ranks.joined() as alone:
        made = Record(alone, nic_bytes_per_s=125e6, network="none")
    if not empty:
        made.add("kernel", "copy", [1.0, 2.0], num_elements=8, dtype="float32", kernels="torch")
    return made


def written(made: Record, folder: Path) -> Path:
    made.write(folder / "m.json")
    return folder / "m.json"


def test_what_is_recorded_is_what_is_read(tmp_path):
    file = read(written(record(), tmp_path))
    assert file.format == FORMAT
    assert file.series[0].values == (1.0, 2.0)
    assert file.setups[0].nic_bytes_per_s == 125e6
    assert file.setups[0].world_size == 1
    assert file.hardware.cores >= 1
    assert file.software.torch


def test_notes_checks_and_bytes_are_read_as_they_were_recorded(tmp_path):
    made = record(empty=True)
    made.note("2^28 elements do not fit")
    made.check("merge", passed=True, count=7)
    assert read(written(made, tmp_path)).series == ()
    made.add("memory", "peak", [8e9], unit="B", optimizer="adamw", num_elements=8, num_tensors=1)
    file = read(written(made, tmp_path))
    assert file.notes == ("2^28 elements do not fit",)
    assert (file.checks[0].name, file.checks[0].passed, file.checks[0].count) == ("merge", True, 7)
    assert (file.series[0].unit, file.series[0].values) == ("B", (8e9,))
    assert "8000.00 MB" in made.table()
    assert made.imprecise(0.03) == 0


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_a_file_that_is_replaced_keeps_its_mode(mode, tmp_path):
    path = tmp_path / "m.json"
    path.write_text("old", encoding="utf-8")
    path.chmod(mode)
    written(record(), tmp_path)
    assert path.read_text(encoding="utf-8") != "old"
    assert path.stat().st_mode & 0o777 == mode


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "m.json"
    path.write_text("old", encoding="utf-8")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recording.os, "fsync", full)
    with pytest.raises(BinsgdmError, match=r"m\.json: cannot be written \(No space left on device\)"):
        recording.write_file(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_a_whole_file(tmp_path):
    path = tmp_path / "m.json"
    code = (
        "import sys, json; from pathlib import Path; from binsgdm.bench.record import write_file\n"
        "text = json.dumps(list(range(300_000)))\n"
        "while True: write_file(Path(sys.argv[1]), text); print(flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], cwd=ROOT, stdout=subprocess.PIPE) as writer:
        for _ in range(4):
            assert writer.stdout is not None
            writer.stdout.readline()
        writer.kill()
    assert len(json.loads(path.read_text(encoding="utf-8"))) == 300_000


def test_an_empty_record_is_refused(tmp_path):
    with pytest.raises(BinsgdmError, match="nothing was measured"):
        written(record(empty=True), tmp_path)


class SlowerRanks:
    """Ranks of which another one takes a second longer for everything."""

    device = torch.device("cpu")

    def barrier(self) -> None:
        pass

    def slowest(self, seconds: list[float]) -> list[float]:
        return [second + 1.0 for second in seconds]


class Kept:
    """What was added to a record."""

    def __init__(self) -> None:
        self.series: list[tuple[str, str, list[float]]] = []

    def add(self, kind: str, name: str, values: list[float]) -> None:
        self.series.append((kind, name, values))


def test_samples_are_those_of_the_slowest_rank_and_not_taken_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "SHARED_S", 1e-4)
    monkeypatch.setattr(recording, "EVERY_S", 1e3)
    kept, ranks = Kept(), SlowerRanks()
    mine: Any = SpeedProbe(ranks)
    for _ in range(3):
        mine.sample()
    mine.add_to(kept)
    assert [(kind, name, len(values)) for kind, name, values in kept.series] == [
        ("speed", "multiply", 1), ("speed", "stream", 1)
    ]  # fmt: skip
    assert all(value > 1.0 for _, _, values in kept.series for value in values)

"""The table of parts, and one rank of one part in this process."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")

from binsgdm.bench.gpu import parts
from binsgdm.bench.gpu.parts import BUDGET_S, PARTS
from simnet.calibration.measurement_file import read


def test_the_parts_share_out_the_whole_budget() -> None:
    assert sum(part.seconds for part in PARTS) == BUDGET_S
    assert len({part.name for part in PARTS}) == len(PARTS)


WITHOUT_NUMBA = """
import pkgutil
from binsgdm.bench.gpu.parts import PARTS
for part in PARTS:
    pkgutil.resolve_name(part.measure)
import torch
from binsgdm import BinSGDM, attach, attach_fsdp
from binsgdm.optimizers.one_bit_adam import OneBitAdam
parameter = torch.nn.Parameter(torch.ones(8))
for make in (BinSGDM, OneBitAdam):
    parameter.grad = torch.ones(8)
    make([parameter], lr=0.25).step()
print(parameter.tolist())
"""


def test_all_parts_and_optimizers_do_without_numba(tmp_path: Path) -> None:
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs NumPy 2.4 or less. Got NumPy 2.5.')\n")
    root = Path(parts.__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(root)])}
    command = [sys.executable, "-c", WITHOUT_NUMBA]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{[0.5] * 8}\n"


LABELS = {"num_elements": 8, "dtype": "float32", "kernels": "torch"}


@pytest.fixture
def task(tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    return {
        "measure": "a_part:measure", "output": str(tmp_path / "a.json"), "device": "cpu", "quick": True,
        "is_shared": False, "seconds": 100.0, "launched": time.monotonic(),
    }  # fmt: skip


def part(monkeypatch: pytest.MonkeyPatch, measure: Any) -> None:
    made = ModuleType("a_part")
    made.measure = measure  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_part", made)


def measures(bench: Any, *, quick: bool, seconds: float) -> None:
    assert quick
    assert 50 < seconds <= 100
    bench.record.add("kernel", "copy", [1.0, 2.0], **LABELS)
    bench.progress(0.5)
    bench.record.add("kernel", "copy", [3.0], **LABELS)


def test_a_part_writes_one_file_and_reports_how_far_it_is(task, monkeypatch):
    part(monkeypatch, measures)
    reported: list[dict[str, Any]] = []
    parts.work(**task, report=lambda **what: reported.append(what))
    assert len(read(Path(task["output"])).series) == 2
    assert reported == [{"done": 0.5}]


def test_a_part_that_is_far_too_late_keeps_what_it_has(task, monkeypatch):
    def late(bench: Any, **_: Any) -> None:
        measures(bench, quick=True, seconds=100.0)

    part(monkeypatch, late)
    parts.work(**task | {"seconds": 1.0, "launched": time.monotonic() - 60}, report=lambda **_: None)
    found = read(Path(task["output"]))
    assert len(found.series) == 1
    assert found.notes[0].startswith("ended at 50% after 6")


@pytest.mark.parametrize(("limit_s", "kept"), [(62.0, 1), (600.0, 2)])
def test_a_part_of_checks_alone_stops_before_it_is_killed(limit_s, kept, task, monkeypatch):
    def checks(bench: Any, **_: Any) -> None:
        for name in ("first", "second"):
            bench.record.check(name, passed=True)
            bench.progress(0.5)

    part(monkeypatch, checks)
    # So late, it would go on if nobody waited: it was given 100 s.
    parts.work(**task | {"limit_s": limit_s, "launched": time.monotonic() - 60}, report=lambda **_: None)
    assert len(json.loads(Path(task["output"]).read_text())["checks"]) == kept


def test_a_part_that_ends_without_a_file_says_why(task, monkeypatch):
    def fails(*_: Any, **__: Any) -> None:
        raise MemoryError("no\nmore")

    part(monkeypatch, fails)
    monkeypatch.setattr(parts, "end_with_parent", lambda: None)
    reports, write_fd = os.pipe()
    assert parts.main(json.dumps(task | {"report_fd": write_fd})) == 1
    os.close(write_fd)
    with os.fdopen(reports) as told:
        assert told.read() == '{"failed": "MemoryError: no more"}\n'
    assert not Path(task["output"]).exists()

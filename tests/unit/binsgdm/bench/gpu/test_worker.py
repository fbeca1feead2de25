"""One rank of one part, in this process."""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")

from binsgdm.bench.gpu import worker
from binsgdm.bench.gpu.parts import NotMeasurableError
from simnet.calibration.measurement_file import read

LABELS = {"num_elements": 8, "dtype": "float32", "kernels": "torch"}


@pytest.fixture
def task(tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    reports, write_fd = os.pipe()
    yield worker.PartTask(
        module="a_part", output=str(tmp_path / "a.json"), device="cpu", quick=True, is_shared=False, seconds=100.0,
        launched=time.monotonic(), report_fd=write_fd,
    )  # fmt: skip
    os.close(write_fd)
    os.close(reports)


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
    monkeypatch.setattr(worker, "report", lambda _, **what: reported.append(what))
    worker.work(task)
    assert len(read(Path(task.output)).series) == 2
    assert reported == [{"done": 0.5}]


def test_a_part_that_is_far_too_late_keeps_what_it_has(task, monkeypatch):
    def late(bench: Any, **_: Any) -> None:
        measures(bench, quick=True, seconds=100.0)

    part(monkeypatch, late)
    worker.work(replace(task, seconds=1.0, launched=time.monotonic() - 60))
    found = read(Path(task.output))
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
    worker.work(replace(task, limit_s=limit_s, launched=time.monotonic() - 60))
    assert len(json.loads(Path(task.output).read_text())["checks"]) == kept


@pytest.mark.parametrize(
    ("error", "code", "reported"),
    [
        (NotMeasurableError("one card"), 0, {"skipped": "one card"}),
        (MemoryError("no\nmore"), 1, {"failed": "MemoryError: no more"}),
    ],
)
def test_a_part_that_ends_without_a_file_says_why(error, code, reported, task, monkeypatch):
    def fails(*_: Any, **__: Any) -> None:
        raise error

    part(monkeypatch, fails)
    monkeypatch.setattr(worker, "end_with_parent", lambda: None)
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(worker, "report", lambda _, **what: found.append(what))
    assert worker.main(task.text()) == code
    assert found == [reported]
    assert not Path(task.output).exists()
    assert json.loads(task.text())["module"] == "a_part"

"""What `simnet measure gpu` and the tests of a card write is what `simnet measure gpu --card` reads."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.helpers.needs import needs

needs("torch")
from binsgdm.bench import kernels
from binsgdm.bench.gpu.parts import PARTS
from binsgdm.bench.gpu.run import CardRun
from simnet.calibration import card_folder, measurement_file
from simnet.calibration import kernels as timed
from tests.gpu.conftest import Checks
from tests.helpers import card_samples


def test_every_part_that_is_measured_has_a_place_in_the_folder() -> None:
    assert {part.name for part in PARTS} - set(card_folder.PARTS) == set()


def test_launches_are_found_by_their_names() -> None:
    assert timed.LAUNCHED == kernels.LAUNCHED


def test_card_json_is_read_as_it_is_written(tmp_path) -> None:
    card = {"name": "NVIDIA H200", "compute_capability": "9.0", "memory_bytes": 150 * 10**9, "num_cards": 2}
    software = {"torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "rocm": "", "nccl": "2.28", "driver": "580.1"}
    found = {"card": card | {"power_limit_w": 700.0, "mig_mode": None}, "software": software, "is_shared": False}
    found |= {"other_processes": [], "notes": ["shared"]}
    written = CardRun(tmp_path, found, device="cuda", quick=False)
    written.set_part("models", status="failed", reason="out of memory", seconds=3.5, before={}, tail="...")
    content = card_samples.training()
    content["hardware"]["gpu"] = card["name"]
    card_samples.save(tmp_path / "training.json", content)
    read = card_folder.read(tmp_path, accepts_cpu=False)
    assert (read.label, read.stem, read.num_cards) == ("H200", "h200", 2)
    assert read.missing()["models"] == "failed: out of memory"
    assert read.about.notes == ("shared",)
    assert card_folder.versions_text(read).startswith("torch 2.11.0, triton 3.6.0, cuda 13.0, nccl 2.28")


def report(name: str, outcome: str, when: str = "call") -> Any:
    said = {"passed": outcome == "passed", "failed": outcome == "failed", "longreprtext": "E  3 of 5\nE  bits differ"}
    return SimpleNamespace(nodeid=f"tests/gpu/test_some_kernels.py::{name}", when=when, **said)


def test_each_test_function_is_a_check_of_the_card(tmp_path: Path) -> None:
    checks = Checks(tmp_path / "checks.json")
    for name, outcome, when in (
        ("test_bits_are_equal[a]", "passed", "setup"),
        ("test_bits_are_equal[a]", "passed", "call"),
        ("test_bits_are_equal[b]", "failed", "call"),
        ("test_nothing_hangs", "passed", "call"),
        ("test_two_cards", "skipped", "setup"),
    ):
        checks.pytest_runtest_logreport(report(name, outcome, when))
    checks.pytest_sessionfinish()
    file = measurement_file.read(tmp_path / "checks.json")
    assert [(check.name, check.count, check.passed, check.detail) for check in file.checks] == [
        ("some kernels: bits are equal", 2, False, "b E 3 of 5 E bits differ"),
        ("some kernels: nothing hangs", 1, True, ""),
    ]

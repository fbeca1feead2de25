"""What the tests of a card leave is what `simnet measure gpu --card` reads."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from simnet.calibration import measurement_file
from tests.helpers.needs import needs

needs("torch")

from tests.gpu.conftest import Checks


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
    found = measurement_file.read(tmp_path / "checks.json")
    assert [(one.name, one.count, one.passed, one.detail) for one in found.checks] == [
        ("some kernels: bits are equal", 2, False, "b E 3 of 5 E bits differ"),
        ("some kernels: nothing hangs", 1, True, ""),
    ]

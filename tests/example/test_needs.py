"""Tests say what they need: by `needs` alone, skipped by that name, listed once; without it they fail."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import needs as helper
from tests.helpers.needs import NEEDS, not_run

ROOT = Path(__file__).parents[2]
OTHER_WAYS = re.compile(r"importorskip|mark\.skip|pytest\.skip\(")
CONFTEST = """
from tests.helpers import needs
from tests.helpers.needs import pytest_terminal_summary

needs.NEEDS["a_library"] = needs._module("a_library_that_nobody_has", "pip install a_library")
"""
DECLARED = """
from tests.helpers.needs import needs

needs("a_library")
import a_library_that_nobody_has

def test_it(): ...
"""
ONE_OF_TWO = """
from tests.helpers.needs import needs

def test_with_it():
    needs("a_library")
    raise AssertionError

def test_without_it(): ...
"""
UNDECLARED = """
import a_library_that_nobody_has

def test_it(): ...
"""


def run(folder: Path, **modules: str) -> subprocess.CompletedProcess[str]:
    """Run tests of a folder that has this project's summary."""
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in modules.items():
        (folder / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    return subprocess.run(
        [*command, "--rootdir", str(folder), str(folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_what_is_not_here_is_listed_once_with_its_remedy_and_nothing_fails(tmp_path: Path) -> None:
    done = run(tmp_path, declared=DECLARED, one_of_two=ONE_OF_TWO)
    assert done.returncode == 0, done.stdout
    assert "1 passed, 2 skipped" in done.stdout
    assert "a_library (1 modules and 1 tests): pip install a_library" in done.stdout.splitlines()
    assert done.stdout.count("a_library") == 2


@pytest.mark.slow
def test_a_need_that_was_not_declared_fails(tmp_path: Path) -> None:
    done = run(tmp_path, undeclared=UNDECLARED, one_of_two=ONE_OF_TWO)
    assert done.returncode == 2
    assert "No module named 'a_library_that_nobody_has'" in done.stdout


def test_a_test_that_needs_two_things_counts_for_both() -> None:
    lines = not_run([("tests/test_a.py", "needs torch, numba"), ("tests/test_b.py::test_c", "needs torch")])
    assert lines == ["numba (1 modules): make torch", "torch (1 modules and 1 tests): make torch"]


def test_every_test_that_may_be_skipped_says_so_by_needs() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}
    allowed = {Path(__file__), Path(helper.__file__)}
    assert [str(path) for path, text in sources.items() if OTHER_WAYS.search(text) and path not in allowed] == []


def test_every_name_in_the_table_is_needed_by_a_test() -> None:
    every = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "evidence/tests").rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in every if path != Path(helper.__file__))
    by_name = {"accelerate", "lightning", "transformers", "torchvision"}  # tests of each library of a list
    assert [name for name in NEEDS if f'"{name}"' not in text and name not in by_name] == []

"""Tests say what they need: by `needs` alone, skipped by that name, listed once; without it they fail."""

import re
import subprocess
import sys
from pathlib import Path

from tests.helpers import needs as helper
from tests.helpers.needs import NEEDS

ROOT = Path(__file__).parents[2]
OTHER_WAYS = re.compile(r"importorskip|mark\.skip|pytest\.skip\(")
CONFTEST = """
from tests.helpers import needs
from tests.helpers.needs import pytest_terminal_summary

needs.NEEDS["a_library"] = needs._module("a_library_that_nobody_has", "pip install a_library")
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


def test_every_test_that_may_be_skipped_says_so_by_needs() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}
    allowed = {Path(__file__), Path(helper.__file__)}
    assert [str(path) for path, text in sources.items() if OTHER_WAYS.search(text) and path not in allowed] == []


def test_every_name_in_the_table_is_needed_by_a_test() -> None:
    every = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "evidence/tests").rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in every if path != Path(helper.__file__))
    by_name = {"accelerate", "lightning", "transformers", "torchvision"}  # tests of each library of a list
    assert [name for name in NEEDS if f'"{name}"' not in text and name not in by_name] == []

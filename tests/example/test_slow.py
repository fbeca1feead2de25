"""A slow test says so by its mark, or the end of the run does."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.slow import OPTION

ROOT = Path(__file__).parents[2]
CONFTEST = """
pytest_plugins = ["tests.helpers.slow"]

def pytest_configure(config):
    config.pluginmanager.get_plugin("tests.helpers.slow").SLOW_S["setup"] = 0.25
"""
TESTS = """
import time

import pytest

@pytest.fixture(params=[0.0, 0.3])
def ranks(request):
    time.sleep(request.param)

def test_with_ranks(ranks): ...

def test_slow(): time.sleep(0.3)

@pytest.mark.slow
def test_marked(): time.sleep(0.3)

def test_quick(): ...
"""


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("-n", "2")], ids=str)
def test_a_slow_test_without_its_mark_is_listed_and_fails_where_asked(tmp_path: Path, more: tuple[str, ...]) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_times.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    command += ["--rootdir", str(tmp_path), str(tmp_path), *more]
    plain, strict = (
        subprocess.run([*command, *option], cwd=ROOT, capture_output=True, text=True, check=False)
        for option in ((), (OPTION,))
    )
    assert [(done.returncode, "5 passed" in done.stdout) for done in (plain, strict)] == [(0, True), (1, True)]
    for done in (plain, strict):
        assert "2 tests are slow and not marked so" in done.stdout
        listed = [line for line in done.stdout.splitlines() if "::" in line]
        assert sorted(line.split()[3].split("::")[1] for line in listed) == ["test_slow", "test_with_ranks[0.3]"]

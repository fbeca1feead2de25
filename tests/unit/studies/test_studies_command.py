"""`python -m studies`: what is done, and the tables of both pages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

ROOT = Path(__file__).resolve().parents[3]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "studies", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_the_status_says_what_is_done_of_each_task() -> None:
    done = run("status")
    assert done.returncode == 0, done.stderr
    names = [line.split(":")[0].strip() for line in done.stdout.splitlines()]
    assert names == ["training", "digits", "lm", "lm_long", "lm_alone", "systems", "characters", "mnist_5k", "digits"]


def test_the_help_names_the_files() -> None:
    assert "scenarios/convergence" in run("--help").stdout

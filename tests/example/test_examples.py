"""The training examples run alone and under torchrun, and learn."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

ROOT = Path(__file__).resolve().parents[2]
FEW_STEPS = ("--steps", "60", "--batch", "32")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)


def accuracy(path: Path) -> float:
    return json.loads(path.read_text())["curve"][-1]["accuracy"]


def test_the_digits_are_learned_far_above_chance_by_one_process(tmp_path):
    result = tmp_path / "result.json"
    done = run(sys.executable, "examples/train_digits.py", *FEW_STEPS, "--json", str(result))
    assert done.returncode == 0, done.stderr
    assert accuracy(result) > 0.5  # chance is 0.1


def test_the_digits_are_learned_far_above_chance_by_two_ranks(tmp_path):
    result = tmp_path / "result.json"
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    flags = (*FEW_STEPS, "--ranks-per-node", "1", "--json", str(result))
    done = run(sys.executable, *launch, "examples/train_digits.py", *flags)
    assert done.returncode == 0, done.stderr
    assert accuracy(result) > 0.5
    assert json.loads(result.read_text())["ranks"] == 2

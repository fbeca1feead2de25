"""`python -m binsgdm measure`: the commands of `simnet measure`, where only binsgdm and torch are installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.needs import needs

ROOT = Path(__file__).parents[3]


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(folder), str(ROOT)))
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    return subprocess.run(
        [sys.executable, "-m", "binsgdm", *arguments],
        env={**environment, "PYTHONPATH": path}, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("learn",), "binsgdm: No such command 'learn'. See: python -m binsgdm --help\n"),
        (
            ("measure", "kernels", "--bad"),
            "binsgdm: No such option '--bad'. See: python -m binsgdm measure kernels --help\n",
        ),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = run(*arguments, folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


@pytest.mark.parametrize("arguments", [(), ("measure",)])
def test_without_a_command_it_shows_its_help(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"Usage: {' '.join(('python -m binsgdm', *arguments))} [OPTIONS] COMMAND [ARGS]...\n")


def test_a_missing_click_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text('raise ImportError("No module named click")\n', encoding="utf-8")
    done = run("measure", "gpu", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "binsgdm: needs click (No module named click): pip install click, or put it on PYTHONPATH\n"


@pytest.mark.slow
def test_it_measures_and_the_file_says_how_to_do_it_again(tmp_path: Path) -> None:
    needs("torch")
    words = ("measure", "kernels", "--max-size", "1024", "--max-repetitions", "8", "-o", "k.json")
    done = run(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "k.json").read_text(encoding="utf-8"))
    assert content["command"] == f"python -m binsgdm {' '.join(words)}"
    assert content["series"]
    again = run(*words, folder=tmp_path)
    assert again.returncode == 2
    assert again.stderr.startswith("binsgdm: k.json: exists")

"""What README shows is what the commands do."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from simnet.scenario import load_experiment
from simnet.show.sweep_page import sweep_page
from simnet.sweep import expand, run, whole

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def simnet(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "simnet", *arguments]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def commands() -> list[str]:
    """Return every simnet command of the console blocks, also those joined by && or ;."""
    lines = [line[2:].split("#")[0] for block in blocks("console") for line in block.splitlines() if line[:2] == "$ "]
    parts = [part.strip() for line in lines for part in re.split(r"&&|;", line)]
    skipped = ("COMMAND", "my_cluster.toml")
    return [part for part in parts if part.startswith("simnet ") and not any(word in part for word in skipped)]


def test_the_commands_of_the_readme_work_one_after_the_other(tmp_path):
    assert len(commands()) >= 6
    for command in commands():
        done = simnet(*shlex.split(command)[1:], folder=tmp_path)
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_the_table_of_the_readme_is_what_the_demo_prints():
    experiment = load_experiment("speedup")
    points = expand(experiment)
    printed = str(sweep_page(whole(experiment, points, run(points))))
    shown = next(block for block in blocks("text") if "BERT-Base" in block)
    for line in filter(None, shown.splitlines()):
        assert line in printed.splitlines()


def test_the_scenario_of_the_readme_runs(tmp_path):
    (tmp_path / "ours.toml").write_text(blocks("toml")[0])
    done = simnet("sweep", "ours.toml", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "our model" in done.stdout


@pytest.mark.parametrize(
    "page",
    ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/explanation/model.md", "docs/evidence/validation.md"],
)
def test_links_between_pages_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), f"{page}: {target}"

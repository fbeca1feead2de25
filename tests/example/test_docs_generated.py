"""The generated pages of docs/reference are what docs/generate.py makes now."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")

from binsgdm.compressors.registry import SYSTEMS
from docs import commands, generate, systems
from simnet.analysis import convergence, sweeps
from simnet.calibration import measurement_file
from simnet.cli.main import cli
from simnet.engine.scenario import load, load_experiment
from simnet.engine.simulation import simulate
from simnet.strategies import step_file


@pytest.mark.parametrize("path", generate.pages(), ids=lambda path: path.name)
def test_a_generated_page_is_current(path: Path) -> None:
    assert generate.is_current(path), "run: python docs/generate.py"


def test_the_page_of_commands_has_every_command_and_option() -> None:
    page = generate.commands_page()
    for path, command in commands.commands(cli, "simnet"):
        section = re.split(r"\n##+ ", page.partition(f"# {path}\n")[2])[0]
        names = [*commands.lines(command), *commands.rare(command)]
        assert [name for name in names if name not in section] == []


def example(page: str, section: str, kind: str = "toml") -> str:
    """Return the first example of a file in a section of a page."""
    text = (generate.REFERENCE / page).read_text(encoding="utf-8").partition(f"\n{section}\n")[2]
    return text.partition(f"```{kind}\n")[2].partition("```")[0]


def test_the_examples_of_files_are_files(tmp_path: Path) -> None:
    for page, section, name in (
        ("cluster.md", "## Cluster", "our_cluster.toml"),
        ("scenario.md", "## Workload", "model.toml"),
        ("scenario.md", "", "ours.toml"),
    ):
        (tmp_path / name).write_text(example(page, section), encoding="utf-8")
    chosen = {**tomllib.loads(example("scenario.md", "## Strategies")), "workload": str(tmp_path / "model.toml")}
    assert len(sweeps.expand(load_experiment(str(tmp_path / "ours.toml")))) == 3
    result = simulate(load(str(tmp_path / "ours.toml"), chosen))
    assert result.speedup is not None


def test_the_examples_of_written_files_are_read(tmp_path: Path) -> None:
    page = generate.REFERENCE / "files.md"
    assert measurement_file.parse(example(page.name, "## Measurements", "json").encode(), page).series
    for section, kind, name in (
        ("Recorded steps", "json", "step.json"),
        ("Convergence", "json", "ours.json"),
    ):
        (tmp_path / name).write_text(example(page.name, f"## {section}", kind), encoding="utf-8")
    assert step_file.read(tmp_path / "step.json").recordings
    trainings = convergence.load(str(tmp_path / "ours.json"))
    assert trainings.curves
    assert trainings.rank_counts == (8,)


def test_the_list_has_every_system_and_what_differs_from_its_paper() -> None:
    items = systems.every().splitlines()
    names = [*SYSTEMS, "binsgdm", "one_bit_adam"]
    assert [re.match(r"- \*\*`(\w+)`\*\* ", item)[1] for item in items] == names
    assert [name for name, item in zip(names, items, strict=True) if "Differs: " not in item] == ["dense"]
    assert [name for name, item in zip(names, items, strict=True) if "so by default" in item] == [
        "byte_grad",
        "ms_top_k",
        "binsgdm",
    ]

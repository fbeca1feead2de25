"""The generated pages of docs/reference are what docs/generate.py makes now."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")
import click
from msgspec import Struct

from binsgdm.compressors.registry import SYSTEMS
from docs import commands, generate, keys, regions, systems
from simnet.analysis import convergence, sweeps
from simnet.calibration import measurement_file
from simnet.cli.main import cli
from simnet.engine.scenario import load, load_experiment
from simnet.engine.simulation import simulate
from simnet.strategies import step_file


@pytest.mark.parametrize("path", generate.pages(), ids=lambda path: path.name)
def test_a_generated_page_is_current(path: Path) -> None:
    assert generate.is_current(path), "run: python docs/generate.py"


class Named(Struct, kw_only=True):
    """A table of a file.

    Attributes:
        size_bytes: how large it is,
            said in two lines.
    """

    size_bytes: float
    unknown: str = ""


def test_a_key_without_a_meaning_is_an_error() -> None:
    with pytest.raises(ValueError, match="Named: unknown: say what it means"):
        keys.listing(Named, {})


@pytest.mark.parametrize(
    ("key", "is_data", "line"),
    [
        (keys.Key("`nodes`", "count", "required", "of it"), False, "- `nodes` (required, count): of it"),
        (keys.Key("`nodes`", "count", "`1`", "of it"), False, "- `nodes = 1` (count): of it"),
        (keys.Key("`gpu`", "text", '`""`', "of it"), False, '- `gpu = ""`: of it'),
        (keys.Key("`gpu`", "text", '`""`', "of it"), True, "- `gpu` (optional): of it"),
        (keys.Key("`low`", "number", "required", "of it"), True, "- `low`: of it"),
        (keys.Key("`unit`", '`"s"`, `"B"`', "none", '"s" or "B"'), False, '- `unit`: "s" or "B"'),
        (keys.Key("`unit`", '`"s"`, `"B"`', "none", 'not "s"'), False, '- `unit` (`"s"`, `"B"`): not "s"'),
    ],
)
def test_a_key_says_what_its_default_and_meaning_do_not_show(key: keys.Key, is_data: bool, line: str) -> None:
    assert key.line(is_data=is_data) == line


def test_an_option_without_a_meaning_is_an_error() -> None:
    @click.command("made")
    @click.option("--size", type=click.IntRange(1, 4096), default=8, help="Of it.  [default: as large as can be]")
    @click.option("--bare")
    def made() -> None:
        """Make it."""

    with pytest.raises(ValueError, match="`--bare`: say what the option means"):
        commands.lines(made)
    made.params = made.params[:1]
    assert commands.lines(made) == {"`--size`": "- `--size` (1 to 4,096; default as large as can be): Of it"}


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


def test_a_region_is_replaced_and_nothing_else() -> None:
    page = "a\n<!-- x -->\nold\n<!-- end of x -->\nb\n"
    filled = regions.filled(page, {"x": "new\nlines"})
    assert filled == "a\n<!-- x -->\nnew\nlines\n<!-- end of x -->\nb\n"
    assert regions.region(filled, "x") == "new\nlines"
    with pytest.raises(AssertionError, match="no region 'y'"):
        regions.filled(page, {"y": ""})

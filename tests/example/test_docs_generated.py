"""The generated pages of docs/reference are what docs/generate.py makes now."""

import tomllib
from pathlib import Path
from typing import Literal

import click
import pytest
from msgspec import Struct

from docs import commands, generate, keys
from simnet.analysis import convergence, sweeps
from simnet.calibration import measurement_file
from simnet.cli.main import cli
from simnet.engine.scenario import load, load_experiment
from simnet.engine.simulation import simulate
from simnet.validation.lab import campaign


@pytest.mark.parametrize("path", generate.pages(), ids=lambda path: path.name)
def test_a_generated_page_is_current(path: Path) -> None:
    assert generate.is_current(path), "run: python docs/generate.py"


def test_a_page_that_differs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    current, old = tmp_path / "current.md", tmp_path / "old.md"
    for path in (current, old):
        path.write_text(path.stem)
    made = {current: lambda: "current", old: lambda: "new", tmp_path / "missing.md": lambda: "text"}
    monkeypatch.setattr(generate, "pages", lambda: made)
    assert [path for path in made if not generate.is_current(path)] == [old, tmp_path / "missing.md"]


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
        keys.table(Named, {})


def test_the_keys_of_a_base_can_be_left_out() -> None:
    class Derived(Named, kw_only=True):
        """A kind of it.

        Attributes:
            unit: of it.
        """

        unit: Literal["s", "B"] = "s"

    assert keys.keys(Derived, {}, without=Named) == [keys.Key("`unit`", '`"s"`, `"B"`', '`"s"`', "of it")]


def test_an_option_without_a_meaning_is_an_error() -> None:
    @click.command("made")
    @click.option("--size", type=click.IntRange(1, 4096), default=8, help="Of it.  [default: as large as can be]")
    @click.option("--bare")
    def made() -> None:
        """Make it."""

    with pytest.raises(ValueError, match="`--bare`: say what the option means"):
        commands.rows(made)
    made.params = made.params[:1]
    assert commands.rows(made) == ["| `--size` | whole number from 1 to 4,096 | as large as can be | Of it |"]


def test_the_page_of_commands_has_every_command_and_example() -> None:
    page = generate.commands_page()
    for path, command in commands.commands(cli, "simnet"):
        assert f"# {path}\n" in page
        for example in commands.examples(command):
            assert f"\n$ {example}\n" in page


def example(page: str) -> str:
    """Return the first example of a file on a page."""
    text = (generate.REFERENCE / page).read_text(encoding="utf-8")
    return text.partition("```toml\n")[2].partition("```")[0]


def test_the_examples_of_files_are_files(tmp_path: Path) -> None:
    for page, name in (("cluster.md", "our_cluster.toml"), ("workload.md", "model.toml"), ("scenario.md", "ours.toml")):
        (tmp_path / name).write_text(example(page), encoding="utf-8")
    chosen = {**tomllib.loads(example("strategies.md")), "workload": str(tmp_path / "model.toml")}
    assert len(sweeps.expand(load_experiment(str(tmp_path / "ours.toml")))) == 3
    result = simulate(load(str(tmp_path / "ours.toml"), chosen))
    assert result.speedup is not None


def test_the_examples_of_written_files_are_read(tmp_path: Path) -> None:
    page = generate.REFERENCE / "measurement-file.md"
    data = page.read_text(encoding="utf-8").partition("```json\n")[2].partition("```")[0]
    assert measurement_file.parse(data.encode(), page).series
    (tmp_path / "ours.json").write_text(
        (generate.REFERENCE / "convergence.md")
        .read_text(encoding="utf-8")
        .partition("```json\n")[2]
        .partition("```")[0]
    )
    assert convergence.load(str(tmp_path / "ours.json")).curves
    (tmp_path / "ours.toml").write_text(example("campaign.md"), encoding="utf-8")
    assert campaign.launches(campaign.load(tmp_path / "ours.toml"))

"""`simnet show`: one part or experiment as TOML, or what a recorded step holds."""

import json
from pathlib import Path
from typing import Any

import click

from simnet.cli import completing
from simnet.cli.part_kinds import find
from simnet.cli.terminal import say
from simnet.core import files
from simnet.core.errors import SimnetError
from simnet.engine.axes import POINTS
from simnet.engine.scenario import load_experiment
from simnet.strategies import step_file


@click.command(
    "show",
    help="Print the file NAME (or KIND/NAME, or a path) as TOML, an experiment with its parts filled in; of a recorded "
    "step, what it computes and sends.",
    epilog="\b\nExample:\n  simnet show clusters/a100_8x8_10gbit",
)
@click.argument("name", shell_complete=completing.names_of(*files.KINDS))
@click.option(
    "--format", "form", type=click.Choice(("table", "json", "csv")), help="Format of a recorded step.  [default: table]"
)
def command(name: str, form: str | None) -> None:
    """Run `simnet show`."""
    if files.is_path(name) and step_file.holds_step(Path(name)):
        _show_step(Path(name), form or "table")
        return
    if form is not None:
        raise SimnetError(f"--format: {form!r}: has no effect on {name!r}, which is no recorded step; drop it")
    _show_part(name)


def _show_step(path: Path, form: str) -> None:
    from simnet.report import recorded_step

    step = step_file.read(path)
    if form == "table":
        say(recorded_step.step_page(step))
    elif form == "csv":
        say(recorded_step.csv_table(step).csv())
    else:
        say(json.dumps(recorded_step.to_object(step), indent=2, allow_nan=False))


def _show_part(name: str) -> None:
    import tomli_w

    kind, name = find(name)
    table = _experiment(name) if kind == "experiments" else files.read(kind, name)
    table.pop("curves", None)  # of trainings: thousands of numbers
    say(f"# {files.label(files.locate(kind, name))}\n{_escaped(tomli_w.dumps(_without_null(table)))}")


def _without_null(data: Any) -> Any:
    """Return data without what JSON writes as null, for which TOML has no word."""
    if isinstance(data, dict):
        return {key: _without_null(value) for key, value in data.items() if value is not None}
    return [_without_null(value) for value in data if value is not None] if isinstance(data, list) else data


def _escaped(toml: str) -> str:
    """Return TOML that says the same without a character that steers a terminal."""
    shown = (letter if letter == "\n" or letter.isprintable() else _escape(letter) for letter in toml)
    return toml if toml.replace("\n", "").isprintable() else "".join(shown)


def _escape(letter: str) -> str:
    return f"\\u{ord(letter):04x}" if ord(letter) <= 0xFFFF else f"\\U{ord(letter):08x}"


def _experiment(name: str) -> dict[str, object]:
    """Return an experiment with its parts filled in, as its file could hold it."""
    experiment = load_experiment(name)
    swept: dict[str, object] = {axis.key: list(axis.values) for axis in experiment.axes}
    if experiment.listed:
        swept[POINTS] = list(experiment.listed.points())
    return {**experiment.resolved, **({"sweep": swept} if swept else {})}

"""`simnet show`: one part or experiment, as TOML."""

import click

from simnet import files
from simnet.commands.parts import find
from simnet.commands.terminal import say
from simnet.scenario import load_experiment


@click.command(
    "show",
    help="Print the part or experiment NAME (or KIND/NAME, or a path) with its sources, parts filled in, as TOML.",
    epilog="\b\nExample:\n  simnet show clusters/a100_8x8_10gbit",
)
@click.argument("name")
def command(name: str) -> None:
    """Run `simnet show`."""
    import tomli_w

    kind, name = find(name)
    table = _experiment(name) if kind == "experiments" else files.read(kind, name)
    table.pop("curves", None)  # of trainings: thousands of numbers
    say(f"# {files.label(files.locate(kind, name))}\n{tomli_w.dumps(table)}")


def _experiment(name: str) -> dict[str, object]:
    """Return an experiment with its parts filled in, as its file could hold it."""
    experiment = load_experiment(name)
    axes = {axis.key: list(axis.values) for axis in experiment.axes}
    return {**experiment.resolved, **({"sweep": axes} if axes else {})}

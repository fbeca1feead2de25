"""`simnet list`: the shipped parts and experiments."""

import click

from simnet import files
from simnet.commands.terminal import say


@click.command(
    "list",
    help="List the shipped files, or only those of KIND: clusters, workloads, calibrations, experiments, gradients, "
    "convergence or gpus.",
    epilog="\b\nExample:\n  simnet list workloads",
)
@click.argument("kind", required=False)
def command(kind: str | None) -> None:
    """Run `simnet list`."""
    from simnet.show.page import Page
    from simnet.show.table import Table

    for shown in [kind] if kind else files.KINDS:
        rows = ((name, _about(shown, name)) for name in files.names(shown))
        say(Page([f"{shown}:", Table(["", ""], rows, indent=2)]))


def _about(kind: str, name: str) -> str:
    """Return the title or the question of a part."""
    part = files.read(kind, name)
    return str(part.get("title") or part.get("question") or part.get("task") or "")

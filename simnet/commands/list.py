"""`simnet list`: the shipped parts and experiments."""

import click

from simnet import files
from simnet.commands.terminal import say


@click.command(
    "list",
    help="List the shipped parts, or those of one KIND: clusters, workloads, calibrations, experiments, gradients, "
    "convergence.",
    epilog="\b\nExample:\n  simnet list workloads",
)
@click.argument("kind", required=False)
def command(kind: str | None) -> None:
    """Run `simnet list`."""
    for shown in [kind] if kind else files.KINDS:
        names = files.names(shown)
        say(f"{shown}:")
        width = max(map(len, names), default=0)
        for name in names:
            say(f"  {name:<{width}}  {_about(shown, name)}".rstrip())


def _about(kind: str, name: str) -> str:
    """Return the title or the question of a part."""
    part = files.read(kind, name)
    return str(part.get("title") or part.get("question") or part.get("task") or "")

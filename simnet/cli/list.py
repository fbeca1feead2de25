"""`simnet list`: the shipped parts and experiments, and the strategies."""

from collections.abc import Iterator

import click

from simnet.cli import completing
from simnet.cli.terminal import say
from simnet.core import files

STRATEGIES_KIND = "strategies"


@click.command(
    "list",
    help="List what is shipped, or only that of KIND: clusters, workloads, calibrations, experiments, gradients, "
    "convergence, gpus or strategies.",
    epilog="\b\nExamples:\n  simnet list workloads\n  simnet list strategies",
)
@click.argument("kind", required=False, shell_complete=completing.one_of(*files.KINDS, STRATEGIES_KIND))
def command(kind: str | None) -> None:
    """Run `simnet list`."""
    from simnet.report.page import Page
    from simnet.report.table import Table

    for shown in [kind] if kind else (*files.KINDS, STRATEGIES_KIND):
        rows = _strategies() if shown == STRATEGIES_KIND else _parts(shown)
        say(Page([f"{shown}:", Table(["", ""], rows, indent=2)]))


def _parts(kind: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each part, and its title or its question."""
    for name in files.names(kind):
        part = files.read(kind, name)
        yield name, str(part.get("title") or part.get("question") or part.get("task") or "")


def _strategies() -> Iterator[tuple[str, str]]:
    """Yield the kind of each strategy, and what it does, with its title."""
    from simnet.core.registry import tag_of
    from simnet.strategies import STRATEGIES

    for strategy in STRATEGIES:
        what = " ".join((strategy.__doc__ or "").partition("\n\n")[0].split()).rstrip(".")
        yield tag_of(strategy), what if strategy.title in what else f"{strategy.title}: {what}"

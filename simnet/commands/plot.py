"""`simnet plot`: the results of a sweep or of one run to figures."""

from pathlib import Path

import click

from simnet.commands import options
from simnet.commands.terminal import say


@click.command(
    "plot",
    help="Draw RESULTS, the results.json of a sweep or its directory: speedup, throughput, breakdown, heat map. "
    "Of one run (simnet simulate --format json), draw what its result hangs on.",
    epilog="\b\nExample:\n  simnet plot out/demo -o out/demo --format pdf",
)
@click.argument("results", type=options.INPUT_PATH)
@options.directory("Directory for the figures.", required=True)
@options.form("png", "pdf", "svg", of="the figures")
def command(results: Path, output: Path, form: str) -> None:
    """Run `simnet plot`."""
    from simnet.show.plot import plot

    for path in plot(results, output, form):  # type: ignore[arg-type]
        say(str(path))

"""`simnet plot`: the results of a sweep to figures."""

from pathlib import Path

import click

from simnet.commands.output import OUTPUT


@click.command(
    "plot",
    help="Draw RESULTS, the results.json of a sweep or its directory: speedup, throughput, breakdown, heat map.",
    epilog="Example: simnet plot out/demo -o out/demo --format pdf",
)
@click.argument("results", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=OUTPUT, help="Directory for the figures.")
@click.option("--format", "form", type=click.Choice(["png", "pdf", "svg"]), default="png", show_default=True)
def command(results: Path, output: Path, form: str) -> None:
    """Run `simnet plot`."""
    from simnet.show.plot import plot

    for path in plot(results, output, form):  # type: ignore[arg-type]
        click.echo(path)

"""`simnet plot`: the results of a sweep or of one run to figures."""

from dataclasses import replace
from pathlib import Path

import click

from simnet.cli import options
from simnet.cli.terminal import say, tell


@click.command(
    "plot",
    help="Draw RESULTS, the results.json of a sweep or its directory: speedup, throughput, breakdown, heat map. "
    "Of one run (simnet simulate --format json), draw where its time goes and what its result hangs on.",
    epilog="\b\nExample:\n  simnet plot out/demo -o out/demo --style paper --format pdf",
)
@click.argument("results", type=options.INPUT_PATH)
@options.directory("Directory for the figures.", required=True)
@options.form("png", "pdf", "svg", of="the figures")
@options.STYLE
@click.option(
    "--figure", "names", multiple=True, metavar="NAME", help="Draw this figure alone, such as heat_map; repeatable."
)
@click.option(
    "--title/--no-title",
    "has_titles",
    default=None,
    help="Write the title and the source into the figure.  [default: not with --style paper, whose caption is printed]",
)
def command(  # noqa: PLR0913, PLR0917 - one argument an option
    results: Path, output: Path, form: str, style: str, names: tuple[str, ...], has_titles: bool | None
) -> None:
    """Run `simnet plot`."""
    from simnet.report.figure import style_named
    from simnet.report.plot import notes, plot

    look = style_named(style)
    if has_titles is not None:
        look = replace(look, has_titles=has_titles)
    for path, caption in plot(results, output, form, look, names).items():  # type: ignore[arg-type]
        say(str(path))
        if not look.has_titles and caption:
            tell(f"caption of {path.name}: {caption}")
    for note in () if names else notes(results):
        tell(f"note: {note}")

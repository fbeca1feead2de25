"""`simnet validate`: predictions against published measurements, with a verdict."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simnet.commands.main import tell
from simnet.commands.output import OUTPUT, check_writable
from simnet.errors import SimnetError

if TYPE_CHECKING:
    from simnet.validation.outcome import Outcome

PAGE = "validation.md"


@click.command(
    "validate",
    help="Calibrate on some rows of each publication, predict the others, and compare.\n\n"
    "Exit code 1: a set is worse than its target, or where that is known to be missed, than the recorded "
    "miss.",
    epilog="\b\nExample:\n  simnet validate --published --set hkbu_bsp",
)
@click.option("--published", is_flag=True, help="Compare with the published measurements that are shipped.")
@click.option("--set", "names", multiple=True, metavar="NAME", help="Only this set; repeatable.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("-o", "--output", type=OUTPUT, help="Also write validation.md and figures to this directory.")
@click.pass_context
def command(context: click.Context, published: bool, names: tuple[str, ...], form: str, output: Path | None) -> None:
    """Run `simnet validate`."""
    from simnet.validation import measurements, sets, terminal

    if not published:
        raise SimnetError("validate: nothing to compare with: add --published")
    wanted = tuple(dict.fromkeys(names)) or sets.NAMES
    _check(output, names)
    rows = measurements.load()
    outcomes = [sets.run(name, rows, alternatives=output is not None) for name in wanted]
    click.echo(json.dumps(terminal.to_object(outcomes), indent=2) if form == "json" else terminal.table(outcomes))
    if output is not None:
        _write(outcomes, output)
    if not all(outcome.holds for outcome in outcomes):
        context.exit(1)


def _check(output: Path | None, names: tuple[str, ...]) -> None:
    """Refuse what would fail or mislead before anything is computed.

    Raises:
        SimnetError: an unknown set, a page of a part of the sets, or a directory that cannot be written.
    """
    from simnet.validation import sets

    for name in names:
        sets.check(name)
    if output is None:
        return
    if names:
        raise SimnetError("validate: --set with -o: the page holds every set; drop one of them")
    if output.exists() and not output.is_dir():
        raise SimnetError(f"{output}: is a file; name a directory with -o")
    check_writable(output / PAGE)


def _write(outcomes: "list[Outcome]", output: Path) -> None:
    """Write the page and its figures."""
    from simnet.report.files import write_file
    from simnet.validation import figures, measurements, page

    for outcome in outcomes:
        write_file(output / "figures" / page.figure_name(outcome), figures.png(outcome))
    write_file(output / PAGE, page.page(outcomes, measurements.load().rows).encode())
    tell(f"wrote {output / PAGE} and {len(outcomes)} figures")

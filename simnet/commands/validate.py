"""`simnet validate`: predictions against published measurements, with a verdict."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simnet.commands.main import is_watched, tell
from simnet.commands.output import OUTPUT, check_writable
from simnet.commands.settings import DRAWS, add_draws
from simnet.errors import SimnetError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simnet.validation.measured import Step
    from simnet.validation.outcome import Outcome

PAGE = "validation.md"


@click.command(
    "validate",
    help="Compare predicted times with measured ones.\n\n"
    "With EXPERIMENT and MEASUREMENTS: the steps of simnet measure training, with the workload and the calibration of "
    "the experiment. Measure those on other settings than the calibration was fitted to; that is not checked. Exit "
    "code 1: the errors are above --mean or --worst.\n\n"
    "With --published: calibrate on some rows of each publication, predict the others, and compare. Exit code 1: a "
    "set is worse than its target, or where that is known to be missed, than the recorded miss.",
    epilog="\b\nExamples:\n  simnet validate --published --set hkbu_bsp\n"
    "  simnet validate mine.toml training.json --draws 200 --mean 10",
)
@click.argument("experiment", required=False)
@click.argument("files", nargs=-1, metavar="[MEASUREMENTS]...", type=click.Path(path_type=Path))
@click.option("--model", help="Only the steps of this model.")
@click.option("--mean", type=click.FloatRange(0), help="Largest mean error [%].")
@click.option("--worst", type=click.FloatRange(0), help="Largest error of one point [%].")
@DRAWS
@click.option("--published", is_flag=True, help="Compare with the published measurements that are shipped.")
@click.option("--set", "names", multiple=True, metavar="NAME", help="Only this set; repeatable.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("-o", "--output", type=OUTPUT, help="Also write validation.md and figures to this directory.")
@click.pass_context
def command(  # noqa: PLR0913, PLR0917 - click gives every option
    context: click.Context,
    experiment: str | None,
    files: tuple[Path, ...],
    model: str | None,
    mean: float | None,
    worst: float | None,
    draws: int | None,
    published: bool,
    names: tuple[str, ...],
    form: str,
    output: Path | None,
) -> None:
    """Run `simnet validate`."""
    from simnet.validation import measurements, sets, terminal

    if experiment is not None:
        if published or names or output or form != "table":
            raise SimnetError("validate: --published, --set, --format and -o: are not for measurements; drop them")
        if not _holds(experiment, files, model, draws, (mean, worst)):
            context.exit(1)
        return
    if not published:
        raise SimnetError("validate: nothing to compare with: add --published, or EXPERIMENT and MEASUREMENTS")
    wanted = tuple(dict.fromkeys(names)) or sets.NAMES
    _check(output, names)
    rows = measurements.load()
    outcomes = [sets.run(name, rows, alternatives=output is not None) for name in wanted]
    click.echo(json.dumps(terminal.to_object(outcomes), indent=2) if form == "json" else terminal.table(outcomes))
    if output is not None:
        _write(outcomes, output)
    if not all(outcome.holds for outcome in outcomes):
        context.exit(1)


def _holds(
    experiment: str, files: tuple[Path, ...], model: str | None, draws: int | None, limits: tuple[float | None, ...]
) -> bool:
    """Compare measured steps with an experiment, and tell whether the errors are within the limits."""
    from simnet.calibration.measurement import read
    from simnet.scenario import load_experiment
    from simnet.validation import measured
    from simnet.validation.outcome import mean_error, worst_error

    if not files:
        raise SimnetError("validate: no MEASUREMENTS: give files of simnet measure training")
    settings: dict[str, object] = {}
    add_draws(settings, draws)
    scenario = load_experiment(experiment, settings).at({})
    known = [read(path) for path in files]
    found = measured.points(scenario, known, model, _watched)
    click.echo(measured.table(found))
    reached = mean_error(found), worst_error(found)
    return all(limit is None or 100 * error <= limit for error, limit in zip(reached, limits, strict=True))


def _watched(steps: "list[Step]") -> "Iterator[Step]":
    """Go through steps, with a bar on stderr if that is a terminal."""
    if not is_watched():
        yield from steps
        return
    with click.progressbar(steps, label="predicting", show_pos=True, file=sys.stderr) as bar:
        yield from bar


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

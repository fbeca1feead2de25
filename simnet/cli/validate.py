"""`simnet validate`: predictions against published measurements, with a verdict."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from simnet.api import measurements
from simnet.cli import options
from simnet.cli.output import check_file, check_format, check_writable, say, tell
from simnet.core.errors import SimnetError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simnet.calibration.comparison import Comparison
    from simnet.validation.coverage import Evidence
    from simnet.validation.outcome import Outcome

PAGE = "validation.md"


@options.command(
    "validate",
    help="Compare predicted times with measured ones.\n\n"
    "With EXPERIMENT and MEASUREMENTS: predict the steps of simnet measure training with the workload and the "
    "calibration of EXPERIMENT. Measurements to which the calibration was fitted are refused. The exit code is 1 if "
    "an error is above --mean or --worst, else 0 whatever the errors.\n\n"
    "With DIR of simnet advise --proof, after its script ran: compare its steps with what was predicted, name the part "
    "that is off, and write DIR/calibration.toml, which explains it.\n\n"
    "With --published: calibrate on some rows of each publication and predict the others, with 90 % intervals where "
    "all sets are compared. The exit code is 1 if a set is worse than its bound.",
    epilog="\b\nExamples:\n  simnet validate --published --set hkbu_bsp\n  simnet validate proof/\n"
    "  simnet validate mine.toml training.json --draws 200 --mean 10",
)
@click.argument(
    "experiment", required=False, metavar="[EXPERIMENT|DIR]", shell_complete=options.complete_names("experiments")
)
@click.argument("files", nargs=-1, metavar="[MEASUREMENTS]...", type=options.INPUT_PATH)
@options.of(
    measurements.validate,
    model={},
    nic_gbit_per_s={},
)
@click.option(
    "--figure", type=options.OUTPUT_PATH, help="Draw predicted over measured times to this .png, .pdf or .svg file."
)
@options.MEAN
@options.WORST
@options.DRAWS
@options.rare("--published", is_flag=True, help="Compare with the shipped published measurements.")
@options.rare(
    "--set", "names", multiple=True, metavar="NAME", help="Compare only this set; repeatable.  [default: all]"
)
@options.form("table", "json")
@options.directory("Also write validation.md, its data and figures to this directory.")
@click.pass_context
def command(  # noqa: PLR0913, PLR0917 - click gives every option
    context: click.Context,
    experiment: str | None,
    files: tuple[Path, ...],
    model: str | None,
    nic_gbit_per_s: float | None,
    figure: Path | None,
    mean: float | None,
    worst: float | None,
    draws: int | None,
    published: bool,
    names: tuple[str, ...],
    form: str,
    output: Path | None,
) -> None:
    """Run `simnet validate`."""
    from simnet.calibration.comparison import within

    if experiment is None:
        _check_published(figure, nic_gbit_per_s, published=published)
        _check(output, names)
    elif published or names or output or form != "table":
        raise SimnetError(
            "validate: --published, --set, --format and -o: need no EXPERIMENT; drop them, or drop EXPERIMENT"
        )
    else:
        check_file(figure, "--figure")
        check_format(figure)
    answer = options.asked(measurements.validate)(
        experiment, files, published=published, sets=names, model=model, nic_gbit_per_s=nic_gbit_per_s, draws=draws
    )
    if answer.verdict is not None:
        tell(f"wrote {Path(str(experiment), 'calibration.toml')}")
    say(answer.to_json() if form == "json" else answer.page())
    if experiment is None:
        if output is not None and answer.evidence is not None:
            _write(answer.outcomes, answer.evidence, output)
        holds = all(outcome.holds for outcome in answer.outcomes)
    else:
        if figure is not None:
            _draw(answer.comparisons, figure, experiment)
        holds = within(answer.comparisons, mean, worst)
    if not holds:
        context.exit(1)


def _check_published(figure: Path | None, nic_gbit_per_s: float | None, *, published: bool) -> None:
    """Refuse options that need an experiment, and a command that names nothing."""
    if nic_gbit_per_s is not None:
        raise SimnetError("validate: --nic-gbit-per-s: needs EXPERIMENT; drop it")
    if figure is not None:
        raise SimnetError(
            "validate: --figure: needs EXPERIMENT and MEASUREMENTS; for the figures of --published, use -o"
        )
    if not published:
        raise SimnetError("validate: no measurements: name EXPERIMENT and MEASUREMENTS, or add --published")


def _draw(points: "Sequence[Comparison]", path: Path, experiment: str) -> None:
    from simnet.core.files import write_file
    from simnet.report import figures
    from simnet.report.figure import format_of

    title = f"{Path(experiment).stem}: predicted and measured"
    write_file(path, figures.steps(points, title, format_of(path)))
    tell(f"wrote {path}")


def _check(output: Path | None, names: tuple[str, ...]) -> None:
    """Refuse what would fail or mislead before anything is computed.

    Raises:
        SimnetError: an unknown set, a page of a part of the sets, or a directory that cannot be written.
    """
    from simnet.validation import published as sets

    for name in names:
        sets.check(name)
    if output is None:
        return
    if names:
        raise SimnetError("validate: --set and -o: the page must hold every set; drop one of them")
    if output.exists() and not output.is_dir():
        raise SimnetError(f"{output}: is a file; name a directory with -o")
    check_writable(output / PAGE, inside=output)


def _write(outcomes: "Sequence[Outcome]", evidence: "Evidence", output: Path) -> None:
    """Write the page, its data and its figures."""
    from simnet.core.files import write_file
    from simnet.report import figures, validation
    from simnet.validation import published_rows

    for outcome in outcomes:
        write_file(output / "figures" / validation.figure_name(outcome), figures.published(outcome), output)
    page = validation.page(outcomes, published_rows.load().rows, evidence)
    for name, text in {PAGE: page, **validation.data(outcomes, evidence)}.items():
        write_file(output / name, text.encode(), output)
    tell(f"wrote {output / PAGE}, its data and {len(outcomes)} figures")

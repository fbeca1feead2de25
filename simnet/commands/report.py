"""`simnet report`: an answer as one HTML file."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simnet.commands import options
from simnet.commands.output import check_file, emit
from simnet.commands.settings import add_draws, read_settings
from simnet.commands.terminal import progress, tell
from simnet.errors import SimnetError

if TYPE_CHECKING:
    from simnet.report.contents import Contents


@click.command(
    "report",
    help="Write what RESULTS of a sweep show, or the answer to SCENARIO and what is around it, as one HTML file.\n\n"
    "RESULTS is the folder or the results.json that simnet sweep -o has written; SCENARIO the name of a shipped "
    "experiment or a file. The page needs no network: verdict with its interval, interactive figures, what else could "
    "be used, every assumption with its source, and how to repeat it.",
    epilog="\b\nExamples:\n  simnet report bert_base_10gbit -o report.html\n"
    "  simnet sweep speedup -o out/speedup && simnet report out/speedup -o speedup.html\n"
    "  simnet report mine.toml --measured training.json -o report.html",
)
@click.argument("source", metavar="RESULTS|SCENARIO")
@options.SET
@options.DRAWS
@click.option(
    "--measured",
    "measurements",
    multiple=True,
    type=options.INPUT_PATH,
    help="Measured steps of simnet measure training, which SCENARIO predicts; repeatable.",
)
@click.option(
    "--systems",
    metavar="NAMES",
    help="Rank only these alternatives: titles or kinds, such as 'BinSGDM,power_sgd'; '' none.  [default: all]",
)
@click.option("-o", "--output", required=True, type=options.OUTPUT_PATH, help="Write the page to this file.")
@options.JOBS
def command(  # noqa: PLR0913, PLR0917 - one argument an option
    source: str,
    settings: tuple[str, ...],
    draws: int | None,
    measurements: tuple[Path, ...],
    systems: str | None,
    output: Path,
    jobs: int | None,
) -> None:
    """Run `simnet report`."""
    from simnet import files
    from simnet.report.report_page import Origin, check_plotly, report_page

    check_plotly()
    fixed = read_settings(settings)
    add_draws(fixed, draws)
    check_file(output)
    if _holds_results(Path(source)):
        if fixed or measurements or systems is not None:
            raise SimnetError(f"{source}: results of a sweep: -o alone has an effect; drop the other options")
        contents, commands = _of_results(Path(source)), []
    else:
        contents = _of_scenario(source, fixed, measurements, _names(systems), jobs)
        commands = _commands(source, settings, draws)
    again = shlex.join(["simnet", "report", source, *_given(settings, draws, measurements, systems), "-o", str(output)])
    emit(report_page(contents, Origin.of([again, *commands], files.inputs())), output)
    tell(f"wrote {output}")


def _holds_results(source: Path) -> bool:
    """Return whether a sweep has written a file or a folder."""
    if source.is_dir():
        return True
    return source.suffix == ".json" and source.is_file() and b'"points"' in source.read_bytes()


def _of_results(source: Path) -> "Contents":
    from simnet import results_file
    from simnet.report.contents import of_sweep

    return of_sweep(results_file.read(source))


def _of_scenario(
    source: str, fixed: dict[str, object], paths: tuple[Path, ...], systems: list[str] | None, jobs: int | None
) -> "Contents":
    from simnet.api.measurements import validate_steps
    from simnet.report import contents
    from simnet.scenario import load
    from simnet.workers import look_rarely_for_circles, num_cores

    look_rarely_for_circles()
    scenario = load(source, fixed)
    measured = validate_steps(source, paths, None, None, None).comparisons if paths else ()
    with progress(contents.num_ticks(scenario, systems), "simulating") as tick:
        return contents.of_scenario(scenario, tick, systems=systems, measured=measured, jobs=jobs or num_cores())


def _names(systems: str | None) -> list[str] | None:
    """Return the systems to rank: none of them is all, None is none."""
    names = [name.strip() for name in (systems or "").split(",") if name.strip()]
    return None if systems is not None and not names else names


def _given(
    settings: tuple[str, ...], draws: int | None, measurements: tuple[Path, ...] = (), systems: str | None = None
) -> list[str]:
    """Return options as they were given."""
    given = [text for setting in settings for text in ("--set", setting)]
    given += ["--draws", str(draws)] if draws is not None else []
    given += ["--systems", systems] if systems is not None else []
    return given + [text for path in measurements for text in ("--measured", str(path))]


def _commands(source: str, settings: tuple[str, ...], draws: int | None) -> list[str]:
    """Return the commands that print what the page shows."""
    from simnet.report.contents import BANDWIDTH, ENDS

    given = _given(settings, draws)
    over = ["--over", BANDWIDTH, "--from", ENDS[0], "--to", ENDS[1]]
    lines = [["simulate", source], ["crossover", source, *over], ["advise", source]]
    return [shlex.join(["simnet", *line, *given]) for line in lines]

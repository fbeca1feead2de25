"""`simnet report`: an answer as one HTML file, as figures, or as a page with sliders."""

import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simnet.cli import options
from simnet.cli.options import add_draws, read_settings
from simnet.cli.output import check_file, emit, say, tell
from simnet.core.errors import SimnetError
from simnet.report.progress_bar import progress

if TYPE_CHECKING:
    from simnet.report.contents import Contents


@options.command(
    "report",
    help="Write what RESULTS show, or the answer to SCENARIO and what is around it, as one HTML file.\n\n"
    "RESULTS is the folder or the results.json that simnet sweep -o has written, or the JSON of simnet simulate; "
    "SCENARIO the name of a shipped experiment or a file. The page needs no "
    "network: verdict with its interval, interactive figures, what else could be used, every assumption with its "
    "source, and how to repeat it.",
    epilog="\b\nExamples:\n  simnet report bert_base_10gbit -o report.html\n"
    "  simnet sweep speedup -o out/speedup && simnet report out/speedup -o speedup.html\n"
    "  simnet report mine.toml --measured training.json -o report.html",
)
@click.argument("source", metavar="RESULTS|SCENARIO", shell_complete=options.complete_names("experiments"))
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
@options.mode(
    "--figures",
    of="report.plot",
    metavar="DIR",
    help="Draw RESULTS as figures: simnet report --figures --help.",
)
@options.mode(
    "--static",
    of="report.explore",
    metavar="FILE",
    help="Write SCENARIO as a page with sliders: simnet report --static --help.",
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
    from simnet.api.questions import experiment_of
    from simnet.core import files
    from simnet.report.report_page import Origin, check_plotly, report_page

    start_s = time.perf_counter()
    check_plotly()
    fixed = read_settings(settings)
    add_draws(fixed, draws)
    check_file(output)
    commands: list[str] = []
    if _is_sweep(Path(source)):
        if fixed or measurements or systems is not None:
            raise SimnetError(f"{source}: results of a sweep: -o alone has an effect; drop the other options")
        contents = _of_sweep(Path(source))
    else:
        experiment_of(source, fixed, None, needs_strategy=False).at({})
        check_file(output)  # again, now that it is known which files the scenario is made of
        contents = _of_scenario(source, fixed, measurements, _names(systems), jobs)
        commands = _commands(source, settings, draws)
    again = shlex.join(["simnet", "report", source, *_words(settings, draws, measurements, systems), "-o", str(output)])
    emit(report_page(contents, Origin.of([again, *commands], files.inputs())), output)
    tell(f"wrote {output} in {time.perf_counter() - start_s:.1f} s")


def _is_sweep(source: Path) -> bool:
    """Return whether a folder or a file has results of many points; not a scenario, nor a run, which is one point."""
    from simnet.analysis import results_file
    from simnet.core import files

    if source.is_dir():
        return True
    if source.suffix != ".json" or not source.is_file():
        return False
    return b'"points"' in files.read_bytes(source, results_file.MAX_BYTES)


def _of_sweep(source: Path) -> "Contents":
    from simnet.analysis import results_file
    from simnet.report.contents import of_sweep

    return of_sweep(results_file.read(source))


def _of_scenario(
    source: str, fixed: dict[str, object], paths: tuple[Path, ...], systems: list[str] | None, jobs: int | None
) -> "Contents":
    from simnet.analysis import results_file
    from simnet.analysis.workers import num_cores, raise_gc_threshold
    from simnet.api.measurements import validate
    from simnet.api.questions import experiment_of
    from simnet.report import contents

    raise_gc_threshold()
    scenario = experiment_of(source, fixed, None, jobs=jobs or num_cores()).at({})
    measured = options.asked(validate)(source, paths, settings=fixed).comparisons if paths else ()
    known = None if fixed or not source.endswith(".json") else results_file.read_run(Path(source))
    with progress(contents.num_ticks(scenario, systems), "simulating") as tick:
        return contents.of_scenario(
            scenario, tick, systems=systems, measured=measured, jobs=jobs or num_cores(), known=known
        )


def _names(systems: str | None) -> list[str] | None:
    """Return the systems to rank: none of them is all, None is none."""
    names = [name.strip() for name in (systems or "").split(",") if name.strip()]
    return None if systems is not None and not names else names


def _words(
    settings: tuple[str, ...], draws: int | None, measurements: tuple[Path, ...] = (), systems: str | None = None
) -> list[str]:
    """Return options as they were given."""
    words = [text for setting in settings for text in ("--set", setting)]
    words += ["--draws", str(draws)] if draws is not None else []
    words += ["--systems", systems] if systems is not None else []
    return words + [text for path in measurements for text in ("--measured", str(path))]


def _commands(source: str, settings: tuple[str, ...], draws: int | None) -> list[str]:
    """Return the commands that print what the page shows."""
    from simnet.report.contents import BANDWIDTH, ENDS

    words = _words(settings, draws)
    over = ["--break-even", BANDWIDTH, "--from", ENDS[0], "--to", ENDS[1]]
    lines = [["simulate", source], ["sweep", source, *over], ["advise", source]]
    return [shlex.join(["simnet", *line, *words]) for line in lines]


@options.command(
    "plot",
    help="Draw RESULTS, the results.json of a sweep or its directory: speedup, throughput, breakdown, heat map. "
    "Of one run (simnet simulate --format json), draw where its time goes and what its result is most sensitive to.",
    epilog="\b\nExample:\n  simnet report out/demo --figures out/demo --style paper --format pdf",
)
@click.argument("results", type=options.INPUT_PATH)
@options.directory("Directory for the figures.", "--figures", required=True)
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
def plot(  # noqa: PLR0913, PLR0917 - one argument an option
    results: Path, output: Path, form: str, style: str, names: tuple[str, ...], has_titles: bool | None
) -> None:
    """Run `simnet report --figures`."""
    from simnet.report.figure import style_named
    from simnet.report.plot import notes
    from simnet.report.plot import plot as draw

    look = style_named(style)
    if has_titles is not None:
        look = replace(look, has_titles=has_titles)
    for path, caption in draw(results, output, form, look, names).items():  # type: ignore[arg-type]
        say(str(path))
        if not look.has_titles and caption:
            tell(f"caption of {path.name}: {caption}")
    for note in () if names else notes(results):
        tell(f"note: {note}")


@options.command(
    "explore",
    help="Write SCENARIO as one HTML file whose sliders and pickers change nodes, bandwidth, the time of compressing "
    "kernels, strategy and what it is compared with.\n\n"
    "Every place is simulated beforehand, so the page needs no network and no server.",
    epilog="\b\nExample:\n  simnet report bert_base_10gbit --static page.html",
)
@click.argument("scenario", default="bert_base_10gbit", shell_complete=options.complete_names("experiments"))
@options.SET
@click.option("--static", "output", required=True, type=options.OUTPUT_PATH, help="Write the page to this file.")
def explore(scenario: str, settings: tuple[str, ...], output: Path) -> None:
    """Run `simnet report --static`."""
    from simnet.api.questions import experiment_of
    from simnet.engine.prepared_scenario import is_folded
    from simnet.report.explorer import explorer_page, named_by, num_places

    experiment = experiment_of(scenario, read_settings(settings), None, jobs=None)
    base = experiment.at({})
    if not is_folded(base):
        raise SimnetError(
            f"{base.name}: does not run on the folded executor: a page has thousands of places; drop slow_nodes, "
            "faults and run.fidelity"
        )
    check_file(output, "--static")
    with progress(num_places(base), "simulating") as tick:
        page = explorer_page(base, named_by(scenario, experiment.overrides), tick)
    emit(page, output)
    tell(f"wrote {output}")

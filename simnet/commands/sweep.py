"""`simnet sweep`: a grid of scenarios to a table, a CSV file and a JSON file."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simnet.commands import options
from simnet.commands.main import INTERRUPTED
from simnet.commands.output import check_replaceable, emit
from simnet.commands.settings import add_draws, read_axes
from simnet.commands.terminal import progress, tell
from simnet.result import SweepResult, to_json

if TYPE_CHECKING:
    from simnet.show.page import Page
    from simnet.sweep import SweepPoint

MOST_POINTS = 200
"""Points of a sweep up to which each gets an interval by default; beyond, it would take minutes."""
RESULTS = ("results.csv", "results.json")


@click.command(
    "sweep",
    help="Simulate every point of the [sweep] of SCENARIO, the name of a shipped experiment or a .toml file.\n\n"
    "A key with several values in --set is swept as well. A sweep that was stopped resumes when it is started again "
    "with the same -o.",
    epilog="\b\nExample:\n  simnet sweep bert_base_10gbit --set cluster.num_nodes=1,2,4,8 -o out/bert --jobs 2",
)
@click.argument("scenario")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=V1,V2,...",
    help="Replace a value, or sweep over several; repeatable.",
)
@options.form("table", "json", "csv")
@options.directory("Directory for results.csv, results.json and the journal from which a stopped sweep resumes.")
@options.DRAWS
@options.JOBS
def command(  # noqa: PLR0913, PLR0917 - click gives every option
    scenario: str, settings: tuple[str, ...], form: str, output: Path | None, draws: int | None, jobs: int | None
) -> None:
    """Run `simnet sweep`."""
    from simnet import sweep
    from simnet.scenario import load_experiment
    from simnet.workers import num_cores

    fixed, axes = read_axes(settings)
    add_draws(fixed, draws)
    experiment = load_experiment(scenario, fixed, axes)
    start = time.perf_counter()
    points = _with_draws(sweep.expand(experiment))
    files = [output / name for name in RESULTS] if output else []
    for file in files:
        check_replaceable(file, output)
    done: list[int] = []  # its first entry counts the points of an earlier, stopped sweep
    with _explain_resume(output), _progress(len(points), done) as progress:
        results = sweep.run(points, output, jobs or num_cores(), progress)
    whole = sweep.collect_results(experiment, points, results)
    shown = _text(whole, form)  # before anything is written: it may be refused
    for file in files:
        emit(_text(whole, file.suffix.removeprefix(".")), file, output)
    emit(shown, None)
    tell(_summary(len(points), done[0], time.perf_counter() - start, files))
    if len(points) > MOST_POINTS and draws is None and any(point.baseline for point in whole.points):
        tell(f"note: more than {MOST_POINTS} points get no intervals of their own accord; --draws 20 makes them")


def _with_draws(points: "tuple[SweepPoint, ...]") -> "tuple[SweepPoint, ...]":
    """Return the points with draws for their intervals, fewer the more points there are; of very many, without."""
    from simnet.uncertainty import with_default_draws

    if len(points) > MOST_POINTS:
        return points
    return tuple(replace(point, scenario=with_default_draws(point.scenario, len(points))) for point in points)


def _summary(num_points: int, num_kept: int, elapsed_s: float, files: list[Path]) -> str:
    """Return one line about the points, the time and the written files."""
    kept = f", {num_kept} of them finished before" if num_kept else ""
    written = f"; wrote {' and '.join(map(str, files))}" if files else ""
    return f"{num_points} points in {elapsed_s:.1f} s{kept}{written}"


def _text(whole: SweepResult, form: str) -> "str | Page":
    """Return the results of a sweep in one of the formats."""
    if form == "json":
        return to_json(whole, indent=1).decode()
    if form == "csv":
        from simnet.show.rows import row, table

        return table(row(point, point.set) for point in whole.points).csv()
    from simnet.show.sweep_page import sweep_page

    return sweep_page(whole)


@contextmanager
def _progress(num_points: int, done: list[int]) -> Iterator[Callable[[int], object]]:
    """Append the numbers of finished points to `done`, and show them as a bar on stderr if that is a terminal."""
    with progress(num_points, "simulating") as advance:

        def note(count: int) -> None:
            done.append(count)
            advance(count)

        yield note


@contextmanager
def _explain_resume(output: Path | None) -> Iterator[None]:
    """Say on Ctrl-C which results are kept, and exit."""
    kept = "the same command resumes from the finished points" if output else "nothing is kept without -o DIR"
    try:
        yield
    except KeyboardInterrupt:
        tell(f"\nsimnet: sweep: interrupted; {kept}")
        raise SystemExit(INTERRUPTED) from None

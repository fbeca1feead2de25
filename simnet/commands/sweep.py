"""`simnet sweep`: a grid of scenarios, or a list of them, to a table, a CSV file and a JSON file."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simnet.commands import completing, options
from simnet.commands.main import INTERRUPTED
from simnet.commands.output import check_replaceable, emit
from simnet.commands.settings import add_draws, read_axes, read_points, read_points_file
from simnet.commands.terminal import progress, tell
from simnet.errors import SimnetError
from simnet.result import SweepResult, to_json

if TYPE_CHECKING:
    from simnet.axes import PointList
    from simnet.show.page import Page

RESULTS = ("results.csv", "results.json")
REFUSED = 1
"""Exit code of --strict where points are refused."""


@click.command(
    "sweep",
    help="Simulate every point of the [sweep] of SCENARIO, the name of a shipped experiment or a .toml file.\n\n"
    "A key with several values in --set is swept as well. --point and --points sweep a list of points in place of the "
    "file's [sweep], at every value of --set. A point that does not hold together is skipped: the end of the output, "
    "results.json and the journal say why. The exit code is 0 if any point was simulated, 2 if none was. A sweep that "
    "was stopped resumes when it is started again with the same -o.",
    epilog="\b\nExamples:\n  simnet sweep bert_base_10gbit --set cluster.num_nodes=1,2,4,8 -o out/bert --jobs 2\n"
    "  simnet sweep bert_base_10gbit --set run.global_batch=4096 --set cluster.num_nodes=2,4,8,16\n"
    "  simnet sweep bert_base_10gbit --point 'cluster.num_nodes=4, workload.batch_per_rank=64' "
    "--point 'cluster.num_nodes=8, workload.batch_per_rank=32'\n"
    "  simnet sweep bert_base_10gbit --points runs.csv --set 'strategy=binsgdm,one_bit_adam'",
)
@options.SCENARIO
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=V1,V2,...",
    shell_complete=completing.keys,
    help="Replace a value, or sweep over several; repeatable.",
)
@click.option(
    "--point",
    "point_texts",
    multiple=True,
    metavar="KEY=V,KEY=V,...",
    shell_complete=completing.keys,
    help="Simulate this point; repeatable, with the same keys.",
)
@click.option(
    "--points",
    "points_file",
    type=options.INPUT_PATH,
    metavar="FILE.csv",
    help="Simulate the points of a CSV file: keys in the head, a point in each line.",
)
@options.form("table", "json", "csv")
@options.directory("Directory for results.csv, results.json and the journal from which a stopped sweep resumes.")
@options.DRAWS
@options.JOBS
@click.option("--strict", is_flag=True, help="Exit with code 1 if a point is refused; the others are written first.")
@click.pass_context
def command(  # noqa: PLR0913, PLR0917 - click gives every option
    ctx: click.Context,
    scenario: str,
    settings: tuple[str, ...],
    point_texts: tuple[str, ...],
    points_file: Path | None,
    form: str,
    output: Path | None,
    draws: int | None,
    jobs: int | None,
    strict: bool,
) -> None:
    """Run `simnet sweep`."""
    from simnet import sweeps
    from simnet.scenario import load_experiment
    from simnet.workers import num_cores

    fixed, axes = read_axes(settings)
    add_draws(fixed, draws)
    experiment = load_experiment(scenario, fixed, axes, _listed(point_texts, points_file))
    start = time.perf_counter()
    points = sweeps.with_draws(sweeps.points_of(experiment))
    sweeps.check_any(points)
    files = [output / name for name in RESULTS] if output else []
    for file in files:
        check_replaceable(file, output)
    done: list[int] = []  # its first entry counts the points of an earlier, stopped sweep
    with _explain_resume(output), _progress(len(points), done) as progress:
        results = sweeps.run(points, output, jobs or num_cores(), progress)
    whole = sweeps.collect_results(experiment, points, results)
    shown = _text(whole, form)  # before anything is written: it may be refused
    for file in files:
        emit(_text(whole, file.suffix.removeprefix(".")), file, output)
    emit(shown, None)
    if form != "table":  # whose end has them
        _tell_refused(whole)
    tell(_summary(whole, done[0], time.perf_counter() - start, files))
    if len(points) > sweeps.MOST_DRAWN and draws is None and any(point.baseline for point in whole.points):
        tell(f"note: more than {sweeps.MOST_DRAWN} points get no intervals of their own accord; --draws 20 makes them")
    if strict and whole.refused:
        ctx.exit(REFUSED)


def _listed(texts: Sequence[str], file: Path | None) -> "PointList | None":
    """Return the points that --point or --points list.

    Raises:
        SimnetError: both do, or they are none.
    """
    if texts and file is not None:
        raise SimnetError(f"--points: {file}: --point lists points, too; give one of the two")
    if file is not None:
        return read_points_file(file)
    return read_points(texts) if texts else None


def _tell_refused(whole: SweepResult) -> None:
    """Say on stderr which points are refused, and why."""
    from simnet.show.sweep_page import refused_lines

    for line in refused_lines(whole):
        tell(line)


def _summary(whole: SweepResult, num_kept: int, elapsed_s: float, files: list[Path]) -> str:
    """Return one line about the points, the time and the written files."""
    num_points = len(whole.points) + len(whole.refused)
    refused = f", {len(whole.refused)} of them refused" if whole.refused else ""
    kept = f", {num_kept} of them finished before" if num_kept else ""
    written = f"; wrote {' and '.join(map(str, files))}" if files else ""
    return f"{num_points} points in {elapsed_s:.1f} s{refused}{kept}{written}"


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

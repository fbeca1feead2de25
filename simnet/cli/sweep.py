"""`simnet sweep`: a grid of scenarios, or a list of them, to a table, a CSV file and a JSON file, or a Parquet file."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from simnet.api import questions
from simnet.cli import completing, options
from simnet.cli.main import INTERRUPTED
from simnet.cli.output import check_file, check_replaceable, emit
from simnet.cli.settings import add_draws, read_axes, read_points, read_points_file, read_settings, read_value
from simnet.cli.terminal import progress, say, tell
from simnet.core.errors import SimnetError
from simnet.engine.result import SweepResult, to_json

if TYPE_CHECKING:
    from simnet.analysis.workers import Pool
    from simnet.engine.axes import PointList
    from simnet.engine.scenario import Experiment
    from simnet.report.page import Page

RESULTS = ("results.csv", "results.json")
REFUSED = 1
"""Exit code of --strict where points are refused."""
PARQUET = "parquet"
"""The format for more points than JSON and CSV take."""


@options.command(
    "sweep",
    help="Simulate every point of the [sweep] of SCENARIO, the name of a shipped experiment or a .toml file.\n\n"
    "A key with several values in --set is swept as well. --point and --points sweep a list of points in place of the "
    "file's [sweep], at every value of --set. A point that does not hold together is skipped: the end of the output, "
    "results.json and the journal say why. The exit code is 0 if any point was simulated, 2 if none was. A sweep that "
    "was stopped resumes when it is started again with the same -o. --format parquet takes up to a million points: it "
    "writes results.parquet in place of results.csv and results.json, and prints its name. --scheduler and "
    "--dask-local simulate on the workers of a Dask, which may be those of many machines.",
    epilog="\b\nExamples:\n  simnet sweep bert_base_10gbit --set cluster.num_nodes=1,2,4,8 -o out/bert --jobs 2\n"
    "  simnet sweep bert_base_10gbit --set run.global_batch=4096 --set cluster.num_nodes=2,4,8,16\n"
    "  simnet sweep bert_base_10gbit --point 'cluster.num_nodes=4, workload.batch_per_rank=64' "
    "--point 'cluster.num_nodes=8, workload.batch_per_rank=32'\n"
    "  simnet sweep bert_base_10gbit --points runs.csv --set 'strategy=binsgdm,one_bit_adam'\n"
    "  simnet sweep speedup --scheduler tcp://10.0.0.1:8786 --format parquet -o out/speedup",
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
@options.form("table", "json", "csv", PARQUET)
@options.directory("Directory for the results and the journal from which a stopped sweep resumes.")
@options.DRAWS
@options.JOBS
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Simulate on the workers of this scheduler of Dask, such as tcp://10.0.0.1:8786.",
)
@click.option(
    "--dask-local", type=click.IntRange(1, 1024), metavar="N", help="Simulate on N processes of a Dask of its own."
)
@options.mode(
    "--break-even",
    of="sweep.crossover",
    metavar="KEY",
    help="Find the value of KEY from which a strategy pays instead: simnet sweep --break-even --help.",
)
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
    scheduler: str | None,
    dask_local: int | None,
    strict: bool,
) -> None:
    """Run `simnet sweep`."""
    from simnet.analysis import sweeps

    start = time.perf_counter()
    workers = _Workers(jobs, scheduler, dask_local)
    workers.check()
    if form == PARQUET and output is None:
        raise SimnetError("--format: 'parquet': needs a directory for its file; add -o DIR")
    fixed, axes = read_axes(settings)
    add_draws(fixed, draws)
    listed = _listed(point_texts, points_file)
    experiment = questions.experiment_of(scenario, fixed, None, axes, listed, jobs=workers.num_processes)
    done = _simulate(experiment, form, output, workers)
    tell(_summary(done, time.perf_counter() - start))
    if done.lacks_intervals and draws is None:
        tell(f"note: more than {sweeps.MOST_DRAWN} points get no intervals of their own accord; --draws 20 makes them")
    if strict and done.num_refused:
        ctx.exit(REFUSED)


class _Workers(NamedTuple):
    """Who simulates, as the options say."""

    jobs: int | None
    scheduler: str | None
    dask_local: int | None

    def check(self) -> None:
        """Check that one of the options alone says it."""
        names = {"--jobs": self.jobs, "--scheduler": self.scheduler, "--dask-local": self.dask_local}
        given = [name for name, value in names.items() if value is not None]
        if len(given) > 1:
            raise SimnetError(f"{given[0]}: {names[given[0]]}: has no effect with {given[1]}; drop one of the two")

    @property
    def num_processes(self) -> int:
        """Processes of this machine at most, without Dask."""
        from simnet.analysis.workers import num_cores

        return self.jobs or num_cores()

    @contextmanager
    def pool(self) -> "Iterator[Pool | None]":
        """Yield the workers of Dask; None where processes of this machine simulate."""
        if self.scheduler is None and self.dask_local is None:
            yield None
            return
        from simnet.analysis.workers import dask_local, dask_scheduler

        with dask_scheduler(self.scheduler) if self.scheduler is not None else dask_local(self.dask_local or 1) as pool:
            yield pool


class _Done(NamedTuple):
    """A sweep that was simulated and written.

    Attributes:
        num_points: how many points there are.
        num_refused: how many of them are refused.
        num_before: how many of them an earlier, stopped sweep had finished.
        lacks_intervals: whether a speedup has no interval because there are too many points.
        files: that were written.
    """

    num_points: int
    num_refused: int
    num_before: int
    lacks_intervals: bool
    files: list[Path]


def _simulate(experiment: "Experiment", form: str, output: Path | None, workers: _Workers) -> _Done:
    """Simulate all points, and write and print them once all are there."""
    from simnet.analysis import results_file, sweeps
    from simnet.analysis.journal import Journal
    from simnet.report.sweep_page import refused_lines

    is_parquet = form == PARQUET
    if is_parquet:
        from simnet.report.frame import check_parquet

        check_parquet("--format")
    points = sweeps.with_draws(sweeps.points_of(experiment, sweeps.MAX_HELD if is_parquet else sweeps.MAX_POINTS))
    sweeps.check_any(points)
    files = [output / name for name in ((results_file.PARQUET,) if is_parquet else RESULTS)] if output else []
    for file in files:
        check_replaceable(file, output)
    with (
        _explain_resume(output),
        workers.pool() as pool,
        progress(len(points), "simulating") as advance,
        Journal(output) as journal,
    ):
        sweep = sweeps.Sweep(points, journal)
        sweep.simulate(workers.num_processes, advance, pool)
        results = sweep.results()
    whole = sweeps.collect_results(experiment, points, results)
    if is_parquet:
        _write_parquet(whole, files[0], output)
        say(str(files[0]))
    else:
        shown = _text(whole, form)  # before anything is written: it may be refused
        for file in files:
            kind = file.suffix.removeprefix(".")
            emit(shown if kind == form else _text(whole, kind), file, output)
        emit(shown, None)
    if form != "table":  # whose end has them
        for line in refused_lines(whole, str(journal.path)) if is_parquet else refused_lines(whole):
            tell(line)
    has_baseline = any(point.baseline for point in whole.points)
    return _Done(
        num_points=len(points),
        num_refused=len(whole.refused),
        num_before=sweep.num_before,
        lacks_intervals=has_baseline and len(points) > sweeps.MOST_DRAWN,
        files=files,
    )


def _write_parquet(whole: SweepResult, path: Path, inside: Path | None) -> None:
    from simnet.core.files import writing
    from simnet.report.frame import write_parquet
    from simnet.report.rows import row

    with writing(path, inside) as file:
        write_parquet((row(point, point.set) for point in whole.points), file)


def _listed(texts: Sequence[str], file: Path | None) -> "PointList | None":
    """Return the points that --point or --points list."""
    if texts and file is not None:
        raise SimnetError(f"--points: {file}: --point lists points, too; give one of the two")
    if file is not None:
        return read_points_file(file)
    return read_points(texts) if texts else None


def _summary(done: _Done, elapsed_s: float) -> str:
    """Return one line about the points, the time and the written files."""
    refused = f", {done.num_refused} of them refused" if done.num_refused else ""
    kept = f", {done.num_before} of them finished before" if done.num_before else ""
    written = f"; wrote {' and '.join(map(str, done.files))}" if done.files else ""
    return f"{done.num_points} points in {elapsed_s:.1f} s{refused}{kept}{written}"


def _text(whole: SweepResult, form: str) -> "str | Page":
    """Return the results of a sweep in one of the formats."""
    if form == "json":
        return to_json(whole, indent=1).decode()
    if form == "csv":
        from simnet.report.rows import row, table

        return table(row(point, point.set) for point in whole.points).csv()
    from simnet.report.sweep_page import sweep_page

    return sweep_page(whole)


@contextmanager
def _explain_resume(output: Path | None) -> Iterator[None]:
    """Say on Ctrl-C which results are kept, and exit."""
    kept = "the same command resumes from the finished points" if output else "nothing is kept without -o DIR"
    try:
        yield
    except KeyboardInterrupt:
        tell(f"\nsimnet: sweep: interrupted; {kept}")
        raise SystemExit(INTERRUPTED) from None


@options.command(
    "crossover",
    help="Find the value of KEY between A and B at which the strategy of SCENARIO is as fast as tuned DDP, and where "
    "it pays.",
    epilog="\b\nExample:\n  simnet sweep bert_base_10gbit --break-even cluster.inter_node.bandwidth "
    "--from '1 Gbit/s' --to '400 Gbit/s'",
)
@options.SCENARIO
@click.option(
    "--break-even",
    "--over",
    "over",
    required=True,
    metavar="KEY",
    shell_complete=completing.keys,
    help="Dotted key of a number or a quantity, such as cluster.inter_node.bandwidth.",
)
@click.option("--from", "start", required=True, metavar="A", help="Value at one end of the search.")
@click.option("--to", "end", required=True, metavar="B", help="Value at the other end.")
@options.SET
@options.DRAWS
@options.of(questions.crossover, tolerance={})
@options.form("table", "json")
@options.OUTPUT
def crossover(  # noqa: PLR0913, PLR0917 - one argument an option
    scenario: str,
    over: str,
    start: str,
    end: str,
    settings: tuple[str, ...],
    draws: int | None,
    tolerance: float,
    form: str,
    output: Path | None,
) -> None:
    """Run `simnet sweep --break-even`."""
    from simnet.engine.scenario import load_experiment

    fixed = read_settings(settings)
    add_draws(fixed, draws)
    load_experiment(scenario, fixed)
    check_file(output)  # which may be none of the files that were read
    found = options.asked(questions.crossover)(
        scenario, over=over, start=read_value(start), end=read_value(end), settings=fixed, tolerance=tolerance
    )
    emit(found.to_json() if form == "json" else found.page(), output)

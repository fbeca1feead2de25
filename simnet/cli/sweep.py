"""`simnet sweep`: a grid of scenarios, or a list of them, to a table, a CSV file and a JSON file, or a Parquet file."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simnet.api import questions
from simnet.cli import completing, options
from simnet.cli.main import INTERRUPTED
from simnet.cli.output import check_file, check_replaceable, emit
from simnet.cli.settings import add_draws, read_axes, read_points, read_points_file, read_settings, read_value
from simnet.cli.terminal import say, tell
from simnet.core.errors import SimnetError
from simnet.engine.result import SweepResult, to_json
from simnet.report.progress_bar import progress

if TYPE_CHECKING:
    from simnet.analysis.workers import Pool
    from simnet.engine.axes import PointList
    from simnet.report.table import Page

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
    from simnet.analysis import results_file, sweeps
    from simnet.analysis.journal import Journal
    from simnet.analysis.workers import num_cores
    from simnet.report.sweep_page import refused_lines

    start = time.perf_counter()
    _check_workers({"--jobs": jobs, "--scheduler": scheduler, "--dask-local": dask_local})
    is_parquet = form == PARQUET
    if is_parquet and output is None:
        raise SimnetError("--format: 'parquet': needs a directory for its file; add -o DIR")
    fixed, axes = read_axes(settings)
    add_draws(fixed, draws)
    listed = _listed(point_texts, points_file)
    experiment = questions.experiment_of(scenario, fixed, None, axes, listed, jobs=jobs or num_cores())
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
        _pool(scheduler, dask_local) as pool,
        progress(len(points), "simulating") as advance,
        Journal(output) as journal,
    ):
        sweep = sweeps.Sweep(points, journal)
        sweep.simulate(jobs or num_cores(), advance, pool)
        results = sweep.results()
    whole = sweeps.collect_results(experiment, points, results)
    _write(whole, form, files, output)
    if form != "table":  # whose end has them
        for line in refused_lines(whole, str(journal.path)) if is_parquet else refused_lines(whole):
            tell(line)
    refused = f", {len(whole.refused)} of them refused" if whole.refused else ""
    kept = f", {sweep.num_before} of them finished before" if sweep.num_before else ""
    written = f"; wrote {' and '.join(map(str, files))}" if files else ""
    tell(f"{len(points)} points in {time.perf_counter() - start:.1f} s{refused}{kept}{written}")
    if draws is None and len(points) > sweeps.MOST_DRAWN and any(point.baseline for point in whole.points):
        tell(f"note: more than {sweeps.MOST_DRAWN} points get no intervals of their own accord; --draws 20 makes them")
    if strict and whole.refused:
        ctx.exit(REFUSED)


@contextmanager
def _pool(scheduler: str | None, num_local: int | None) -> "Iterator[Pool | None]":
    """Yield the workers of Dask; None where processes of this machine simulate."""
    if scheduler is None and num_local is None:
        yield None
        return
    from simnet.analysis.workers import dask_local, dask_scheduler

    with dask_scheduler(scheduler) if scheduler is not None else dask_local(num_local or 1) as pool:
        yield pool


def _check_workers(workers: Mapping[str, object]) -> None:
    """Check that one option alone says who simulates."""
    named = [option for option, value in workers.items() if value is not None]
    if len(named) > 1:
        raise SimnetError(f"{named[0]}: {workers[named[0]]}: has no effect with {named[1]}; drop one of the two")


def _write(whole: SweepResult, form: str, files: Sequence[Path], output: Path | None) -> None:
    """Write the results, and print them, or the name of a Parquet file."""
    if form == PARQUET:
        from simnet.core.files import writing
        from simnet.report.frame import write_parquet
        from simnet.report.rows import row

        with writing(files[0], output) as file:
            write_parquet((row(point, point.set) for point in whole.points), file)
        say(str(files[0]))
        return
    shown = _text(whole, form)  # before anything is written: it may be refused
    for path in files:
        kind = path.suffix.removeprefix(".")
        emit(shown if kind == form else _text(whole, kind), path, output)
    emit(shown, None)


def _listed(texts: Sequence[str], file: Path | None) -> "PointList | None":
    """Return the points that --point or --points list."""
    if texts and file is not None:
        raise SimnetError(f"--points: {file}: --point lists points, too; give one of the two")
    if file is not None:
        return read_points_file(file)
    return read_points(texts) if texts else None


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
    answer = options.asked(questions.crossover)(
        scenario, over=over, start=read_value(start), end=read_value(end), settings=fixed, tolerance=tolerance
    )
    emit(answer.to_json() if form == "json" else answer.page(), output)

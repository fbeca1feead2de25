"""`simnet simulate`: one scenario to one result."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from simnet.api import questions
from simnet.cli import options
from simnet.cli.output import check_different, check_file, check_files, emit
from simnet.cli.settings import add_draws, read_settings
from simnet.cli.terminal import tell
from simnet.core.errors import SimnetError
from simnet.core.files import is_special

if TYPE_CHECKING:
    from simnet.engine.scenario import Scenario


@options.command(
    "simulate",
    help="Simulate SCENARIO, the name of a shipped experiment or a .toml file, against tuned DDP: the fastest setting "
    "that changes nothing in training and fits the GPU.\n\nWithout a strategy in SCENARIO, what simnet advise would "
    "use is taken.",
    epilog="\b\nExample:\n  simnet simulate bert_base_10gbit --set cluster.num_nodes=16 --format json",
)
@options.SCENARIO
@options.SET
@options.form("table", "json", "csv")
@options.OUTPUT
@options.DRAWS
@options.of(questions.simulate, lost_time={})
@click.option(
    "--trace",
    type=options.OUTPUT_PATH,
    help="Write a timeline for ui.perfetto.dev and Holistic Trace Analysis to this file, that of tuned DDP in "
    "NAME.baseline.json; .gz packs them.",
)
@click.option(
    "--trace-iterations", type=click.IntRange(1, 1000), help="Iterations in the timeline, all alike.  [default: 3]"
)
def command(  # noqa: PLR0913, PLR0917 - click gives every option
    scenario: str,
    settings: tuple[str, ...],
    form: str,
    output: Path | None,
    draws: int | None,
    lost_time: bool,
    trace: Path | None,
    trace_iterations: int | None,
) -> None:
    """Run `simnet simulate`."""
    fixed = read_settings(settings)
    add_draws(fixed, draws)
    experiment = questions.experiment_of(scenario, fixed, None, jobs=None)
    point = experiment.at({})
    _check_outputs(output, trace, trace_iterations)
    if lost_time:
        _check_lost_time(point, form)
    result = options.asked(questions.simulate)(point, lost_time=lost_time, progress=True)
    if trace:
        from simnet.traces.timeline_trace import ITERATIONS, write_trace

        write_trace(result, trace, trace_iterations or ITERATIONS)
    if form == "csv":
        from simnet.report.rows import row, table

        emit(table([row(result)]).csv(), output)
    else:
        emit(result.to_json() if form == "json" else result.page(), output)
    if result.scenario.run.draws is None and result.result.fidelity == "exact":
        tell("note: simulated rank by rank, where each draw takes as long again: no intervals; --draws 20 makes them")
    if experiment.swept_keys:
        tell(f"note: this is one point; the whole sweep: simnet sweep {scenario}")


def _check_outputs(output: Path | None, trace: Path | None, iterations: int | None) -> None:
    """Check files before anything is simulated, that of the reference's timeline too."""
    if trace is None and iterations is not None:
        raise SimnetError("--trace-iterations: no effect without --trace; name a file with --trace, or drop it")
    check_files(output=output, trace=trace)
    if trace is not None and not is_special(trace):
        from simnet.traces.timeline_trace import baseline_path

        check_file(baseline_path(trace), "--trace")
        check_different(output, baseline_path(trace), "-o", "--trace")


def _check_lost_time(scenario: "Scenario", form: str) -> None:
    from simnet.analysis import lost_time

    if form == "csv":
        raise SimnetError("--lost-time: no effect on --format csv, which is one row; take table or json")
    try:
        lost_time.check(scenario)
    except SimnetError as error:
        raise SimnetError(f"--lost-time: {error}") from error

"""`simnet time-to-target`: which system reaches a metric first on a cluster."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from msgspec.structs import replace

from simnet.commands import options
from simnet.commands.output import check_figure, check_file, emit, tell_of_axes
from simnet.commands.settings import add_draws, load_with_any_strategy, read_settings, read_values
from simnet.commands.terminal import progress
from simnet.compare.convergence import Convergence, load
from simnet.compare.same_task import check_same_task
from simnet.compare.time_to_target import TimesToTarget, num_simulations, times_to_target
from simnet.errors import SimnetError
from simnet.result import RunResult
from simnet.scenario import Scenario
from simnet.show.time_to_target import time_to_target_object, time_to_target_page
from simnet.units import Bandwidth

RATES = "10 Gbit/s,25 Gbit/s,40 Gbit/s,100 Gbit/s"


@click.command(
    "time-to-target",
    help="Find the system that reaches a target metric first: the measured steps to the target in the trainings of "
    "CURVES, times the simulated time of a step on the cluster and workload of EXPERIMENT, in hours and money.\n\n"
    "1-bit Adam's dense stage, Marsit's dense steps and DDP's first iteration are counted.\n\n"
    "CURVES is a shipped name (simnet list convergence), a convergence file, or logs, each as [SYSTEM=]LOG[::RUN]: a "
    "CSV with step (or samples), loss, and if you like seed and system; an event file of TensorBoard, or its folder; a "
    "chart or a history that W&B exports (CSV, JSON). SYSTEM is a strategy, such as power_sgd:matrix_rank=4; several "
    "logs of one are its seeds.",
    epilog="\b\nExamples:\n  simnet time-to-target bert_base_10gbit characters --same-task"
    "\n  simnet time-to-target my_cluster.toml my_trainings.json --target 2.1 --at '25 Gbit/s'"
    "\n  simnet time-to-target my_cluster.toml losses.csv --target 3.1 --same-task --price-per-gpu-hour 2.50"
    "\n  simnet time-to-target my_cluster.toml all_reduce=runs/adam power_sgd=runs/power_sgd --metric eval/loss "
    "--target 3.1 --same-task"
    "\n  simnet time-to-target my_cluster.toml 'all_reduce=chart.csv::adam-*' 'qsgd:bits=4=chart.csv::qsgd-*' --target "
    "3.1 --same-task --plot times.png",
)
@click.argument("experiment")
@click.argument("curves", nargs=-1, required=True)
@click.option(
    "--at", "rates", default=RATES, show_default=True, metavar="RATES", help="Bandwidths of a NIC, separated by commas."
)
@click.option("--target", type=float, help="Value of the metric to reach.  [default: that of CURVES, if it has one]")
@click.option(
    "--ranks",
    type=click.IntRange(1),
    help="Number of ranks of the trainings to use.  [default: the largest; of logs, those of the cluster]",
)
@click.option(
    "--steps",
    type=click.IntRange(1, 10**12),
    help="Steps of the whole training; the measured curves are stretched to it.  [default: as measured]",
)
@click.option("--metric", help="Column or tag of the loss in logs.  [default: loss, or the only one]")
@click.option(
    "--same-task",
    is_flag=True,
    help="Take the curves for those of the simulated model, though their number of parameters differs or is unknown.",
)
@click.option(
    "--price-per-gpu-hour",
    type=options.Number(0, min_open=True, max=1e9),
    help="What a GPU costs an hour, in any currency: prints the cost up to the target.",
)
@options.SET
@options.DRAWS
@options.plot("the metric over simulated time")
@options.form("table", "json")
@options.OUTPUT
def command(  # noqa: PLR0913, PLR0917 - one argument an option
    experiment: str,
    curves: tuple[str, ...],
    rates: str,
    target: float | None,
    ranks: int | None,
    steps: int | None,
    metric: str | None,
    same_task: bool,
    price_per_gpu_hour: float | None,
    settings: tuple[str, ...],
    draws: int | None,
    plot: Path | None,
    form: str,
    output: Path | None,
) -> None:
    """Run `simnet time-to-target`."""
    from simnet.simulation import simulate

    fixed = read_settings(settings)
    add_draws(fixed, draws)
    asked = load_with_any_strategy(experiment, fixed)
    bandwidths = _bandwidths(rates)
    resolved = asked.at({})
    trainings, notes = _trainings(curves, resolved, metric, ranks)
    if not same_task:
        check_same_task(trainings, resolved)
    scenario = _with_draws(resolved, num_simulations(trainings, len(bandwidths), 0))
    check_file(output)
    check_figure(plot, output)
    tell_of_axes(asked)
    with _counted(simulate, num_simulations(trainings, len(bandwidths), scenario.run.draws or 0)) as counted:
        found = times_to_target(
            scenario,
            trainings,
            counted,
            bandwidths=bandwidths,
            ranks=ranks,
            target=target,
            steps=steps,
            price_per_gpu_hour=price_per_gpu_hour,
        )
    found = replace(found, notes=(*notes, *found.notes))
    if plot is not None:
        _draw(found, plot)
    emit(json.dumps(time_to_target_object(found), indent=2) if form == "json" else time_to_target_page(found), output)


def _trainings(
    curves: tuple[str, ...], scenario: Scenario, metric: str | None, ranks: int | None
) -> tuple[Convergence, tuple[str, ...]]:
    """Return the trainings of a convergence file, or those of logs with notes on how they were read."""
    from simnet.compare.logged_trainings import load_logs, names_a_log

    of_files = [text for text in curves if not names_a_log(text)]
    if not of_files:
        logged = load_logs(curves, scenario, metric=metric, ranks=ranks)
        return logged.convergence, logged.notes
    if len(curves) > 1:
        raise SimnetError(f"{of_files[0]}: among other curves: no log of a training; give it alone, or give logs only")
    if metric is not None:
        raise SimnetError(f"--metric: has no effect with the convergence of {of_files[0]}; drop it")
    return load(of_files[0]), ()


def _with_draws(scenario: Scenario, num_simulations: int) -> Scenario:
    from simnet.uncertainty import default_draws

    draws = default_draws(num_simulations) if scenario.run.draws is None else scenario.run.draws
    return replace(scenario, run=replace(scenario.run, draws=draws))


def _bandwidths(text: str) -> list[Bandwidth]:
    try:
        found = [Bandwidth.parse(str(value)) for value in read_values(text)]
    except ValueError as error:
        raise SimnetError(f"--at: {error}") from error
    if not found:
        raise SimnetError(f"--at: {text!r}: must hold a bandwidth; write '10 Gbit/s,25 Gbit/s'")
    if slow := [rate for rate in found if rate < 1]:
        raise SimnetError(f"--at: {slow[0].text()!r}: must be at least 1 B/s; name a NIC's bandwidth")
    return list(dict.fromkeys(found))


def _draw(found: TimesToTarget, path: Path) -> None:
    from simnet.show import figure

    with figure.styled():
        from simnet.show.time_to_target_figure import time_to_target_figure

        figure.write(time_to_target_figure(found), path)


@contextmanager
def _counted(simulate: Callable[[Scenario], RunResult], total: int) -> Iterator[Callable[[Scenario], RunResult]]:
    """Show how many simulations are done, on a terminal."""
    with progress(total, "simulating") as advance:

        def counted(scenario: Scenario) -> RunResult:
            result = simulate(scenario)
            advance(1)
            return result

        yield counted

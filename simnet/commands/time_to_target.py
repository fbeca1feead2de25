"""`simnet time-to-target`: which system reaches a metric first on a cluster."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from msgspec.structs import replace

from simnet.commands import options
from simnet.commands.output import check_figure, check_file, emit, tell_of_axes
from simnet.commands.settings import add_draws, read_settings, read_values
from simnet.commands.terminal import progress
from simnet.compare.convergence import load
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
    "CONVERGENCE, times the simulated time of a step on the cluster and workload of EXPERIMENT.\n\n"
    "1-bit Adam's dense stage, Marsit's dense steps and DDP's first iteration are counted. CONVERGENCE is a shipped "
    "name (simnet list convergence) or a JSON file.",
    epilog="\b\nExamples:\n  simnet time-to-target bert_base_10gbit characters"
    "\n  simnet time-to-target bert_base_10gbit characters --steps 100000 --plot time_to_target.png"
    "\n  simnet time-to-target my_cluster.toml my_trainings.json --target 2.1 --at '25 Gbit/s'",
)
@click.argument("experiment")
@click.argument("convergence")
@click.option(
    "--at", "rates", default=RATES, show_default=True, metavar="RATES", help="Bandwidths of a NIC, separated by commas."
)
@click.option("--target", type=float, help="Value of the metric to reach.  [default: that of CONVERGENCE]")
@click.option(
    "--ranks", type=click.IntRange(1), help="Number of ranks of the trainings to use.  [default: the largest]"
)
@click.option(
    "--steps",
    type=click.IntRange(1, 10**12),
    help="Steps of the whole training; the measured curves are stretched to it.  [default: as measured]",
)
@options.SET
@options.DRAWS
@options.plot("the metric over simulated time")
@options.form("table", "json")
@options.OUTPUT
def command(  # noqa: PLR0913, PLR0917 - one argument an option
    experiment: str,
    convergence: str,
    rates: str,
    target: float | None,
    ranks: int | None,
    steps: int | None,
    settings: tuple[str, ...],
    draws: int | None,
    plot: Path | None,
    form: str,
    output: Path | None,
) -> None:
    """Run `simnet time-to-target`."""
    from simnet.scenario import load_experiment
    from simnet.simulate import simulate

    fixed = read_settings(settings)
    add_draws(fixed, draws)
    trainings = load(convergence)
    asked = load_experiment(experiment, fixed)
    bandwidths = _bandwidths(rates)
    scenario = _with_draws(asked.at({}), num_simulations(trainings, len(bandwidths), 0))
    check_file(output)
    check_figure(plot, output)
    tell_of_axes(asked)
    with _counted(simulate, num_simulations(trainings, len(bandwidths), scenario.run.draws or 0)) as counted:
        found = times_to_target(
            scenario, trainings, counted, bandwidths=bandwidths, ranks=ranks, target=target, steps=steps
        )
    if plot is not None:
        _draw(found, plot)
    emit(json.dumps(time_to_target_object(found), indent=2) if form == "json" else time_to_target_page(found), output)


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

"""`simnet advise`: which system pays on a cluster, if any."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simnet.cli import options
from simnet.cli.output import check_figure, check_file, emit, tell_of_axes
from simnet.cli.settings import add_draws, read_settings
from simnet.cli.terminal import progress
from simnet.core.errors import SimnetError
from simnet.engine.scenario import Scenario

if TYPE_CHECKING:
    from simnet.analysis.advice import Advice


@options.command(
    "advise",
    help="Rank all systems on the cluster and workload of SCENARIO against the fastest DDP: does any pay?\n\n"
    "Every system and DDP are tuned alike, over topology, algorithm, bucket size, overlap and precision inside a node. "
    "SCENARIO needs no strategy; its own and its baseline are not used. Trainings say whether a system reaches a "
    "target, and how much sooner.",
    epilog="\b\nExample:\n  simnet advise bert_base_10gbit --set 'cluster.inter_node.bandwidth=100 Gbit/s'",
)
@options.SCENARIO
@options.SET
@options.DRAWS
@click.option(
    "--systems", metavar="NAMES", help="Rank only these: titles or kinds, such as 'BinSGDM,power_sgd'.  [default: all]"
)
@click.option(
    "--step",
    "steps",
    multiple=True,
    metavar="STEP",
    help="A step of your own script, recorded by simnet record, to rank with the systems; repeatable.",
)
@click.option(
    "--convergence",
    "trainings",
    multiple=True,
    metavar="CONVERGENCE",
    help="Trainings of this workload, by which systems are judged, too: a JSON file or a shipped name; "
    "repeatable.  [default: all shipped, which only warn]",
)
@options.mode(
    "--time-to-target",
    of="time_to_target",
    metavar="CURVES",
    help="Find the system that reaches a target in trainings of yours first: simnet advise --time-to-target --help.",
)
@options.form("table", "json")
@options.OUTPUT
@click.option(
    "--samples", type=float, help="Samples of the whole training, for its days, and with a price for its money."
)
@click.option("--price-per-gpu-hour", type=float, help="What a GPU costs an hour, in any currency; needs --samples.")
@click.option("--all", "everything", is_flag=True, help="Print the whole ranking in place of the answer.")
@options.plot("speedup over NIC bandwidth")
@options.STYLE
@options.JOBS
def command(  # noqa: PLR0913, PLR0917 - click gives every option
    scenario: str,
    settings: tuple[str, ...],
    draws: int | None,
    systems: str | None,
    steps: tuple[str, ...],
    trainings: tuple[str, ...],
    form: str,
    output: Path | None,
    samples: float | None,
    price_per_gpu_hour: float | None,
    everything: bool,
    plot: Path | None,
    style: str,
    jobs: int | None,
) -> None:
    """Run `simnet advise`."""
    from simnet.analysis import convergence
    from simnet.analysis.advise import advise, check_rankable
    from simnet.analysis.advise_with_faults import num_runs
    from simnet.analysis.tune import chosen, load_with_any_strategy, recorded_systems
    from simnet.analysis.workers import look_rarely_for_circles, num_cores
    from simnet.report.advice import advice_page, ranking_page, to_object

    look_rarely_for_circles()
    names = chosen(name.strip() for name in systems.split(",")) if systems is not None else chosen(())
    recorded = recorded_systems(steps)
    fixed = read_settings(settings)
    add_draws(fixed, draws)
    experiment = load_with_any_strategy(scenario, fixed)
    resolved = experiment.at({})
    check_rankable(resolved)
    check_file(output)
    check_figure(plot, output, style)
    if plot is not None:
        _check_nodes(resolved)
    tell_of_axes(experiment)
    records = {Path(name).stem: convergence.load(name) for name in trainings} or convergence.shipped()
    with progress(num_runs(resolved, len(names) + len(recorded)), "predicting") as advance:
        found = advise(
            resolved,
            names=names,
            recorded=recorded,
            trainings=records,
            are_of_user=bool(trainings),
            samples=samples,
            price_per_gpu_hour=price_per_gpu_hour,
            jobs=jobs or num_cores(),
            progress=advance,
        )
    if plot is not None:
        _draw(found, plot, style)
    page = ranking_page(found) if everything else advice_page(found)
    emit(json.dumps(to_object(found), indent=2, allow_nan=False) if form == "json" else page, output)


def _draw(found: "Advice", path: Path, style: str) -> None:
    from simnet.report import figure

    with figure.styled(figure.style_named(style)):
        from simnet.report import figures

        figure.write(figures.advice(found), path)


def _check_nodes(scenario: Scenario) -> None:
    """Refuse a figure without an axis.

    Raises:
        SimnetError: there is one node.
    """
    if scenario.cluster.num_nodes == 1:
        raise SimnetError(
            "--plot: cluster.num_nodes is 1: one node sends nothing over its NIC; set cluster.num_nodes, or drop --plot"
        )

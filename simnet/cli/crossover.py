"""`simnet crossover`: the value of a key at which two strategies take the same time."""

import json
from pathlib import Path

import click

from simnet.analysis.crossover import NUM_STEPS, search
from simnet.cli import completing, options
from simnet.cli.output import check_file, emit
from simnet.cli.settings import add_draws, read_settings, read_value
from simnet.cli.terminal import progress
from simnet.report.crossover import crossover_object, crossover_page


@click.command(
    "crossover",
    help="Find the value of KEY between A and B at which strategy and baseline of SCENARIO take the same time.",
    epilog="\b\nExample:\n  simnet crossover bert_base_10gbit --over cluster.inter_node.bandwidth "
    "--from '1 Gbit/s' --to '400 Gbit/s'",
)
@options.SCENARIO
@click.option(
    "--over",
    required=True,
    metavar="KEY",
    shell_complete=completing.keys,
    help="Dotted key of a number or a quantity, such as cluster.inter_node.bandwidth.",
)
@click.option("--from", "start", required=True, metavar="A", help="Value at one end of the search.")
@click.option("--to", "end", required=True, metavar="B", help="Value at the other end.")
@options.SET
@options.DRAWS
@click.option(
    "--tolerance",
    type=float,
    default=1e-4,
    show_default=True,
    help="Relative width of a crossing; integers are found exactly.",
)
@options.form("table", "json")
@options.OUTPUT
def command(  # noqa: PLR0913, PLR0917 - one argument an option
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
    """Run `simnet crossover`."""
    from simnet.engine.scenario import load_experiment
    from simnet.engine.simulation import simulate

    fixed = read_settings(settings)
    add_draws(fixed, draws)
    experiment = load_experiment(scenario, fixed)
    check_file(output)
    with progress(NUM_STEPS, "searching") as advance:
        found = search(
            experiment,
            key=over,
            start=read_value(start),
            end=read_value(end),
            tolerance=tolerance,
            simulate=simulate,
            progress=advance,
        )
    emit(json.dumps(crossover_object(found), indent=2) if form == "json" else crossover_page(found), output)

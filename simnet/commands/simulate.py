"""`simnet simulate`: one scenario to one result."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from simnet.commands.main import is_watched, tell
from simnet.commands.output import OUTPUT, check_different, check_file, emit
from simnet.commands.settings import DRAWS, add_draws, read_settings
from simnet.result import RunResult


@click.command(
    "simulate",
    help="Simulate SCENARIO, the name of a shipped experiment or a .toml file.",
    epilog="\b\nExample:\n  simnet simulate bert_base_10gbit --set cluster.num_nodes=16 --format json",
)
@click.argument("scenario")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Replace a value; repeatable.")
@click.option("--format", "form", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True)
@click.option("-o", "--output", type=OUTPUT, help="Write to this file instead of the terminal.")
@DRAWS
@click.option("--trace", type=OUTPUT, help="Write a timeline for ui.perfetto.dev to this file.")
def command(  # noqa: PLR0913, PLR0917 - click gives every option
    scenario: str, settings: tuple[str, ...], form: str, output: Path | None, draws: int | None, trace: Path | None
) -> None:
    """Run `simnet simulate`."""
    from simnet.scenario import load_experiment
    from simnet.simulate import num_exact_rounds, simulate

    fixed = read_settings(settings)
    add_draws(fixed, draws)
    experiment = load_experiment(scenario, fixed)
    resolved = experiment.at({})
    check_file(output)
    check_file(trace, option="--trace")
    check_different(output, trace)
    with _progress(num_exact_rounds(resolved)) as on_round:
        result = simulate(resolved, on_round)
    if trace:
        from simnet.show.trace import write_trace

        write_trace(result, trace)
    emit(_text(result, form), output)
    if experiment.axes:
        tell(f"note: this is one point; the whole sweep: simnet sweep {scenario}")


@contextmanager
def _progress(rounds: int) -> Iterator[Callable[[], None] | None]:
    """Show how far an exact run is, on a terminal."""
    if not rounds or not is_watched():
        yield None
        return
    with click.progressbar(length=rounds, label="simulating every send", file=sys.stderr) as bar:
        yield lambda: bar.update(1)


def _text(result: RunResult, form: str) -> str:
    """Return a result in one of the formats."""
    from simnet.show.metrics import to_object, to_row

    if form == "table":
        from simnet.show.table import result_table

        return result_table(result)
    if form == "json":
        return json.dumps(to_object(result), indent=2, allow_nan=False)
    from simnet.sweep import to_csv

    return to_csv([to_row({}, to_object(result))])

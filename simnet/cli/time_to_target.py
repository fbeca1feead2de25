"""`simnet advise --time-to-target`: which system reaches a metric first on a cluster."""

from pathlib import Path
from typing import Any

import click

from simnet.analysis.tune import with_any_strategy
from simnet.api import questions
from simnet.cli import completing, options
from simnet.cli.output import check_figure, check_file, count_as_read, emit, tell_of_axes
from simnet.cli.settings import add_draws, read_settings, read_values
from simnet.engine.scenario import load_experiment


@options.command(
    "time-to-target",
    help="Find the system that reaches a target metric first: the measured steps to the target in the trainings of "
    "CURVES, times the simulated time of a step on the cluster and workload of EXPERIMENT, in hours and money.\n\n"
    "1-bit Adam's dense stage, Marsit's dense steps and DDP's first iteration are counted.\n\n"
    "CURVES is a shipped name (simnet show convergence), a convergence file, or logs, each as [SYSTEM=]LOG: CSV or "
    "JSON lines with step (or samples), loss, and if you like seed and system; or an event file of TensorBoard, or its "
    "folder. SYSTEM is a strategy, such as power_sgd:matrix_rank=4; several logs of one are its seeds.",
    epilog="\b\nExamples:\n  simnet advise bert_base_10gbit --time-to-target characters --same-task"
    "\n  simnet advise mine.toml --time-to-target my_trainings.json --target 2.1 --at '25 Gbit/s'"
    "\n  simnet advise mine.toml --time-to-target losses.csv --target 3.1 --same-task --price-per-gpu-hour 2.50"
    "\n  simnet advise mine.toml --time-to-target all_reduce=runs/adam power_sgd=runs/power_sgd --metric eval/loss "
    "--target 3.1 --same-task"
    "\n  simnet advise mine.toml --time-to-target all_reduce=adam.csv qsgd:bits=4=qsgd.jsonl --target 3.1 --same-task "
    "--plot times.png",
)
@click.argument("experiment", shell_complete=completing.names_of("experiments"))
@click.argument("curves", nargs=-1, metavar="CURVES...", shell_complete=completing.names_of("convergence"))
@click.option(
    "--time-to-target",
    "further",
    multiple=True,
    metavar="CURVES",
    shell_complete=completing.names_of("convergence"),
    help="CURVES, as behind EXPERIMENT; repeatable.",
)
@click.option(
    "--at",
    "rates",
    default=",".join(questions.RATES),
    show_default=True,
    metavar="RATES",
    help="Bandwidths of a NIC, separated by commas.",
)
@options.of(questions.time_to_target, target={}, ranks={}, steps={}, metric={}, same_task={}, price_per_gpu_hour={})
@options.SET
@options.DRAWS
@options.plot("the metric over simulated time")
@options.STYLE
@options.form("table", "json")
@options.OUTPUT
def command(  # noqa: PLR0913, PLR0917 - one argument an option
    experiment: str,
    curves: tuple[str, ...],
    further: tuple[str, ...],
    rates: str,
    settings: tuple[str, ...],
    draws: int | None,
    plot: Path | None,
    style: str,
    form: str,
    output: Path | None,
    **chosen: Any,
) -> None:
    """Run `simnet advise --time-to-target`."""
    from simnet.report import figure

    if not (curves := further + curves):
        raise click.UsageError("Missing argument 'CURVES...'.", click.get_current_context())
    fixed = read_settings(settings)
    add_draws(fixed, draws)
    asked = with_any_strategy(load_experiment(experiment, fixed))
    count_as_read(text.rpartition("=")[2] for text in curves)
    check_file(output)  # which may be none of the files that are read
    check_figure(plot, output, style)
    tell_of_axes(asked)
    times = options.asked(questions.time_to_target)(
        experiment, curves, at=read_values(rates) or (rates,), settings=fixed, **chosen
    )
    if plot is not None:
        with figure.styled(figure.style_named(style)):
            from simnet.report import figures  # which imports matplotlib

            figure.write(figures.time_to_target(times), plot)
    emit(times.to_json() if form == "json" else times.page(), output)

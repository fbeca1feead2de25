"""`simnet calibrate`: measurements to a calibration, with intervals and residuals."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simnet.api import measurements
from simnet.cli import options
from simnet.cli.output import check_files, check_format, count_as_read, emit
from simnet.cli.terminal import say, tell
from simnet.core.errors import SimnetError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simnet.calibration.comparison import Comparison

_OF_VARIATION = ("variation", "files", "output", "ranks_per_node", "all_rows", "form")
"""Parameters that have an effect with `--variation`."""


@options.command(
    "calibrate",
    help="Fit a calibration to FILES of simnet measure, output of nccl-tests, iperf3 -J, and step "
    "times (CSV: nodes, ranks_per_node, batch, strategy, seconds).\n\n"
    "With --workload: take the compute times of a workload from a model of simnet measure, step times, or traces of "
    "torch.profiler. Residuals are printed; a fit with a mean residual above --bound is refused.\n\n"
    "With --variation: find slow ranks, jitter and pauses in files of simnet measure training, or in the traces of "
    "torch.profiler of all ranks (or their folder), and write them as faults of a scenario.",
    epilog="\b\nExamples:\n  simnet calibrate 8gpus.log 16gpus.log --hold-out 32gpus.log --cluster azure_nd_a100_v4 "
    "--base a100_tcp_estimate -o mine.toml\n"
    "  simnet calibrate steps.csv --experiment mine_experiment.toml --base v100_tcp_estimate -o mine.toml\n"
    "  simnet calibrate --variation traces/ -o faults.toml",
)
@click.argument("files", nargs=-1, required=True, type=options.INPUT_PATH)
@click.option(
    "-o",
    "--output",
    type=options.OUTPUT_PATH,
    help="Write the calibration to this file, or with --variation the faults.",
)
@click.option(
    "--variation", is_flag=True, help="Fit slow ranks, jitter and pauses instead, from the times of every rank."
)
@options.rare(
    "--ranks-per-node",
    type=click.IntRange(1, 10**6),
    help="With --variation: ranks of a node, for traces that do not say it.",
)
@click.option(
    "--workload",
    type=options.OUTPUT_PATH,
    help="Write the compute times of a measured model, of step times or of torch.profiler traces to this file.",
)
@options.of(
    measurements.calibrate,
    "batch",
    "in_place",
    "algorithm",
    "protocol",
    "bound_percent",
    "accept_poor_fit",
    base={"metavar": "NAME"},
    experiment={"metavar": "NAME"},
    trained={"metavar": "NAME"},
    batch={},
    hold_out={},
    in_place={},
    cluster={"metavar": "NAME"},
    algorithm={},
    protocol={},
    bound_percent={"name": "bound"},
    accept_poor_fit={},
)
@options.BOOTSTRAP_DRAWS
@click.option("--figure", type=options.OUTPUT_PATH, help="Draw the residuals to this .png, .pdf or .svg file.")
@options.rare(
    "--all-rows",
    is_flag=True,
    help="Print every residual, those of files held out too, or with --variation every rank.",
)
@options.form("table", "json")
@click.pass_context
def command(  # noqa: PLR0913, PLR0917 - one argument an option
    ctx: click.Context,
    /,
    files: tuple[Path, ...],
    output: Path | None,
    variation: bool,
    ranks_per_node: int | None,
    workload: Path | None,
    bound_percent: float,
    accept_poor_fit: bool,
    draws: int,
    figure: Path | None,
    all_rows: bool,
    form: str,
    **chosen: Any,
) -> None:
    """Run `simnet calibrate`."""
    for param in ctx.command.params:
        is_named = ctx.get_parameter_source(param.name or "") is click.core.ParameterSource.COMMANDLINE
        if not variation and is_named and param.name == "ranks_per_node":
            raise SimnetError(f"{param.opts[0]}: has no effect without --variation; drop it")
        if variation and is_named and param.name not in _OF_VARIATION:
            raise SimnetError(f"{param.opts[0]}: has no effect with --variation; drop it")
    if variation:
        _fit_variation(files, output, ranks_per_node, form, all_rows=all_rows)
        return
    from simnet.calibration.fit import check_errors, checked_residuals

    parts = [Path(chosen[key]) for key in ("base", "experiment", "trained", "cluster") if chosen[key] is not None]
    count_as_read((*files, *chosen["hold_out"], *chosen["in_place"], *filter(Path.is_file, parts)))
    check_files(output=output, workload=workload, figure=figure)
    check_format(figure)
    fit = options.asked(measurements.calibrate)(
        files,
        workload=workload is not None,
        bound_percent=bound_percent,
        accept_poor_fit=True,  # since a poor fit is shown and drawn before it is refused
        bootstrap_draws=draws,
        **chosen,
    )
    if output is not None and fit.toml is None:
        raise SimnetError(
            "-o: the files tell neither links nor kernels; give --workload FILE for traces or steps of one rank"
        )
    say(fit.to_json() if form == "json" else fit.page(all_rows=all_rows))
    if figure is not None:
        _draw(fit.residuals, figure)
    if not accept_poor_fit:
        check_errors(checked_residuals(fit.parts), bound_percent / 100)
    for text, path in ((fit.toml, output), (fit.workload_toml, workload)):
        if path is not None and text is not None:
            emit(text, path)
            tell(f"wrote {path}")


def _fit_variation(
    files: tuple[Path, ...], output: Path | None, ranks_per_node: int | None, form: str, *, all_rows: bool
) -> None:
    """Fit the variation in files, print it, and write it as faults."""
    from simnet.calibration import variation, variation_files
    from simnet.report.calibration import variation_page
    from simnet.report.rows import json_text

    samples = variation_files.read(files, ranks_per_node)
    # Last, since no output may replace any file that was read.
    check_files(output=output)
    fitted = variation.fit(samples)
    text = variation.text(fitted)
    if form == "json":
        say(json_text(fitted))
    else:
        say(variation_page(fitted, "" if output else text, all_rows=all_rows))
    if output is not None:
        emit(text, output)
        tell(f"wrote {output}")


def _draw(residuals: "Sequence[Comparison]", path: Path) -> None:
    """Write the figure, also of a fit that is then refused."""
    from simnet.core.files import write_file
    from simnet.report import figures
    from simnet.report.figure import format_of

    if not residuals:
        raise SimnetError("--figure: there are no residuals to draw; drop it")
    write_file(path, figures.residuals(residuals, format_of(path)))
    tell(f"wrote {path}")

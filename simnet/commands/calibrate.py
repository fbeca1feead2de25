"""`simnet calibrate`: measurements to a calibration, with intervals and residuals."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simnet.commands import options
from simnet.commands.output import check_files, emit
from simnet.commands.terminal import say, tell
from simnet.errors import SimnetError

if TYPE_CHECKING:
    from simnet.comparison import Comparison
    from simnet.fitting.fitted_part import FittedPart
    from simnet.fitting.sources import Sources
    from simnet.fitting.was_trained import WasTrained
    from simnet.hardware import Cluster
    from simnet.scenario import Scenario

BOUND_PERCENT = 10.0


@click.command(
    "calibrate",
    help="Fit a calibration to FILES of simnet measure and simnet lab, logs of nccl-tests, iperf3 -J, and step "
    "times (CSV: nodes, ranks_per_node, batch, strategy, seconds).\n\n"
    "With --workload: take the compute times of a workload from a model of simnet measure, step times, or traces of "
    "torch.profiler. Residuals are printed; a fit with a mean residual above --bound is refused.",
    epilog="\b\nExamples:\n  simnet calibrate 8gpus.log 16gpus.log --hold-out 32gpus.log --cluster azure_nd_a100_v4 "
    "--base a100_tcp_estimate -o mine.toml\n"
    "  simnet calibrate steps.csv --experiment mine_experiment.toml --base v100_tcp_estimate -o mine.toml",
)
@click.argument("files", nargs=-1, required=True, type=options.INPUT_PATH)
@click.option("-o", "--output", type=options.OUTPUT_PATH, help="Write the calibration to this file.")
@click.option(
    "--workload",
    type=options.OUTPUT_PATH,
    help="Write the compute times of a measured model, of step times or of torch.profiler traces to this file.",
)
@click.option(
    "--base",
    metavar="NAME",
    help="Calibration that gives what the files do not measure, with its intervals, such as a100_tcp_estimate.",
)
@click.option(
    "--experiment", metavar="NAME", help="Experiment that the step times trained: cluster, workload, strategies."
)
@click.option("--trained", metavar="NAME", help="Workload that was timed or traced, in place of --experiment.")
@click.option("--batch", type=click.IntRange(1, 10**9), help="Samples of a traced rank, which no trace holds.")
@click.option(
    "--hold-out",
    "held_out_paths",
    multiple=True,
    type=options.INPUT_PATH,
    help="Predict this file instead of fitting it, and print each of its rows; repeatable.",
)
@click.option(
    "--in-place", "in_place_paths", multiple=True, type=options.INPUT_PATH,
    help="Collectives of simnet lab without a NIC limit and with as many ranks as in training: fits the CPU time "
    "per message and the links inside a node; repeatable.",
)  # fmt: skip
@click.option("--cluster", metavar="NAME", help="Cluster whose nominal bandwidths the fitted efficiencies refer to.")
@click.option(
    "--bound",
    type=options.Number(0, 1000),
    default=BOUND_PERCENT,
    show_default=True,
    help="Largest mean residual of a fit [%]; above it, the fit is refused.",
)
@click.option("--accept-poor-fit", is_flag=True, help="Write a fit that is above --bound.")
@options.BOOTSTRAP_DRAWS
@click.option("--figure", type=options.OUTPUT_PATH, help="Draw the residuals to this PNG file.")
@click.option("--all-rows", is_flag=True, help="Print every residual.")
@options.form("table", "json")
def command(  # noqa: PLR0913, PLR0917 - one argument an option
    files: tuple[Path, ...],
    output: Path | None,
    workload: Path | None,
    base: str | None,
    experiment: str | None,
    trained: str | None,
    batch: int | None,
    held_out_paths: tuple[Path, ...],
    in_place_paths: tuple[Path, ...],
    cluster: str | None,
    bound: float,
    accept_poor_fit: bool,
    draws: int,
    figure: Path | None,
    all_rows: bool,
    form: str,
) -> None:
    """Run `simnet calibrate`."""
    from simnet.fitting import calibration_file, fit_files, over_base, sources
    from simnet.fitting.fitted_part import check_errors, checked_residuals
    from simnet.fitting.step_model import Trained
    from simnet.fitting.was_trained import WasTrained
    from simnet.show import calibration as shown

    train, held_out, in_place = map(sources.read, (files, held_out_paths, in_place_paths))
    _check_disjoint(files, held_out_paths, "--hold-out")
    _check_disjoint(files, in_place_paths, "--in-place")
    _check_effect(train, held_out, workload, experiment or trained, batch)
    known = WasTrained.of(experiment, trained, cluster)
    fit_options = fit_files.FitOptions(
        cluster=_cluster(cluster) or known.cluster,
        bound=bound / 100,
        draws=draws,
        base=over_base.read(base) if base is not None else None,
        trained=Trained(known.scenario, _simulate_s) if known.cluster else None,
    )
    # Last, since no output may replace any file that was read.
    check_files(output=output, workload=workload, figure=figure)
    parts = fit_files.fit_parts(train, held_out, in_place, fit_options)
    _check_asked(train, parts, output, workload)
    residuals = [residual for part in parts for residual in part.residuals]
    if held_out_paths and not any(residual.role == "held out" for residual in residuals):
        raise SimnetError("--hold-out: the fitted files predict nothing in these files; drop it")
    whole = calibration_file.merge(parts, calibration_file.header(train, in_place, known.nic_bytes_per_s))
    notes = over_base.notes(whole, fit_options.base) if any(part.table for part in parts) else ()
    traces = [(trace, str(path)) for trace, path in train.traces]
    if form == "json":
        say(json.dumps(shown.to_object(traces, parts, notes), indent=2))
    else:
        listed = [one for one in residuals if all_rows or one.role == "held out"]
        say(shown.calibration_page(traces, parts, listed, notes))
    if figure is not None:
        _draw(residuals, figure)
    if not accept_poor_fit:
        check_errors(checked_residuals(parts), bound / 100)
    if output is not None:
        whole = over_base.fitted_over(whole, fit_options.base) if fit_options.base else whole
        emit(calibration_file.text(whole, [calibration_file.comment(train, in_place)]), output)
        tell(f"wrote {output}")
    if workload is not None:
        emit(_workload_text(train, parts, known, batch, draws), workload)
        tell(f"wrote {workload}")


def _simulate_s(scenario: "Scenario") -> float:
    from simnet.simulation import simulate

    return simulate(scenario).result.iteration_s


def _workload_text(
    train: "Sources", parts: "list[FittedPart]", known: "WasTrained", batch: int | None, draws: int
) -> str:
    from simnet.fitting import trained_workload, workload_file
    from simnet.fitting.step_part import FittedSteps

    models = [pair for pair in train.files if workload_file.has_model(pair[1])]
    if models:
        return workload_file.text_of_model(models, draws=draws)
    if train.traces:
        return trained_workload.text_of_traces(train.traces, batch, known.workload)
    found = next(part.found for part in parts if isinstance(part, FittedSteps))
    return trained_workload.text_of_steps(found, train.tables, known.nic_bytes_per_s)


def _draw(residuals: "list[Comparison]", path: Path) -> None:
    """Write the figure, also of a fit that is then refused."""
    from simnet.files import write_file
    from simnet.show.calibration_figure import png

    if not residuals:
        raise SimnetError("--figure: there are no residuals to draw; drop it")
    write_file(path, png(residuals))
    tell(f"wrote {path}")


def _cluster(name: str | None) -> "Cluster | None":
    from simnet import files
    from simnet.hardware import Cluster
    from simnet.schema import build

    if name is None:
        return None
    label = files.label(files.locate("clusters", name))
    return build(Cluster, {"name": name, **files.read("clusters", name)}, label)


def _check_disjoint(files: tuple[Path, ...], others: tuple[Path, ...], option: str) -> None:
    both = {path.resolve() for path in files} & {path.resolve() for path in others}
    for path in others:
        if path.resolve() in both:
            raise SimnetError(f"{option} {path}: is also a file to fit; name it once")


def _check_effect(
    train: "Sources", held_out: "Sources", workload: Path | None, trained: str | None, batch: int | None
) -> None:
    """Refuse options without an effect on these files."""
    if trained is not None and not (train.tables or (train.traces and workload)):
        raise SimnetError("--experiment, --trained: no effect without step times, or traces with --workload; drop it")
    if batch is not None and not (train.traces and workload):
        raise SimnetError("--batch: no effect without a trace and --workload; drop it")
    for table in held_out.tables:
        if same := [one for one in train.tables if one.digest == table.digest]:
            raise SimnetError(f"--hold-out {table.path}: holds the same as {same[0].path}; fit one or predict it")
    if held_out.tables and not train.tables:
        raise SimnetError(
            f"--hold-out {held_out.tables[0].path}: step times are predicted by step times; give some to fit"
        )


def _check_asked(train: "Sources", parts: "list[FittedPart]", output: Path | None, workload: Path | None) -> None:
    """Refuse outputs that the files cannot fill, and files that fill no output."""
    from simnet.fitting.workload_file import has_model

    has_fit = any(part.table for part in parts)
    if output is not None and not has_fit:
        raise SimnetError(
            "-o: the files tell neither links nor kernels; give --workload FILE for traces or steps of one rank"
        )
    num_models = sum(map(has_model, train.measurements))
    kinds = min(len(train.traces), 1) + min(num_models, 1) + min(len(train.tables), 1)
    if workload is not None and kinds != 1:
        raise SimnetError(
            f"--workload: {len(train.traces)} traces, {num_models} files of simnet measure model and "
            f"{len(train.tables)} tables of step times: give files of one of these kinds"
        )
    if not has_fit and not train.traces and not num_models and not train.tables:
        raise SimnetError(
            "calibrate: the files hold no collective and no kernel of the simulator; measure some with simnet measure"
        )

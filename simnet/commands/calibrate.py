"""`simnet calibrate`: measurements to a calibration, with intervals and residuals."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from simnet.commands import options
from simnet.commands.output import check_files, emit
from simnet.commands.terminal import say, tell
from simnet.errors import SimnetError

if TYPE_CHECKING:
    from simnet.calibrate.fitted_part import FittedPart
    from simnet.calibrate.sources import Sources
    from simnet.comparison import Comparison
    from simnet.hardware import Cluster

BOUND_PERCENT = 10.0


@click.command(
    "calibrate",
    help="Fit a calibration to FILES of simnet measure and simnet lab, logs of nccl-tests and iperf3 -J.\n\n"
    "With --workload: take the compute times of a workload from a model of simnet measure or a trace of "
    "torch.profiler. Residuals are printed; a fit with a mean residual above --bound is refused.",
    epilog="\b\nExample:\n  simnet calibrate 8gpus.log 16gpus.log --hold-out 32gpus.log --cluster azure_nd_a100_v4 "
    "-o mine.toml",
)
@click.argument("files", nargs=-1, required=True, type=options.INPUT_PATH)
@click.option("-o", "--output", type=options.OUTPUT_PATH, help="Write the calibration to this file.")
@click.option(
    "--workload",
    type=options.OUTPUT_PATH,
    help="Write the compute times of a measured model or a torch.profiler trace to this file.",
)
@click.option(
    "--hold-out",
    "held_out_paths",
    multiple=True,
    type=options.INPUT_PATH,
    help="Predict this file instead of fitting it; repeatable.",
)
@click.option(
    "--in-place", "in_place_paths", multiple=True, type=options.INPUT_PATH,
    help="Collectives of simnet lab without a NIC limit and with as many ranks as in training: fits the CPU time "
    "per message and the links inside a node; repeatable.",
)  # fmt: skip
@click.option("--cluster", metavar="NAME", help="Cluster whose nominal bandwidths the fitted efficiencies refer to.")
@click.option(
    "--bound",
    type=click.FloatRange(0, 1000),
    default=BOUND_PERCENT,
    show_default=True,
    help="Largest mean residual of a fit [%]; above it, the fit is refused.",
)
@click.option("--accept-poor-fit", is_flag=True, help="Write a fit that is above --bound.")
@options.BOOTSTRAP_DRAWS
@click.option("--figure", type=options.OUTPUT_PATH, help="Draw the residuals to this PNG file.")
@click.option("--all-rows", is_flag=True, help="Print every residual.")
def command(  # noqa: PLR0913, PLR0917 - one argument an option
    files: tuple[Path, ...],
    output: Path | None,
    workload: Path | None,
    held_out_paths: tuple[Path, ...],
    in_place_paths: tuple[Path, ...],
    cluster: str | None,
    bound: float,
    accept_poor_fit: bool,
    draws: int,
    figure: Path | None,
    all_rows: bool,
) -> None:
    """Run `simnet calibrate`."""
    from simnet.calibrate import calibration_file, fit_files, sources, workload_file
    from simnet.calibrate.fitted_part import check_errors, checked_residuals
    from simnet.show.calibration import calibration_page

    train, held_out, in_place = map(sources.read, (files, held_out_paths, in_place_paths))
    check_files(output=output, workload=workload, figure=figure)
    _check_disjoint(files, held_out_paths, "--hold-out")
    _check_disjoint(files, in_place_paths, "--in-place")
    options = fit_files.FitOptions(cluster=_cluster(cluster), bound=bound / 100, draws=draws)
    parts = fit_files.fit_parts(train, held_out, in_place, options)
    _check_asked(train, parts, output, workload)
    residuals = [residual for part in parts for residual in part.residuals]
    if held_out_paths and not any(residual.role == "held out" for residual in residuals):
        raise SimnetError("--hold-out: the fitted files predict nothing in these files; drop it")
    traces = ((trace, str(path)) for trace, path in train.traces)
    say(calibration_page(traces, parts, residuals if all_rows else ()))
    if figure is not None:
        _draw(residuals, figure)
    if not accept_poor_fit:
        check_errors(checked_residuals(parts), bound / 100)
    if output is not None:
        whole = calibration_file.merge(parts, calibration_file.header(train, in_place))
        emit(calibration_file.text(whole, [calibration_file.comment(train, in_place)]), output)
        tell(f"wrote {output}")
    if workload is not None:
        models = [pair for pair in train.files if workload_file.has_model(pair[1])]
        if models:
            emit(workload_file.text_of_model(models, draws=draws), workload)
        else:
            emit(workload_file.text_of_trace(*train.traces[0]), workload)
        tell(f"wrote {workload}")


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


def _check_asked(train: "Sources", parts: "list[FittedPart]", output: Path | None, workload: Path | None) -> None:
    """Refuse outputs that the files cannot fill, and files that fill no output."""
    from simnet.calibrate.workload_file import has_model

    if output is not None and not parts:
        raise SimnetError("-o: the files measure neither links nor kernels; give --workload FILE for a trace")
    num_models = sum(map(has_model, train.measurements))
    if workload is not None and len(train.traces) + min(num_models, 1) != 1:
        raise SimnetError(
            f"--workload: {len(train.traces)} traces and {num_models} files of simnet measure model: give one trace, "
            "or files of one model"
        )
    if not parts and not train.traces and not num_models:
        raise SimnetError(
            "calibrate: the files hold no collective and no kernel of the simulator; measure some with simnet measure"
        )

"""`simnet calibrate`: measurements to a calibration, with intervals and residuals."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from simnet.commands import options
from simnet.commands.output import check_files, emit
from simnet.commands.terminal import say, tell
from simnet.errors import SimnetError

if TYPE_CHECKING:
    from simnet.calibrate.fit import Fitted
    from simnet.calibrate.sources import Sources
    from simnet.comparison import Comparison
    from simnet.hardware import Cluster

BOUND_PERCENT = 10.0


@click.command(
    "calibrate",
    help="Fit a calibration to measured FILES: those of simnet measure and simnet lab, the text of nccl-tests, and "
    "iperf3 -J; with --workload, a workload to a model of "
    "simnet measure or a trace of torch.profiler. Residuals are printed; a fit that explains "
    "its own rows badly is refused.",
    epilog="\b\nExample:\n  simnet calibrate 8gpus.log 16gpus.log --hold-out 32gpus.log --cluster azure_nd_a100_v4 "
    "-o mine.toml",
)
@click.argument("files", nargs=-1, required=True, type=options.INPUT)
@click.option("-o", "--output", type=options.PLACE, help="Write the calibration to this file.")
@click.option(
    "--workload",
    type=options.PLACE,
    help="Write the compute times of a measured model or a torch.profiler trace to this file.",
)
@click.option(
    "--hold-out", "held_out", multiple=True, type=options.INPUT, help="Predict this file and do not fit it; repeatable."
)
@click.option(
    "--in-place", "in_place", multiple=True, type=options.INPUT,
    help="Collectives on NICs without a limit, by as many ranks on the machine as will train: what their cores take, "
    "and the links inside a node; repeatable.",
)  # fmt: skip
@click.option("--cluster", metavar="NAME", help="Cluster of nominal bandwidths that efficiencies are fractions of.")
@click.option(
    "--bound",
    type=click.FloatRange(0, 1000),
    default=BOUND_PERCENT,
    show_default=True,
    help="Mean relative residual from which on a fit is refused [%].",
)
@click.option("--accept-poor-fit", is_flag=True, help="Write a fit that is above the bound.")
@options.FITS
@click.option("--figure", type=options.PLACE, help="Draw the residuals to this PNG file.")
@click.option("--all-rows", is_flag=True, help="Print every residual.")
def command(  # noqa: PLR0913, PLR0917 - one argument an option
    files: tuple[Path, ...],
    output: Path | None,
    workload: Path | None,
    held_out: tuple[Path, ...],
    in_place: tuple[Path, ...],
    cluster: str | None,
    bound: float,
    accept_poor_fit: bool,
    draws: int,
    figure: Path | None,
    all_rows: bool,
) -> None:
    """Run `simnet calibrate`."""
    from simnet.calibrate import fitting, sources, workload_file, write
    from simnet.calibrate.fit import check_errors, judged
    from simnet.show.calibration import calibration_page

    known, unseen, placed = sources.read(files), sources.read(held_out), sources.read(in_place)
    check_files(output=output, workload=workload, figure=figure)
    _check_disjoint(files, held_out, "--hold-out")
    _check_disjoint(files, in_place, "--in-place")
    options = fitting.Options(cluster=_cluster(cluster), bound=bound / 100, draws=draws)
    parts = fitting.parts(known, unseen, placed, options)
    _check_asked(known, parts, output, workload)
    residuals = [residual for part in parts for residual in part.residuals]
    if held_out and not any(residual.role == "held out" for residual in residuals):
        raise SimnetError("--hold-out: nothing in these files can be predicted from those fitted; drop it")
    traces = ((trace, str(path)) for trace, path in known.traces)
    say(calibration_page(traces, parts, residuals if all_rows else ()))
    if figure is not None:
        _draw(residuals, figure)
    if not accept_poor_fit:
        check_errors(judged(parts), bound / 100)
    if output is not None:
        emit(write.text(write.document(parts, write.head(known, placed)), [write.comment(known, placed)]), output)
        tell(f"wrote {output}")
    if workload is not None:
        models = [pair for pair in known.files if workload_file.has_model(pair[1])]
        text = workload_file.text_of_model(models, draws=draws) if models else workload_file.text(*known.traces[0])
        emit(text, workload)
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
            raise SimnetError(f"{option} {path}: is among the files to fit; name it once")


def _check_asked(known: "Sources", parts: "list[Fitted]", output: Path | None, workload: Path | None) -> None:
    """Refuse outputs that the files cannot fill, and files that fill no output."""
    from simnet.calibrate.workload_file import has_model

    if output is not None and not parts:
        raise SimnetError("-o: the files tell nothing about links or kernels; give --workload FILE for a trace")
    num_models = sum(map(has_model, known.measurements))
    if workload is not None and len(known.traces) + min(num_models, 1) != 1:
        raise SimnetError(
            f"--workload: {len(known.traces)} traces and {num_models} files of simnet measure model: give one trace, "
            "or files of one model"
        )
    if not parts and not known.traces and not num_models:
        raise SimnetError("calibrate: the files have no collectives and no kernels that the simulator knows")

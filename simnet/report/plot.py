"""Draw the results of a sweep, or of one run, and write the figures to files."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simnet.analysis import results_file
from simnet.core.errors import SimnetError
from simnet.core.files import write_file
from simnet.engine.result import RunResult, SweepResult
from simnet.report.figure import SCREEN, FigureStyle, Format, image, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OF_ONE_RUN = ("breakdown", "hangs_on", "iterations", "lost_time")
OF_FAULTS = ("iterations", "lost_time")
"""Figures that only a cluster with faults has."""


def plot(
    results: Path,
    directory: Path,
    file_format: Format = "png",
    style: FigureStyle = SCREEN,
    names: Sequence[str] = (),
) -> dict[Path, str]:
    """Draw every figure for which the results have the axes; of one run those of `OF_ONE_RUN` that it has data for.

    Args:
        results: The `results.json` of a sweep, or the sweep's folder, or the JSON of one run.
        directory: Where the figures go; made if it is not there.
        file_format: What the figures are written as.
        style: How they look.
        names: The figures to draw; all that are possible where none is named.

    Returns:
        The caption of each file written.

    Raises:
        SimnetError: the results are damaged, empty, of another format, or of one point; or a named figure cannot be
            drawn; or a figure cannot be written.
    """
    run = results_file.read_run(results)
    sweep = None if run else results_file.read(results)
    if sweep is not None and not sweep.varied:
        raise SimnetError(f"{results}: {len(sweep.points)} point: figures need at least two values of some key")
    with styled(style):
        drawn = _of_run(run, str(results), names) if run else _of_sweep(sweep, str(results), names) if sweep else {}
        images = {directory / f"{name}.{file_format}": image(figure, file_format) for name, figure in drawn.items()}
    for path, contents in images.items():
        write_file(path, contents, inside=directory)
    return dict(zip(images, (str(figure.get_label()) for figure in drawn.values()), strict=True))


def notes(results: Path) -> list[str]:
    """Return what the figures of results do not show: why one cannot be drawn, and of which points one is.

    Raises:
        SimnetError: the results cannot be read.
    """
    run = results_file.read_run(results)
    if run is not None:
        is_uneven = bool(run.scenario.cluster.all_faults)
        return [
            f"{name} is not drawn: {why}" for name, why in _missing(run).items() if is_uneven or name not in OF_FAULTS
        ]
    with styled():
        from simnet.report import drawings

        sweep = results_file.read(results)
        missing = [f"{name} is not drawn: {why}" for name, why in drawings.left_out(sweep).items()]
        return missing + [f"{name} {what}" for name, what in drawings.narrowed(sweep).items()]


NO_INTERVALS = "needs intervals; simulate with a baseline, or with --draws 200"
ALIKE = "all iterations take as long; give the cluster faults that vary or come and go"
NO_LOST_TIME = "needs the time lost to each fault; simulate with --lost-time"


def _missing(run: RunResult) -> dict[str, str]:
    """Return why a figure of one run is not drawn, by its name, as far as its scenario could have it."""
    has_lost = run.result.lost_time is not None
    reasons = {
        "hangs_on": "" if run.hangs_on else NO_INTERVALS,
        "iterations": "" if run.result.varies or (run.baseline is not None and run.baseline.varies) else ALIKE,
        "lost_time": "" if has_lost else NO_LOST_TIME,
    }
    return {name: reason for name, reason in reasons.items() if reason}


def _of_sweep(sweep: SweepResult, where: str, names: Sequence[str]) -> "dict[str, Figure]":
    from simnet.report.drawings import draw

    return draw(sweep, where=where, names=names)


def _of_run(run: RunResult, where: str, names: Sequence[str]) -> "dict[str, Figure]":
    """Draw where the time of a step goes and, where a run has the data, the others of `OF_ONE_RUN`."""
    from simnet.report import figures

    missing = _missing(run)
    makers = (figures.breakdown, figures.tornado, figures.iterations, figures.lost_time)
    made = dict(zip(OF_ONE_RUN, makers, strict=True))
    possible = {name: make for name, make in made.items() if name not in missing}
    for name in names:
        if name not in OF_ONE_RUN:
            raise SimnetError(f"{where}: --figure: {name!r}: no figure of one run; there are {', '.join(OF_ONE_RUN)}")
        if name in missing:
            raise SimnetError(f"{where}: --figure: {name!r}: {missing[name]}; there is {', '.join(possible)}")
    return {name: make(run) for name, make in possible.items() if not names or name in names}

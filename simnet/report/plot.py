"""Draw the results of a sweep, or of one run, and write the figures to files."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from simnet.analysis import results_file
from simnet.core.errors import SimnetError
from simnet.core.files import write_file
from simnet.engine.result import RunResult, point_result
from simnet.report import step_charts
from simnet.report.chart import Chart
from simnet.report.figure import SCREEN, FigureStyle, Format, current, image, styled
from simnet.report.labels import against_flat, calibration_name, context, varies
from simnet.report.text import count_text, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_INTERVALS = "needs intervals; simulate with a baseline, or with --draws 200"
ALIKE = "all iterations take as long; give the cluster faults that vary or come and go"
NO_LOST_TIME = "needs the time lost to each fault; simulate with --lost-time"
OF_FAULTS = ("iterations", "lost_time")
"""Figures that only a cluster with faults has."""


class RunFigure(NamedTuple):
    """A figure of one run.

    Attributes:
        what: its charts show; the start of the caption.
        charts: side by side.
        missing: why a run has no such figure; "" where it has.
    """

    what: Callable[[RunResult], str]
    charts: Callable[[RunResult], list[Chart]]
    missing: Callable[[RunResult], str]


OF_ONE_RUN = {
    "breakdown": RunFigure(
        lambda _: "Time of a step by part, on the slowest rank",
        lambda run: [step_charts.breakdown([run])],
        lambda _: "",
    ),
    "hangs_on": RunFigure(
        lambda _: "What the result is sensitive to",
        lambda run: [step_charts.tornado(run)],
        lambda run: "" if run.sensitive_to else NO_INTERVALS,
    ),
    "iterations": RunFigure(
        lambda run: f"Times of {count_text(run.result.num_iterations, 'iteration')}",
        lambda run: [step_charts.distribution(run, over_median=over_median) for over_median in (False, True)],
        lambda run: "" if varies(run) else ALIKE,
    ),
    "lost_time": RunFigure(
        lambda _: "Time lost by cause",
        lambda run: [step_charts.lost_time(run, relative=relative) for relative in (False, True)],
        lambda run: "" if run.result.lost_time is not None else NO_LOST_TIME,
    ),
}


def of_run(run: RunResult, name: str) -> "Figure":
    """Return one of the figures `OF_ONE_RUN` of a run that has the data."""
    from simnet.report.chart_matplotlib import figure_of

    found = OF_ONE_RUN[name]
    title = f"{found.what(run)}: {context([point_result({}, run)])}"
    source = f"Simulated by simnet {printable(run.version)}. Calibration: {calibration_name(run)}."
    source = f"{source} {against_flat([run])}".strip()
    panels = {" " * place: chart for place, chart in enumerate(found.charts(run))}
    return figure_of(panels, title=title, footer=source, width_in=current().page_in, shared="y")


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
        from simnet.report.drawings import draw

        drawn = (
            _of_run(run, str(results), names) if run else draw(sweep, where=str(results), names=names) if sweep else {}
        )
        images = {directory / f"{name}.{file_format}": image(figure, file_format) for name, figure in drawn.items()}
    for path, contents in images.items():
        write_file(path, contents, inside=directory)
    return dict(zip(images, (str(figure.get_label()) for figure in drawn.values()), strict=True))


def notes(results: Path) -> list[str]:
    """Return what the figures of results do not show: why one cannot be drawn, and of which points one is."""
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


def _missing(run: RunResult) -> dict[str, str]:
    """Return why a figure of one run is not drawn, by its name."""
    return {name: reason for name, figure in OF_ONE_RUN.items() if (reason := figure.missing(run))}


def _of_run(run: RunResult, where: str, names: Sequence[str]) -> "dict[str, Figure]":
    """Draw where the time of a step goes and, where a run has the data, the others of `OF_ONE_RUN`."""
    missing = _missing(run)
    possible = [name for name in OF_ONE_RUN if name not in missing]
    for name in names:
        if name not in OF_ONE_RUN:
            raise SimnetError(f"{where}: --figure: {name!r}: no figure of one run; there are {', '.join(OF_ONE_RUN)}")
        if name in missing:
            raise SimnetError(f"{where}: --figure: {name!r}: {missing[name]}; there is {', '.join(possible)}")
    return {name: of_run(run, name) for name in possible if not names or name in names}

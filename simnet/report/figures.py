"""The figures of answers, for print: each is its charts as panels, with a title and a source."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simnet.analysis.advice import Advice
from simnet.analysis.time_to_target import TimesToTarget
from simnet.calibration.comparison import Comparison
from simnet.core.units import format_seconds
from simnet.engine.result import RunResult, point_result
from simnet.report import comparison_charts, step_charts
from simnet.report.advice import heading
from simnet.report.chart import Chart
from simnet.report.chart_matplotlib import figure_of
from simnet.report.figure import COLUMN_IN, PAGE_IN, Format, current, image, styled
from simnet.report.labels import against_references, calibration_name, context
from simnet.report.text import count_text, printable
from simnet.validation.outcome import SCALE, Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simnet.validation.training_steps import TrainedPoint

COLUMNS = 3
MANY_POINTS = 20
SQUARE_IN, LARGE_SQUARE_IN = (COLUMN_IN, 3.0), (4.6, 4.3)
"""Width and height of a scatter; of one of many points."""
MEASURED = "{}: measured (markers) and predicted (lines, 90 % intervals)"


def of_run(run: RunResult, what: str, *charts: Chart) -> "Figure":
    """Return charts of one run side by side; `what` they show starts the caption."""
    where = f"{what}: {context([point_result({}, run)])}"
    source = f"Simulated by simnet {printable(run.version)}. Calibration: {calibration_name(run)}."
    source = f"{source} {against_references([run])}".strip()
    panels = {" " * place: chart for place, chart in enumerate(charts)}
    return figure_of(panels, title=where, footer=source, width_in=current().page_in, shared="y")


def breakdown(run: RunResult) -> "Figure":
    """Return where the time of a step goes."""
    return of_run(run, "Time of a step by part, on the slowest rank", step_charts.breakdown([run]))


def tornado(run: RunResult) -> "Figure":
    """Return the result at both ends of the interval of each value that it is sensitive to."""
    return of_run(run, "What the result is sensitive to", step_charts.tornado(run))


def iterations(run: RunResult) -> "Figure":
    """Return how times of iterations are distributed: the times, and the times over their own median."""
    charts = [step_charts.distribution(run, over_median=over_median) for over_median in (False, True)]
    return of_run(run, f"Times of {count_text(run.result.num_iterations, 'iteration')}", *charts)


def lost_time(run: RunResult) -> "Figure":
    """Return what each fault costs a step: as a time, and as a share of the own step."""
    charts = [step_charts.lost_time(run, relative=relative) for relative in (False, True)]
    return of_run(run, "Time lost by cause", *charts)


def advice(found: Advice) -> "Figure":
    """Return the speedup of each system over the bandwidth of a NIC.

    Raises:
        SimnetError: there is nothing to draw.
    """
    chart = comparison_charts.advised(found)
    where, *_ = heading(found)
    title = f"{where}; system and {comparison_charts.baseline_name(found)} tuned at each bandwidth"
    return figure_of({"": chart}, title=title, panel_in=3.4, width_in=current().page_in)


def time_to_target(found: TimesToTarget) -> "Figure":
    """Return the metric over simulated time, a panel for each bandwidth."""
    panels = {f"NIC {one.bandwidth.text()}": comparison_charts.over_time(found, one) for one in found.bandwidths}
    return figure_of(panels, width_in=current().page_in, shared="y")


def published(outcome: Outcome) -> bytes:
    """Return a published set as PNG: a scatter, or curves over batch size where it has some."""
    with styled():
        if outcome.curves:
            panels = comparison_charts.published_curves(outcome.curves)
            return image(figure_of(panels, title=outcome.title, columns=len(panels), shared="y", width_in=PAGE_IN))
        noun = comparison_charts.NOUNS[outcome.unit]
        chart = comparison_charts.predicted_over_measured(outcome.predictions, noun, SCALE[outcome.unit])
        width, height = LARGE_SQUARE_IN if len(outcome.predictions) > MANY_POINTS else SQUARE_IN
        return image(figure_of({"": chart}, title=outcome.title, panel_in=height, width_in=width))


def steps(points: Sequence[Comparison], title: str = "", file_format: Format = "png") -> bytes:
    """Return times of steps, predicted over measured, as a figure's file."""
    width, height = LARGE_SQUARE_IN
    with styled():
        made = figure_of({"": comparison_charts.steps(points)}, title=title, panel_in=height, width_in=width)
        return image(made, file_format)


def percentiles(panels: Mapping[str, Sequence[Comparison]]) -> bytes:
    """Return times of steps, predicted over measured, as PNG, a panel a percentile."""
    with styled():
        charts = {name: comparison_charts.steps(points) for name, points in panels.items()}
        return image(figure_of(charts, panel_in=3.3, width_in=PAGE_IN))


def residuals(comparisons: Sequence[Comparison], file_format: Format = "png") -> bytes:
    """Return the relative errors of a fit over measured times as a figure's file."""
    with styled():
        panels = {"": comparison_charts.residuals(comparisons)}
        return image(figure_of(panels, panel_in=2.6, width_in=current().page_in), file_format)


def campaign(points: "Sequence[TrainedPoint]", model: str, systems: Mapping[str, Sequence[str]]) -> bytes:
    """Return times of one model's steps over NIC bandwidth as PNG, a panel a layout, or a layout and a system.

    Args:
        points: of one model.
        model: its name.
        systems: the strategies of each panel by its title; none where all are in each.
    """
    layouts = dict.fromkeys(map(_place, points))
    groups = systems or {"": sorted({point.series for point in points})}
    panels = {}
    for place in layouts:
        there = [point for point in points if _place(point) == place]
        for title, names in groups.items():
            looks = {name: index for index, name in enumerate(names)}
            mine = [point for point in there if point.series in looks]
            if mine:
                panels[", ".join(filter(None, (title, place)))] = comparison_charts.steps_over_rates(mine, looks)
    columns = len(systems) or COLUMNS
    with styled():
        made = figure_of(panels, title=MEASURED.format(model), columns=columns, width_in=PAGE_IN, shared="both")
        return image(made)


def _place(point: "TrainedPoint") -> str:
    _, nodes, ranks, _, latency_s = point.setting
    return f"{nodes} nodes x {ranks}" + (f", {format_seconds(latency_s)}" if latency_s else "")

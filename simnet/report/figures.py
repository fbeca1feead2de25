"""The figures of answers, for print: each is its charts as panels, with a title and a source."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simnet.analysis.advice import Advice
from simnet.analysis.time_to_target import TimesToTarget
from simnet.calibration.comparison import Comparison
from simnet.report import comparison_charts
from simnet.report.advice import heading
from simnet.report.chart import Chart
from simnet.report.chart_matplotlib import figure_of
from simnet.report.figure import COLUMN_IN, PAGE_IN, Format, current, image, styled
from simnet.validation.outcome import SCALE, Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MANY_POINTS = 20
SQUARE_IN, LARGE_SQUARE_IN = (COLUMN_IN, 3.0), (4.6, 4.3)
"""Width and height of a scatter; of one of many points."""


def advice(ranked: Advice) -> "Figure":
    """Return the speedup of each system over the bandwidth of a NIC."""
    chart = comparison_charts.advised(ranked)
    where, *_ = heading(ranked)
    title = f"{where}; all tuned at each bandwidth"
    return figure_of({"": chart}, title=title, panel_in=3.4, width_in=current().page_in)


def time_to_target(times: TimesToTarget) -> "Figure":
    """Return the metric over simulated time, a panel for each bandwidth."""
    panels = {f"NIC {there.bandwidth.text()}": comparison_charts.over_time(times, there) for there in times.bandwidths}
    return figure_of(panels, width_in=current().page_in, shared="y")


def published(outcome: Outcome) -> bytes:
    """Return a published set as PNG: a scatter, or curves over batch size where it has some."""
    if outcome.curves:
        panels = comparison_charts.published_curves(outcome.curves)
        return drawn(panels, title=outcome.title, columns=len(panels), shared="y", width_in=PAGE_IN)
    noun = comparison_charts.NOUNS[outcome.unit]
    chart = comparison_charts.predicted_over_measured(outcome.predictions, noun, SCALE[outcome.unit])
    width, height = LARGE_SQUARE_IN if len(outcome.predictions) > MANY_POINTS else SQUARE_IN
    return drawn({"": chart}, title=outcome.title, panel_in=height, width_in=width)


def drawn(panels: Mapping[str, Chart], file_format: Format = "png", **layout: Any) -> bytes:
    """Return charts as panels, as a figure's file."""
    with styled():
        return image(figure_of(panels, **layout), file_format)


def steps(points: Sequence[Comparison], title: str = "", file_format: Format = "png") -> bytes:
    """Return times of steps, predicted over measured, as a figure's file."""
    width, height = LARGE_SQUARE_IN
    return drawn({"": comparison_charts.steps(points)}, file_format, title=title, panel_in=height, width_in=width)


def residuals(comparisons: Sequence[Comparison], file_format: Format = "png") -> bytes:
    """Return the relative errors of a fit over measured times as a figure's file."""
    return drawn({"": comparison_charts.residuals(comparisons)}, file_format, panel_in=2.6, width_in=PAGE_IN)

"""Draw answers into axes that the user gives, or into new ones of the project's look."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simnet.core.errors import SimnetError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from simnet.analysis.advice import Advice
    from simnet.analysis.crossover import Crossover
    from simnet.analysis.time_to_target import TimesToTarget
    from simnet.calibration.comparison import Comparison
    from simnet.engine.result import RunResult, SweepResult
    from simnet.report.chart import Chart
    from simnet.validation.outcome import Unit

SIZE_IN = (6.4, 3.6)
"""Of a figure that nobody has given axes for."""


def draw_run(result: "RunResult", ax: "Axes | None") -> "Axes":
    """Draw where the time of a step goes."""
    from simnet.report import step_charts

    return _drawn(ax, step_charts.breakdown([result]), loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)


def draw_sweep(sweep: "SweepResult", ax: "Axes | None") -> "Axes":
    """Draw the speedup over the last key that varies."""
    from simnet.report import charts

    return _drawn(ax, charts.of_sweep(sweep))


def draw_crossover(found: "Crossover", ax: "Axes | None") -> "Axes":
    """Draw the speedup over the key."""
    from simnet.report import charts

    return _drawn(ax, charts.crossover(found))


def draw_advice(advice: "Advice", ax: "Axes | None") -> "Axes":
    """Draw the speedup of every system over NIC bandwidth."""
    from simnet.report import comparison_charts

    return _drawn(ax, comparison_charts.advised(advice), fontsize="small")


def draw_time_to_target(found: "TimesToTarget", ax: "Axes | None") -> "Axes":
    """Draw the metric over simulated time at the first bandwidth."""
    from simnet.report import comparison_charts

    return _drawn(ax, comparison_charts.over_time(found, found.bandwidths[0]))


def draw_residuals(residuals: "Sequence[Comparison]", ax: "Axes | None") -> "Axes":
    """Draw relative errors over measured times."""
    from simnet.report import comparison_charts

    return _drawn(ax, comparison_charts.residuals(_some(residuals)))


def draw_comparisons(comparisons: "Sequence[Comparison]", unit: "Unit", ax: "Axes | None") -> "Axes":
    """Draw predicted over measured values in a unit."""
    from simnet.report import comparison_charts
    from simnet.validation.outcome import SCALE

    noun = comparison_charts.NOUNS[unit]
    return _drawn(ax, comparison_charts.predicted_over_measured(_some(comparisons), noun, SCALE[unit]))


def _some(comparisons: "Sequence[Comparison]") -> "Sequence[Comparison]":
    if not comparisons:
        raise SimnetError("plot: there is nothing to draw: the answer holds no measured values")
    return comparisons


def _drawn(ax: "Axes | None", chart: "Chart", **legend: object) -> "Axes":
    """Draw a chart into axes, which are made in the project's look where none are given."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise SimnetError("plot: matplotlib is missing: a figure needs it; pip install matplotlib") from error
    from simnet.report.chart_matplotlib import add_legend, draw
    from simnet.report.figure import styled

    # Loads the backend, which in a notebook turns interactive on: inside of `styled` that would be undone at its end,
    # and no further figure would be shown.
    pyplot.draw_if_interactive()  # type: ignore[no-untyped-call]
    with styled():
        axes = pyplot.subplots(figsize=SIZE_IN, layout="constrained")[1] if ax is None else ax
        draw(axes, chart)
        add_legend(axes, [chart], **legend)
    return axes

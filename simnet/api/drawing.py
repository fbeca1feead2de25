"""Draw answers into axes that the user gives, or into new ones of the project's look."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from simnet.core.errors import SimnetError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from simnet.analysis.advice import Advice
    from simnet.analysis.crossover import Crossover
    from simnet.analysis.time_to_target import TimesToTarget
    from simnet.calibration.comparison import Comparison
    from simnet.engine.result import RunResult, SweepResult
    from simnet.validation.outcome import Unit

SIZE_IN = (6.4, 3.6)
"""Of a figure that nobody has given axes for."""


def draw_run(result: "RunResult", ax: "Axes | None") -> "Axes":
    """Draw where the time of a step goes."""

    def draw(axes: "Axes") -> None:
        from simnet.report import figures

        figures.draw_breakdown(axes, result)

    return _drawn(ax, draw)


def draw_sweep(sweep: "SweepResult", ax: "Axes | None") -> "Axes":
    """Draw the speedup over the last key that varies."""

    def draw(axes: "Axes") -> None:
        from simnet.report import figures

        figures.draw_speedups(axes, sweep)

    return _drawn(ax, draw)


def draw_crossover(found: "Crossover", ax: "Axes | None") -> "Axes":
    """Draw the speedup over the key."""

    def draw(axes: "Axes") -> None:
        from simnet.report import crossover_figure

        crossover_figure.draw_crossover(axes, found)

    return _drawn(ax, draw)


def draw_advice(advice: "Advice", ax: "Axes | None") -> "Axes":
    """Draw the speedup of every system over NIC bandwidth."""

    def draw(axes: "Axes") -> None:
        from simnet.report import advice_figure

        advice_figure.draw_advice(axes, advice)
        axes.legend(fontsize="small")

    return _drawn(ax, draw)


def draw_time_to_target(found: "TimesToTarget", ax: "Axes | None") -> "Axes":
    """Draw the metric over simulated time at the first bandwidth."""

    def draw(axes: "Axes") -> None:
        from simnet.report import time_to_target_figure

        time_to_target_figure.draw_time_to_target(axes, found)

    return _drawn(ax, draw)


def draw_residuals(residuals: "Sequence[Comparison]", ax: "Axes | None") -> "Axes":
    """Draw relative errors over measured times."""

    def draw(axes: "Axes") -> None:
        from simnet.report import calibration_figure

        calibration_figure.draw_residuals(axes, _some(residuals))
        axes.legend()

    return _drawn(ax, draw)


def draw_comparisons(comparisons: "Sequence[Comparison]", unit: "Unit", ax: "Axes | None") -> "Axes":
    """Draw predicted over measured values in a unit."""

    def draw(axes: "Axes") -> None:
        from simnet.report import comparison_figure
        from simnet.validation.outcome import SCALE

        comparison_figure.draw_comparisons(axes, _some(comparisons), comparison_figure.NOUNS[unit], SCALE[unit])
        axes.legend()

    return _drawn(ax, draw)


def _some(comparisons: "Sequence[Comparison]") -> "Sequence[Comparison]":
    if not comparisons:
        raise SimnetError("plot: there is nothing to draw: the answer holds no measured values")
    return comparisons


def _drawn(ax: "Axes | None", draw: "Callable[[Axes], None]") -> "Axes":
    """Draw into axes, which are made in the project's look where none are given."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise SimnetError("plot: matplotlib is missing: a figure needs it; pip install matplotlib") from error
    from simnet.report.figure import styled

    # Loads the backend, which in a notebook turns interactive on: inside of `styled` that would be undone at its end,
    # and no further figure would be shown.
    pyplot.draw_if_interactive()  # type: ignore[no-untyped-call]
    with styled():
        axes = pyplot.subplots(figsize=SIZE_IN, layout="constrained")[1] if ax is None else ax
        draw(axes)
    return axes

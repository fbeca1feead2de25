"""Draw answers into axes that the user gives, or into new ones."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simnet.errors import SimnetError
from simnet.result import RunResult, SweepResult, point_result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from simnet.compare.advice import Advice
    from simnet.compare.crossover import Crossover
    from simnet.compare.time_to_target import TimesToTarget
    from simnet.comparison import Comparison


def draw_run(result: RunResult, ax: "Axes | None") -> "Axes":
    """Draw where the time of a step goes."""
    axes = _axes(ax)
    from simnet.show.figures import breakdown

    breakdown(axes, [point_result({}, result)])
    return axes


def draw_sweep(sweep: SweepResult, ax: "Axes | None") -> "Axes":
    """Draw the speedup over the last key that varies."""
    axes = _axes(ax)
    from simnet.show.figures import speedup_over
    from simnet.show.labels import main_key

    key = main_key(sweep)
    speedup_over(axes, sweep.points, key=key, others=[one for one in sweep.varied if one != key])
    return axes


def draw_crossover(found: "Crossover", ax: "Axes | None") -> "Axes":
    """Draw the speedup over the key."""
    raise NotImplementedError


def draw_advice(advice: "Advice", ax: "Axes | None") -> "Axes":
    """Draw the speedup of every system over NIC bandwidth."""
    raise NotImplementedError


def draw_time_to_target(found: "TimesToTarget", ax: "Axes | None") -> "Axes":
    """Draw the metric over simulated time."""
    raise NotImplementedError


def draw_residuals(residuals: "Sequence[Comparison]", ax: "Axes | None") -> "Axes":
    """Draw residuals over measured times."""
    raise NotImplementedError


def draw_comparisons(comparisons: "Sequence[Comparison]", ax: "Axes | None") -> "Axes":
    """Draw predicted over measured values."""
    raise NotImplementedError


def _axes(ax: "Axes | None") -> "Axes":
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise SimnetError("plot: matplotlib is missing: a figure needs it; pip install matplotlib") from error
    return pyplot.subplots(layout="constrained")[1]

"""Draw the residuals of a fit over the measured times."""

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from simnet.calibration.comparison import Comparison
from simnet.report import figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAND = 0.05
LEAST_SHOWN = 0.1


def image(residuals: Sequence[Comparison], file_format: figure.Format = "png") -> bytes:
    """Return relative errors over measured times as a figure's file; groups that were held out are filled."""
    with figure.styled():
        drawn = figure.new(figure.current().page_in, 3.4)
        draw_residuals(drawn.subplots(), residuals)
        drawn.legend(loc="outside lower center", ncols=2)
        return figure.image(drawn, file_format)


def draw_residuals(axes: "Axes", residuals: Sequence[Comparison]) -> None:
    """Draw relative errors over measured times; groups that were held out are filled."""
    axes.axhspan(-BAND, BAND, color=figure.current().band, linewidth=0, label=f"±{BAND:.0%}", zorder=0)
    axes.axhline(0, color=figure.current().ink, linewidth=figure.thin(), zorder=1)
    groups = dict.fromkeys((one.series, one.role) for one in residuals)
    for group, colour, marker in zip(groups, cycle(figure.current().colours), cycle(figure.MARKERS), strict=False):
        _draw(axes, [one for one in residuals if (one.series, one.role) == group], colour, marker)
    _lay_out(axes, 1.1 * max(LEAST_SHOWN, *(abs(one.error) for one in residuals)))


def _draw(axes: "Axes", rows: Sequence[Comparison], colour: str, marker: str) -> None:
    """Draw the rows of one group."""
    series, role = rows[0].series, rows[0].role
    axes.plot(
        [one.measured * 1e3 for one in rows],
        [one.error for one in rows],
        linestyle="none",
        marker=marker,
        color=colour,
        markerfacecolor=colour if role == "held out" else "none",
        markeredgewidth=figure.thin(1.1),
        label=f"{series}, {role}",
    )


def _lay_out(axes: "Axes", limit: float) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set_ylim(-limit, limit)
    axes.set_xscale("log")
    figure.log_numbers(axes.xaxis)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("measured time [ms]")
    axes.set_ylabel("fitted / measured - 1")

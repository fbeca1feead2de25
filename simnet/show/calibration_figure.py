"""Draw the residuals of a fit over the measured times."""

import io
from collections.abc import Sequence
from itertools import cycle

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from simnet.comparison import Comparison
from simnet.show.plot import STYLE

# Colours of Okabe and Ito, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^vP"
BAND = 0.05
LEAST_SHOWN = 0.1


def png(residuals: Sequence[Comparison]) -> bytes:
    """Return relative errors over measured times as PNG; groups that were held out are filled."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.16, 3.4), layout="constrained")
        axes = figure.subplots()
        axes.axhspan(-BAND, BAND, color="#DDDDDD", linewidth=0, label=f"±{BAND:.0%}", zorder=0)
        axes.axhline(0, color="black", linewidth=0.8, zorder=1)
        groups = dict.fromkeys((one.series, one.role) for one in residuals)
        for (series, role), colour, marker in zip(groups, cycle(COLOURS), cycle(MARKERS), strict=False):
            rows = [one for one in residuals if (one.series, one.role) == (series, role)]
            axes.plot(
                [one.measured * 1e3 for one in rows],
                [one.error for one in rows],
                linestyle="none",
                marker=marker,
                color=colour,
                markerfacecolor=colour if role == "held out" else "none",
                markeredgewidth=1.1,
                label=f"{series}, {role}",
            )
        limit = 1.1 * max(LEAST_SHOWN, *(abs(one.error) for one in residuals))
        axes.set_ylim(-limit, limit)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(base=10))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_xlabel("measured time [ms]")
        axes.set_ylabel("fitted / measured - 1")
        figure.legend(loc="outside lower center", ncols=2)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
